#!/usr/bin/env python3
"""All routers of the demo pair, from its weights: problems of the split `router`, labels, four heads, checks.

    python models/train_routers/make_demo_routers.py [--demo models/demo] [--work DIR] [--count 3000]

Writes DEMO/routers/KIND and prints a line of figures for each. With `--work` the labels stay there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, "train"))
import generate  # noqa: E402

KINDS = ["r2r", "citer", "co-llm", "query"]
LONGEST = "200"  # no answer of this language is longer, in tokens


def run(script, *args):
    subprocess.run([sys.executable, os.path.join(HERE, script), *args], check=True)


def make(demo, work, count):
    prompts = os.path.join(work, "prompts.jsonl")
    with open(prompts, "w", encoding="utf-8") as f:
        for problem in generate.problems("router", count):
            f.write(json.dumps(dict(problem, completion=generate.render_answer(problem))) + "\n")
    labels = os.path.join(work, "labels")
    run("label.py", os.path.join(demo, "slm"), os.path.join(demo, "llm"), "--prompts", prompts, "--out", labels,
        "--check", "sentence", "--max-new", LONGEST, "--batch", "100")
    for kind in KINDS:
        out = os.path.join(demo, "routers", kind)
        run("train.py", labels, "--kind", kind, "--out", out)
        run("check.py", out, labels)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--demo", default=os.path.join(HERE, os.pardir, "demo"))
    args.add_argument("--work", metavar="DIR", help="where the labels stay; default: a folder that is removed")
    args.add_argument("--count", type=int, default=3000)
    args = args.parse_args()
    if args.work:
        os.makedirs(args.work, exist_ok=True)
        make(args.demo, args.work, args.count)
    else:
        with tempfile.TemporaryDirectory() as work:
            make(args.demo, work, args.count)


if __name__ == "__main__":
    main()
