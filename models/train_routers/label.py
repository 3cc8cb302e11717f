#!/usr/bin/env python3
"""Run both models over answers, once, and store what every router head learns from.

    python models/train_routers/label.py SMALL LARGE --prompts FILE --out DIR [--count N] [--answers reference|large]

SMALL and LARGE are folders of Hugging Face checkpoints (Qwen3, Qwen2, Llama) with one tokenizer. FILE has one JSON
object a line: `prompt` (the user's message) or `messages` (a conversation), and, if you have it, `completion` (a good answer
with the thinking, as the model would write it). Without a completion, or with `--answers large`, the large model
writes the answer, greedily; answers that do not end in `--max-new` tokens are left out.

A token needs the large model where both models' best tokens differ; with `--verify` only where that changes the final
answer for the worse (outcomes.py). An answer is right when the model, decoding greedily, writes the text word for word; with
`--check` also when its own answer agrees with the line's `answer`. `small_right` and `large_right` (true, false) in a line
go before both.

store.py says what is in DIR. A batch of texts is in memory at a time.
"""

import argparse
import json
import math
import sys
import time

import outcomes
import torch
from pair import Pair
from store import Writer

CHUNK = 256  # rows whose logits are held at a time: with 150,000 tokens in the vocabulary, 150 MB for each model


def read_lines(file, count):
    with open(file, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f if line.strip()][:count]
    for at, line in enumerate(lines, 1):
        if not line.get("prompt") and not line.get("messages"):
            raise SystemExit(f"{file}, line {at}: neither \"prompt\" nor \"messages\"")
    return lines


def answered(pair, lines, answers, limit):
    """For each line (line, tokens of the prompt, tokens of the answer or None)."""
    out = [(line, pair.prompt(line), None) for line in lines]
    missing = [i for i, line in enumerate(lines) if answers == "large" or not line.get("completion")]
    written = pair.large.greedy([out[i][1] for i in missing], limit) if missing else []
    found = dict(zip(missing, written))
    return [(line, prompt, found[i] if i in found else pair.completion(line["completion"]))
            for i, (line, prompt, _) in enumerate(out)]


def judge(pair, states, token, top):
    """The tensors of the rows with these states `(small, large)`, `CHUNK` rows at a time."""
    parts = []
    for start in range(0, len(token), CHUNK):
        part = slice(start, start + CHUNK)
        small, large = pair.small.logits(states[0][part]), pair.large.logits(states[1][part])
        logp, real = small.log_softmax(-1), token[part, None]
        parts.append(dict(
            top=small.topk(top, -1).values, small_best=small.argmax(-1).int(), large_best=large.argmax(-1).int(),
            # Where a probability is 0 its logarithm is -inf, and their product no number.
            entropy=-(logp.exp() * logp.clamp(min=-1e4)).sum(-1) / math.log(logp.shape[-1]),
            small_logp=logp.gather(1, real)[:, 0], large_logp=large.log_softmax(-1).gather(1, real)[:, 0]))
    return {name: torch.cat([p[name] for p in parts]) for name in parts[0]}


def rows_of(pair, batch, top):
    """The tensors of all rows of a batch of (line, prompt, answer), `at`, and the small model's states of all tokens."""
    longest = max(len(p) + len(a) for _, p, a in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    real = torch.zeros(len(batch), longest, dtype=torch.bool)  # positions whose next token is one of the answer
    for row, (_, prompt, answer) in enumerate(batch):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        real[row, len(prompt) - 1 : len(prompt) + len(answer) - 1] = True
    small, large = pair.small.states(ids), pair.large.states(ids)
    token = ids.roll(-1, 1)[real].to(small.device)
    out = judge(pair, (small[real], large[real]), token, top)
    at = [(number, place) for number, (_, _, answer) in enumerate(batch) for place in range(len(answer))]
    return dict(out, hidden=small[real], token=token.int(), at=at), small


def right(pair, batch, rows, args):
    """For each model and prompt: is its own answer right? `small_right` and `large_right`, `[prompts]`."""
    out = {}
    index = torch.tensor([number for number, _ in rows["at"]])
    for name, model in (("small", pair.small), ("large", pair.large)):
        wrong = (rows[name + "_best"] != rows["token"]).long().cpu()
        good = (torch.zeros(len(batch), dtype=torch.long).index_add(0, index, wrong) == 0).tolist()
        for number, (line, _, _) in enumerate(batch):
            good[number] = line.get(name + "_right", good[number])
        # A model that writes the text word for word needs no second look.
        asked = [i for i, (line, _, _) in enumerate(batch)
                 if args.check and not good[i] and name + "_right" not in line and "answer" in line]
        lines, prompts = [batch[i][0] for i in asked], [batch[i][1] for i in asked]
        for i, found in zip(asked, outcomes.right_answers(pair, model, args.check, lines, prompts, args.max_new)):
            good[i] = found
        out[name + "_right"] = torch.tensor(good, dtype=torch.int32)
    return out


def label(pair, batch, first, top, args):
    """All tensors of a batch whose first prompt is number `first`."""
    rows, states = rows_of(pair, batch, top)
    of_prompts = right(pair, batch, rows, args)
    if args.verify:
        needed = outcomes.harmful(pair, args.check, batch, rows, args.max_new)
    else:
        needed = rows["small_best"] != rows["large_best"]
    mean = torch.stack([states[row, : len(prompt)].mean(0) for row, (_, prompt, _) in enumerate(batch)])
    prompt = torch.tensor([first + number for number, _ in rows.pop("at")], dtype=torch.int32)
    return dict(rows, **of_prompts, needed=needed.int(), prompt=prompt, mean=mean)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("small")
    args.add_argument("large")
    args.add_argument("--prompts", required=True, metavar="FILE")
    args.add_argument("--out", required=True, metavar="DIR")
    args.add_argument("--count", type=int, help="only the first N prompts")
    args.add_argument("--answers", choices=["reference", "large"], default="reference")
    args.add_argument("--check", choices=outcomes.CHECKS, help="how an answer is compared with the line's `answer`")
    args.add_argument("--verify", action="store_true", help="needs --check; takes longer than all the rest")
    args.add_argument("--max-new", type=int, default=512, help="most tokens of an answer that a model writes")
    args.add_argument("--top", type=int, default=100, help="how many of the largest logits are kept, at most 100")
    args.add_argument("--batch", type=int, default=32, help="texts at a time")
    args.add_argument("--threads", type=int, default=1)
    args.add_argument("--device", default="cpu")
    args = args.parse_args()
    if args.verify and not args.check:
        raise SystemExit("--verify needs --check: how is an answer compared?")
    torch.set_num_threads(args.threads)
    lines, pair, writer = read_lines(args.prompts, args.count), Pair(args.small, args.large, args.device), Writer(args.out)
    top = min(args.top, 100, pair.small.net.config.vocab_size)
    began, rows, prompts, differ, needed = time.time(), 0, 0, 0, 0
    for start in range(0, len(lines), args.batch):
        batch = answered(pair, lines[start : start + args.batch], args.answers, args.max_new)
        batch = [entry for entry in batch if entry[2] is not None]
        if batch:
            out = label(pair, batch, prompts, top, args)
            writer.add(out)
            rows, prompts = rows + len(out["token"]), prompts + len(batch)
            differ += int((out["small_best"] != out["large_best"]).sum())
            needed += int(out["needed"].sum())
        print(f"\r{min(start + args.batch, len(lines))} of {len(lines)} prompts, {rows} tokens, {100 * differ / max(1, rows):.2f} % "
              f"differ, {100 * needed / max(1, rows):.2f} % need the large model, {time.time() - began:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if not prompts:
        raise SystemExit("no answer ended; give a larger --max-new")
    writer.close(dict(small=args.small, large=args.large, prompts=prompts, left_out=len(lines) - prompts, rows=rows, top=top,
                      differing=round(differ / rows, 5), needed=round(needed / rows, 5), check=args.check,
                      verified=args.verify))


if __name__ == "__main__":
    main()
