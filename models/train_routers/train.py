#!/usr/bin/env python3
"""Train one router head from the labels of label.py.

    python models/train_routers/train.py LABELS --kind r2r|citer|co-llm|query --out ROUTER_DIR

Writes `router.json` and `router.safetensors`, with a threshold, and prints one line of JSON. A tenth of the prompts is
held out: they choose the epoch (lowest loss), the threshold, and give the figures. The threshold is the highest one at
which `--recover` of the held-out answers that need the large model have every such token written by it, but one that sends
at least `--least` and at most `--most` of the tokens there; `--share` asks for a share instead. For `query`, read
prompts for tokens.

Beside the labels it leaves `scores-KIND.safetensors`, the head's scores as training saw them, for check.py.
"""

import argparse
import copy
import json
import os
import time

import choose
import torch
from routerfile import owner, write_router
from safetensors.torch import save_file
from store import Labels
from tasks import TASKS

BATCH, CHUNK, CHECKED = 1024, 16384, 512


@torch.no_grad()
def raw_scores(task, rows):
    task.net.eval()
    return torch.cat([task.net(*task.inputs(part)) for part in rows.split(CHUNK)])


@torch.no_grad()
def held_loss(task, rows):
    return task.loss(raw_scores(task, rows), rows).item()


def fit(task, held, args):
    """Keeps the weights of the epoch with the lowest loss on the held-out rows; returns its number."""
    optimizer = torch.optim.AdamW(task.net.parameters(), lr=args.rate, weight_decay=args.decay)
    learn = task.learn.nonzero()[:, 0]
    steps = max(1, len(learn) // BATCH)  # a rest of less than a batch waits for the next epoch's order
    batch = min(BATCH, len(learn))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.rate, total_steps=args.epochs * steps, pct_start=0.1)
    best, state = (float("inf"), 0), None
    for epoch in range(1, args.epochs + 1):
        task.net.train()
        order = learn[torch.randperm(len(learn))]
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            optimizer.zero_grad()
            task.loss(task.net(*task.inputs(rows)), rows).backward()
            torch.nn.utils.clip_grad_norm_(task.net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        loss = held_loss(task, held)
        if loss < best[0]:
            # A copy: the tensors of a state dict change with every step.
            best, state = (loss, epoch), copy.deepcopy(task.net.state_dict())
    task.net.load_state_dict(state)
    return best


def train(labels_dir, out, args):
    """Trains, writes the router, and returns the figures of the held-out prompts."""
    began = time.time()
    torch.manual_seed(args.seed)
    labels = Labels(labels_dir)
    held_prompts = labels.split(args.held_out, args.seed)
    by_prompt = args.kind == "query"
    of_row = held_prompts if by_prompt else held_prompts[labels.prompt.long()]
    task = TASKS[args.kind](labels, ~of_row, args)
    held = of_row.nonzero()[:, 0]
    if not task.positive[task.learn].any():
        raise SystemExit(f"{labels_dir}: nothing there needs the large model, so there is nothing to learn")
    loss, epoch = fit(task, held, args)
    task.settle()
    raw = raw_scores(task, held)
    asks, positive, prompt = task.asks(raw), task.positive[held], task.prompt[held]
    least, most = (args.share, args.share) if args.share else (args.least, args.most)
    at = choose.threshold(asks, positive, prompt, args.recover, least, most)
    figures = choose.report(asks, positive, prompt, at)
    shown = raw[:CHECKED].sigmoid()
    save_file(dict(rows=held[:CHECKED].contiguous(), scores=shown.contiguous()),
              os.path.join(labels_dir, f"scores-{args.kind}.safetensors"))
    about, tensors = task.write()
    threshold = round(at if task.direction != "<" else 1 - at, 6)
    write_router(out, dict(kind=args.kind, **about, threshold=threshold, direction=task.direction,
                           model=owner(labels.about["small"])), tensors)
    return dict(kind=args.kind, threshold=threshold, **figures, held_out_loss=round(loss, 4), epoch=epoch,
                parameters=sum(p.numel() for p in task.net.parameters()), seconds=round(time.time() - began, 1))


def parser():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("labels", metavar="LABELS")
    args.add_argument("--kind", required=True, choices=TASKS)
    args.add_argument("--out", required=True, metavar="ROUTER_DIR")
    args.add_argument("--hidden", type=int, nargs="+", help="widths of the layers; the default depends on the kind")
    args.add_argument("--expansion", type=int, default=2, help="r2r: inner width of a block over its width")
    args.add_argument("--logits", type=int, default=16, help="r2r: how many of the largest logits it reads")
    args.add_argument("--dropout", type=float, default=0.1)
    args.add_argument("--price", type=float, default=0.05, help="co-llm: what deferring one token costs, in nats")
    args.add_argument("--recover", type=float, default=0.97)
    args.add_argument("--least", type=float, default=0.06)
    args.add_argument("--most", type=float, default=0.09)
    args.add_argument("--share", type=float, help="the share of tokens for the large model, instead of the three above")
    args.add_argument("--held-out", type=float, default=0.1)
    args.add_argument("--epochs", type=int)
    args.add_argument("--rate", type=float)
    args.add_argument("--decay", type=float)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--threads", type=int, default=1)
    return args


def settle(args):
    """Fills in what the kind decides."""
    defaults = TASKS[args.kind].defaults
    args.hidden = args.hidden or defaults["dims"]
    for name in ("epochs", "rate", "decay"):
        if getattr(args, name) is None:
            setattr(args, name, defaults[name])
    return args


def main():
    args = settle(parser().parse_args())
    torch.set_num_threads(args.threads)
    print(json.dumps(train(args.labels, args.out, args)))


if __name__ == "__main__":
    main()
