#!/usr/bin/env python3
"""Train one model of the demo pair from random weights.

    python models/train/train.py small --out DIR
    python models/train/train.py large --out DIR

One thread, fixed seeds, every schedule by the step: the same versions on the same kind of processor give the same file.
Prints a line of JSON every 100 steps and writes a complete Hugging Face folder at the end and every 500 steps, until the
end together with `training.pt`: the same command goes on from there, and the result is that of an unbroken run.
"""

import argparse
import dataclasses
import json
import os
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
SAVE_EVERY = 500


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
    small=Recipe(Config(64, 192, 3, 4, 2, 16, 10000.0), steps=1100, seed=4),
    large=Recipe(Config(128, 384, 5, 4, 2, 32, 10000.0), steps=4000, seed=1),
)


def rate(step, steps):
    """The factor on both learning rates: linear warm-up, constant, then linear to `LAST`."""
    done = step / steps
    return min(1.0, (step + 1) / WARM_UP) * (1.0 if done < HELD else max(LAST, (1 - done) / (1 - HELD)))


class Run:
    """A model in training with all that a step changes."""

    def __init__(self, recipe):
        self.recipe, self.model = recipe, Qwen3(recipe.config)
        named = list(self.model.named_parameters())
        embedding = [self.model.model.embed_tokens.weight]
        norms = [p for _, p in named if p.dim() < 2]
        self.muon = Muon([p for n, p in named if p.dim() == 2 and "embed" not in n])
        self.adam = torch.optim.AdamW([dict(params=embedding, weight_decay=0.05), dict(params=norms, weight_decay=0.0)],
                                      betas=(0.9, 0.98), eps=1e-9)
        self.log = dict(step=0, loss=0.0, tokens=0, sequences=0)

    def step(self, ids, labels):
        log, factor = self.log, rate(self.log["step"], self.recipe.steps)
        for group in self.adam.param_groups:
            group["lr"] = self.recipe.adam * factor
        wanted = labels[:, 1:] != IGNORED
        state = self.model.hidden(ids[:, :-1])[wanted]
        loss = F.cross_entropy(self.model.logits(state), labels[:, 1:][wanted])
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.muon.step(self.recipe.muon * factor)
        log["step"] += 1
        # A running mean that is unbiased from the first step on.
        log["loss"] += max(0.02, 1 / log["step"]) * (loss.item() - log["loss"])
        log["tokens"] += ids.numel()
        log["sequences"] += len(ids)

    def save(self, path):
        torch.save(dict(recipe=dataclasses.asdict(self.recipe), log=self.log, model=self.model.state_dict(),
                        adam=self.adam.state_dict(), muon=list(self.muon.sums.values())), path)

    def restore(self, path):
        """False when the file is that of another recipe."""
        state = torch.load(path, weights_only=True)
        if state["recipe"] != dataclasses.asdict(self.recipe):
            return False
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        for sums, saved in zip(self.muon.sums.values(), state["muon"]):
            sums.copy_(saved)
        self.log = state["log"]
        return True


def train(recipe, folder):
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    tokenizer = demo_tokenizer.build()
    demo_tokenizer.save(tokenizer, folder)
    run, path = Run(recipe), os.path.join(folder, "training.pt")
    if os.path.exists(path) and not run.restore(path):
        raise SystemExit(f"{path} belongs to another recipe; delete it to start anew")
    size = sum(p.numel() for p in run.model.parameters())
    print(json.dumps(dict(parameters=size, start=run.log["step"], **dataclasses.asdict(recipe))), flush=True)
    rng = random.Random(generate.SEEDS["train"] + recipe.seed)
    stream = batches(tokenizer, rng, recipe.tokens, recipe.drill_share)
    for _ in range(run.log["step"]):
        next(stream)
    while run.log["step"] < recipe.steps:
        run.step(*next(stream))
        if run.log["step"] % 100 == 0 or run.log["step"] == recipe.steps:
            print(json.dumps(dict(run.log, loss=round(run.log["loss"], 4), cpu_s=round(time.process_time()))), flush=True)
        if run.log["step"] % SAVE_EVERY == 0:
            save(run.model, folder)
            run.save(path)
    save(run.model, folder)
    if os.path.exists(path):
        os.remove(path)


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
