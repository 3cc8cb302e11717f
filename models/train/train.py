#!/usr/bin/env python3
"""Train one model of the demo pair from random weights.

    python models/train/train.py small --out DIR
    python models/train/train.py large --out DIR

One thread, fixed seeds, every schedule by the step: the same versions on the same kind of processor give the same file.
Prints a line of JSON every 100 steps and writes a complete Hugging Face folder at the end (and every 500 steps).
"""

import argparse
import dataclasses
import json
import random
import time

import generate
import tokenizer as demo_tokenizer
import torch
import torch.nn.functional as F
from batches import IGNORED, batches
from model import Config, Qwen3, save
from muon import Muon

WARM_UP, HELD = 100, 0.4  # steps of warm-up; the share of the steps after which the rates fall
LAST = 0.01  # what is left of the rates at the end


@dataclasses.dataclass
class Recipe:
    config: Config
    steps: int
    seed: int
    tokens: int = 2048  # padded tokens a step
    drill_share: float = 0.2  # of the sequences
    muon: float = 0.02  # learning rate of the hidden matrices
    adam: float = 3e-3  # learning rate of embedding and norms


RECIPES = dict(
    small=Recipe(Config(64, 192, 3, 4, 2, 16, 1000.0), steps=1000, seed=4),
    large=Recipe(Config(128, 384, 5, 4, 2, 32, 1000.0), steps=4000, seed=1),
)


def rate(step, steps):
    """The factor on both learning rates: linear warm-up, constant, then linear to `LAST`."""
    done = step / steps
    return min(1.0, (step + 1) / WARM_UP) * (1.0 if done < HELD else max(LAST, (1 - done) / (1 - HELD)))


def train(recipe, folder):
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    rng = random.Random(generate.SEEDS["train"] + recipe.seed)
    tokenizer = demo_tokenizer.build()
    demo_tokenizer.save(tokenizer, folder)
    model = Qwen3(recipe.config)
    embedding = [model.model.embed_tokens.weight]
    hidden = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    norms = [p for p in model.parameters() if p.dim() < 2]
    muon = Muon(hidden)
    adam = torch.optim.AdamW([dict(params=embedding, weight_decay=0.05), dict(params=norms, weight_decay=0.0)],
                             betas=(0.9, 0.98), eps=1e-9)
    print(json.dumps(dict(parameters=sum(p.numel() for p in model.parameters()), **dataclasses.asdict(recipe))), flush=True)
    mean, tokens, sequences = 0.0, 0, 0
    stream = batches(tokenizer, rng, recipe.tokens, recipe.drill_share)
    for step in range(recipe.steps):
        ids, labels = next(stream)
        factor = rate(step, recipe.steps)
        for group in adam.param_groups:
            group["lr"] = recipe.adam * factor
        wanted = labels[:, 1:] != IGNORED
        state = model.hidden(ids[:, :-1])[wanted]
        loss = F.cross_entropy(model.logits(state), labels[:, 1:][wanted])
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        muon.step(recipe.muon * factor)
        # A running mean that is unbiased from the first step on.
        weight = max(0.02, 1 / (step + 1))
        mean += weight * (loss.item() - mean)
        tokens, sequences = tokens + ids.numel(), sequences + len(ids)
        if (step + 1) % 100 == 0 or step + 1 == recipe.steps:
            print(json.dumps(dict(step=step + 1, loss=round(mean, 4), tokens=tokens, sequences=sequences,
                                  cpu_s=round(time.process_time()))), flush=True)
        if (step + 1) % 500 == 0:
            save(model, folder)
    save(model, folder)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("model", choices=RECIPES)
    args.add_argument("--out", required=True, help="the folder")
    args.add_argument("--steps", type=int, help="another number of steps, to try something")
    args = args.parse_args()
    recipe = RECIPES[args.model]
    train(dataclasses.replace(recipe, steps=args.steps or recipe.steps), args.out)


if __name__ == "__main__":
    main()
