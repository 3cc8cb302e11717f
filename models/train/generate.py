#!/usr/bin/env python3
"""The demo pair's language: dated word problems with a chain of thought and one exact answer.

    python models/train/generate.py --split test --count 500 --out eval.jsonl

Python's standard library only. One JSON object a line: `id` (`test-0` ...), `prompt` (the user message), `think` (the
reference working), `answer`, `steps` (the number of events that count).

A story has 2 to 6 events about one person and one kind of thing, and in most stories one fact about another person,
which does not count. Every sentence has a month, in the order of the year, and so has the line of the working that
repeats it and does the sum: the model finds the next event by its month instead of by what was not used yet. (Without
months a model of this size skips events; with plain numbers for months the look-up is learned far later, because the
digits and the full stop of a number are also those of the amounts and the sums.) All totals and amounts have two
digits, so columns line up, and no two amounts of a story share a tens digit, so that copying by digits cannot slip
from one to the other.
"""

import argparse
import json
import random
import sys
import zlib

NAMES = ["Tom", "Ann", "Bob", "Eve", "Max", "Lea", "Sam", "Mia", "Ben", "Zoe", "Ian", "Ivy"]
THINGS = ["apples", "pears", "coins", "books", "cards", "shells", "stamps", "marbles", "pens", "eggs", "nuts", "plums"]
GAINS = ["buys", "finds", "gets", "wins", "picks"]
LOSSES = ["loses", "sells", "eats", "drops", "gives away"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August"]
BOXES = ["bags", "boxes", "packs", "jars"]
LOW, HIGH = 10, 99  # the range of every total and amount
PRODUCTS = [(k, m) for k in range(2, 10) for m in range(2, 10) if LOW <= k * m <= HIGH]
BOX_SHARE, ASIDE_SHARE = 0.25, 0.7
MIN_EVENTS, MAX_EVENTS = 2, 6

SEEDS = {"train": 1_000_003, "valid": 2_000_003, "test": 3_000_017, "router": 4_000_037}
# A problem belongs to the split that the checksum of its prompt picks, so no split can contain another's problem.
BUCKETS = 16
HELD_OUT = {"valid": 0, "test": 1, "router": 2}


def bucket(prompt):
    return zlib.crc32(prompt.encode()) % BUCKETS


def draw_event(rng, total, tens):
    """One legal event from `total`: ("*", k, m), ("+", amount) or ("-", amount); None when there is none.

    `tens` is the set of tens digits that amounts of this story have already.
    """
    fits = [(k, m) for k, m in PRODUCTS if total + k * m <= HIGH]
    if fits and rng.random() < BOX_SHARE:
        return ("*", *rng.choice(fits))
    gains = [v for v in range(LOW, HIGH - total + 1) if v // 10 not in tens]
    losses = [v for v in range(LOW, total - LOW + 1) if v // 10 not in tens]
    if not gains and not losses:
        return ("*", *rng.choice(fits)) if fits else None
    gain = gains and (not losses or rng.random() < 0.5)
    return ("+", rng.choice(gains)) if gain else ("-", rng.choice(losses))


def tell(rng, who, event):
    """The sentence of an event, up to the point where the working stops to repeat it."""
    if event[0] == "*":
        return f"{who} {rng.choice(GAINS)} {event[1]} {rng.choice(BOXES)} with {event[2]}"
    return f"{who} {rng.choice(GAINS if event[0] == '+' else LOSSES)} {event[1]}"


def sums(total, event):
    """The working of an event and the total after it."""
    if event[0] == "*":
        amount = event[1] * event[2]
        return f"{event[1]}*{event[2]}={amount}. {total}+{amount}={total + amount}.", total + amount
    after = total + event[1] if event[0] == "+" else total - event[1]
    return f"{total}{event[0]}{event[1]}={after}.", after


def draw_story(rng):
    """One problem, or None when the amounts ran out of tens digits."""
    who, other = rng.sample(NAMES, 2)
    what, odd = rng.sample(THINGS, 2)
    events = rng.randint(MIN_EVENTS, MAX_EVENTS)
    aside = rng.randrange(events) if rng.random() < ASIDE_SHARE else -1
    total = rng.randint(LOW, HIGH)
    tens = {total // 10}
    story, think = [f"{who} has {total} {what}."], [f"{who} has {total}."]
    for i in range(events):
        if i == aside:
            free = [v for v in range(LOW, HIGH + 1) if v // 10 not in tens]
            if not free:
                return None
            amount = rng.choice(free)
            tens.add(amount // 10)
            story.append(f"{other} has {amount} {rng.choice([what, odd])}.")
            think.append(f"{other} has {amount}.")
        event = draw_event(rng, total, tens)
        if event is None:
            return None
        if event[0] != "*":
            tens.add(event[1] // 10)
        told = tell(rng, who, event)
        story.append(f"{told} {what} each." if event[0] == "*" else f"{told} {what}.")
        line, total = sums(total, event)
        think.append(f"{told}. {line}")
    date = lambda lines: [f"In {month} {line}" for month, line in zip(MONTHS, lines)]
    prompt = " ".join(date(story)) + f" How many {what} does {who} have?"
    return dict(prompt=prompt, think="\n".join(date(think)), answer=str(total), steps=events)


def draw(rng, split):
    """The next problem that belongs to the split."""
    while True:
        problem = draw_story(rng)
        if problem is not None:
            home = bucket(problem["prompt"])
            if home == HELD_OUT[split] if split in HELD_OUT else home not in HELD_OUT.values():
                return problem


def problems(split, count):
    rng = random.Random(SEEDS[split])
    return [dict(id=f"{split}-{i}", **draw(rng, split)) for i in range(count)]


def draw_sum(rng):
    """One sum of the kind the working has, as a line: `12+80=92.`"""
    total = rng.randint(LOW, HIGH)
    event = draw_event(rng, total, ())
    if event is None:
        return draw_sum(rng)
    return sums(total, event)[0].split(" ")[0] + "\n"


def render_prompt(message):
    """What the chat template makes of one user message, with the generation prompt."""
    return f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n<think>\n"


def render_answer(problem):
    """The reference answer, with the token that ends it."""
    return f"{problem['think']}\n</think>\n\nThe answer is {problem['answer']}.<|im_end|>"


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--split", default="test", choices=SEEDS)
    args.add_argument("--count", type=int, default=500)
    args.add_argument("--out", help="a file; default: standard output")
    args = args.parse_args()
    lines = "".join(json.dumps(p) + "\n" for p in problems(args.split, args.count))
    if args.out:
        with open(args.out, "w") as f:
            f.write(lines)
    else:
        sys.stdout.write(lines)


if __name__ == "__main__":
    main()
