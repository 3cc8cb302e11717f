#!/usr/bin/env python3
"""Exact answers of the demo pair under greedy decoding: each model alone, and routed.

    python models/train/evaluate.py DIR [--problems FILE] [--count 500]      (one model)
    python models/train/evaluate.py SMALL LARGE [...]                        (both, and a sweep of routers)

An answer is right when the whole text after `</think>` is `The answer is N.` with the right N and the answer ended by
itself. FILE is written by generate.py; without it the problems are those of the test split. Prints JSON lines:
`policy`, `threshold`, `accuracy`, `large_share` (of the output tokens), `handoffs` (changes of the writer in an
answer, both directions), `tokens` (in an answer), and what went wrong first in the wrong answers. With two models also
a line about the tokens of the reference answers: `diverging` (the share where the best tokens differ) and
`entropy_auc` (how well the small model's entropy ranks them: 1 is perfect, 0.5 is chance).

`always-best` lets the large model write wherever the two models' best tokens differ. `r-stitch`: the small model writes
while its entropy / ln V is at most the threshold; above, the large model writes that token and keeps control until its
own is at most the threshold. `one-token` returns control after one token. `random` gives each token away by chance.
"""

import argparse
import collections
import json
import math
import os
import re

import generate
import torch
from model import load
from tokenizers import Tokenizer

MAX_NEW = 200
SWEEP = [("always-best", 0.0)]
SWEEP += [("r-stitch", t) for t in (0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.003)]
SWEEP += [("one-token", t) for t in (0.2, 0.1, 0.05, 0.03, 0.02, 0.01)]
SWEEP += [("random", t) for t in (0.1, 0.5)]


class Runner:
    """Greedy decoding of a batch: prompts padded on the left, both models read every kept token."""

    def __init__(self, folders):
        self.models = [load(f) for f in folders]
        self.tokenizer = Tokenizer.from_file(os.path.join(folders[0], "tokenizer.json"))
        self.ends = [self.tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]

    @torch.no_grad()
    def answers(self, messages, policy, threshold):
        """For each message (ids of the answer, writers of its tokens)."""
        prompts = [self.tokenizer.encode(generate.render_prompt(m)).ids for m in messages]
        batch, longest = len(prompts), max(map(len, prompts))
        ids = torch.zeros(batch, longest, dtype=torch.long)
        real = torch.zeros(batch, longest + MAX_NEW, dtype=torch.bool)
        for row, p in enumerate(prompts):
            ids[row, longest - len(p):] = torch.tensor(p)
            real[row, longest - len(p):longest] = True
        positions = (real[:, :longest].long().cumsum(1) - 1).clamp(min=0)
        causal = torch.ones(longest, longest, dtype=torch.bool).tril()
        # A padding token looks at itself, so that no row of the softmax is empty.
        mask = (real[:, None, :longest] & causal) | torch.eye(longest, dtype=torch.bool)
        caches = [m.new_cache(batch, longest + MAX_NEW) for m in self.models]
        state = [m.hidden(ids, positions, mask[:, None], c)[:, -1] for m, c in zip(self.models, caches)]
        at, large = positions[:, -1:], torch.zeros(batch, dtype=torch.bool)
        live = torch.ones(batch, dtype=torch.bool)
        out = [([], []) for _ in messages]
        for end in range(longest, longest + MAX_NEW):
            logits = [m.logits(s) for m, s in zip(self.models, state)]
            writer, large = choose(policy, threshold, logits, large)
            best = torch.stack([l.argmax(-1) for l in logits])
            token = best.gather(0, writer.long()[None])[0]
            for row in live.nonzero()[:, 0].tolist():
                out[row][0].append(int(token[row]))
                out[row][1].append(int(writer[row]))
            live &= ~torch.isin(token, torch.tensor(self.ends))
            if not live.any():
                break
            at, real[:, end] = at + 1, True
            seen = real[:, None, None, :end + 1]
            state = [m.hidden(token[:, None], at, seen, c)[:, -1] for m, c in zip(self.models, caches)]
        return out


def entropy(logits):
    """Divided by the logarithm of the vocabulary, so between 0 and 1."""
    lp = logits.log_softmax(-1)
    return -(lp.exp() * lp).sum(-1) / math.log(lp.shape[-1])


def choose(policy, threshold, logits, large):
    """(who writes this token, who has control after it), true for the large model."""
    if policy == "alone":
        return torch.zeros_like(large), large
    if policy == "always-best":
        return logits[0].argmax(-1) != logits[1].argmax(-1), large
    if policy == "random":
        return torch.rand(len(large)) < threshold, large
    unsure = large | (entropy(logits[0]) > threshold)
    return unsure, unsure & (entropy(logits[1]) > threshold) if policy == "r-stitch" else large


def first_fault(text, problem):
    """Where the answer leaves the reference: a wrong `sum`, or a wrong `step` (event, number, or end)."""
    reference = problem["think"] + "\n</think>\n\n"
    for got, want in zip(text.split("\n"), reference.split("\n")):
        if got != want:
            return "sum" if "=" in got and got.rsplit("=", 1)[0] == want.rsplit("=", 1)[0] else "step"
    return "answer"


def evaluate(runner, problems, policy, threshold, group=100):
    right = tokens = large = handoffs = 0
    faults = collections.Counter()
    for start in range(0, len(problems), group):
        part = problems[start:start + group]
        for p, (ids, writers) in zip(part, runner.answers([p["prompt"] for p in part], policy, threshold)):
            text = runner.tokenizer.decode(ids, skip_special_tokens=True)
            found = re.search(r"</think>\s*The answer is (\d+)\.$", text)
            if found and found.group(1) == p["answer"] and ids[-1] in runner.ends:
                right += 1
            else:
                faults[first_fault(text, p)] += 1
            tokens, large = tokens + len(ids), large + sum(writers)
            handoffs += sum(a != b for a, b in zip([0] + writers, writers))
    n = len(problems)
    return dict(policy=policy, threshold=threshold, right=right, of=n, accuracy=round(right / n, 4),
                large_share=round(large / tokens, 4), handoffs=round(handoffs / n, 2), tokens=round(tokens / n, 1),
                first_fault=dict(faults))


@torch.no_grad()
def compare(runner, problems):
    """Both models over the reference answers: where their best tokens differ, and what the entropy says there."""
    differs, unsure = [], []
    for p in problems:
        prompt = runner.tokenizer.encode(generate.render_prompt(p["prompt"])).ids
        ids = torch.tensor([prompt + runner.tokenizer.encode(generate.render_answer(p)).ids])
        small, large = (m.logits(m.hidden(ids)[0, len(prompt) - 1:-1]) for m in runner.models)
        differs.append(small.argmax(-1) != large.argmax(-1))
        unsure.append(entropy(small))
    differs, unsure = torch.cat(differs), torch.cat(unsure)
    rank = torch.empty(len(unsure))
    rank[unsure.argsort()] = torch.arange(1.0, len(unsure) + 1)
    hits, others = int(differs.sum()), int((~differs).sum())
    area = (rank[differs].double().sum().item() - hits * (hits + 1) / 2) / max(1, hits * others)
    return dict(tokens=len(unsure), diverging=round(hits / len(unsure), 4), entropy_auc=round(area, 4))


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("folders", nargs="+")
    args.add_argument("--problems")
    args.add_argument("--count", type=int, default=500)
    args = args.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.problems:
        with open(args.problems) as f:
            problems = [json.loads(line) for line in f][:args.count]
    else:
        problems = generate.problems("test", args.count)
    for folder in args.folders:
        print(json.dumps(dict(model=folder, **evaluate(Runner([folder]), problems, "alone", 0.0))), flush=True)
    if len(args.folders) == 2:
        runner = Runner(args.folders)
        print(json.dumps(compare(runner, problems)), flush=True)
        for policy, threshold in SWEEP:
            print(json.dumps(evaluate(runner, problems, policy, threshold)), flush=True)


if __name__ == "__main__":
    main()
