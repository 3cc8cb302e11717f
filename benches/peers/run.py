#!/usr/bin/env python3
"""Our server beside what a user would pick instead, interleaved, in one table.

    python run.py --tokenrouter BINARY --llama BINARY --checkpoints FOLDER [--out FILE.json] [--quick]

`setup.sh` gets llama-server, `checkpoints.py` makes the checkpoints; docs/peers.md says what is compared and how fair it is.
Standard library only; the lock-step loop runs in the Python given with --torch.
"""

import argparse
import asyncio
import inspect
import itertools
import os
import subprocess
import sys

import lockstep
import machine
import report
import routed
import servers
import single

SCENARIOS = ["decode", "prefill", "context", "routed", "tiny", "lock-step"]
# More attempts than that many per wanted repeat are not made on a noisy machine.
ATTEMPTS = 3


class Environment:
    """The arguments, free ports, and the cells that have been measured."""

    def __init__(self, args):
        self.args, self.cells = args, []
        self.llama = os.path.abspath(args.llama)
        self.ports = itertools.cycle(range(args.port, args.port + 90))

    def port(self):
        """The next port."""
        return next(self.ports)

    def ours(self, models, max_model_len, fraction=None):
        """Our server on checkpoints by name; with `fraction` they are the pair that the route `pair` serves."""
        folders = [(name, self.checkpoint(name)[1]) for name in models]
        args = self.args
        return servers.tokenrouter(
            args.tokenrouter, folders, self.port(), max_model_len, args.memory, fraction, args.set
        )

    def checkpoint(self, name):
        """The GGUF file and the folder of a checkpoint."""
        # Our configuration counts relative paths from its own folder.
        base = os.path.abspath(os.path.join(self.args.checkpoints, name))
        return f"{base}.gguf", base

    def cell(self, kind, **params):
        """A new line of the table."""
        self.cells.append(report.Cell(kind, params))
        return self.cells[-1]

    async def repeat(self, cell, sides, once):
        """Let the sides do `once(side, seed)` in turn until there are enough repeats; the order changes every time.

        A repeat in which others had more than the allowed share of the machine is discarded, both sides of it.
        """
        wanted, names = self.args.repeats, list(sides)
        for attempt in range(wanted if self.args.keep_noisy else wanted * ATTEMPTS):
            pair = {}
            for name in names if attempt % 2 == 0 else reversed(names):
                found = once(sides[name], attempt)
                pair[name] = await found if inspect.isawaitable(found) else found
            noise = max(sample["foreign"] for sample in pair.values())
            if noise > self.args.max_foreign and not self.args.keep_noisy:
                cell.discarded += 1
            else:
                cell.pairs.append({name: pair[name] for name in names})
            if len(cell.pairs) == wanted:
                break
        print(report.table([cell]).splitlines()[-1], flush=True)
        if self.args.out:
            report.write(self.args.out, self.cells, about(self.args))


def about(args):
    """What was run, on what."""
    version = subprocess.run([args.llama, "--version"], capture_output=True, text=True, check=False)
    features = os.path.join(os.path.dirname(args.llama), "features.txt")
    llama = (version.stderr + version.stdout).strip().splitlines()
    build = open(features, encoding="utf-8").read().split() if os.path.exists(features) else []
    ours = subprocess.run([args.tokenrouter, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "machine": machine.describe(),
        "tokenrouter": ours,
        "llama.cpp": llama[:2],
        "llama.cpp_isa": build,
        "repeats": args.repeats,
        "set": args.set,
        "max_foreign": None if args.keep_noisy else args.max_foreign,
        "quick": args.quick,
    }


async def measure(env):
    """Run the scenarios that were asked for."""
    args, quick = env.args, env.args.quick
    has = lambda name: name in args.only  # noqa: E731
    for model in [m for m in ("smol", "q06") if m in args.models]:
        small = model == "smol"
        out = (24 if small else 8) if quick else 128 if small else 48
        decodes = [(streams, out) for streams in (1, 8)] if has("decode") else []
        lengths = (128,) if quick else (128, 1024, 4096) if small else (128, 1024)
        prefills = list(lengths) if has("prefill") else []
        contexts = (128, 1024) if quick else (128, 1024, 4096)
        contexts = [(c, 16 if quick else 48) for c in contexts] if has("context") and small else []
        if decodes or prefills or contexts:
            await single.run(env, model, decodes, prefills, contexts)
    note_kv_rates(env.cells)
    if has("routed") and {"smol", "q06"} <= set(args.models):
        lengths = (8,) if quick else args.routed_out
        await routed.run(env, "smol", "q06", [(n, out) for out in lengths for n in (1, 4, 8)])
    if has("tiny"):
        await routed.run(env, "tinyslm", "tinyllm", [(n, 64 if quick else 2048) for n in (1, 8)])
    if has("lock-step") and args.torch:
        await lockstep.run(env, "smol", "q06", [(n, 8 if quick else 64) for n in (1, 4, 8)])


def note_kv_rates(cells):
    """How fast keys and values are read, from what a step takes longer over a longer context."""
    cells = [cell for cell in cells if cell.kind == "context" and cell.pairs]
    for cell in cells[1:]:
        for field, name in [("step_ms", "wall"), ("cpu_ms", "CPU")]:
            rates = single.kv_rates(cell.params["model"], cells[0], cell, field)
            cell.notes[f"GB/s of KV beyond {cells[0].params['context']} ({name})"] = ", ".join(
                f"{side} {rate:.2f}" for side, rate in rates.items()
            )


def numbers(text):
    """Whole numbers between commas."""
    return tuple(int(part) for part in text.split(","))


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenrouter", required=True, help="our binary, a release build")
    parser.add_argument("--llama", required=True, help="llama-server")
    parser.add_argument("--checkpoints", required=True, help="the folder that checkpoints.py wrote")
    parser.add_argument("--torch", help="a Python with torch and transformers; without it there is no lock-step loop")
    parser.add_argument("--torch-dtype", default="bf16", choices=["bf16", "f32"])
    parser.add_argument("--out", help="write everything measured to this JSON file")
    parser.add_argument("--repeats", type=int, help="repeats of every cell (5; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="a smoke run: short answers, one repeat, nothing discarded")
    parser.add_argument("--only", default=SCENARIOS, type=lambda s: s.split(","), help=",".join(SCENARIOS))
    parser.add_argument("--models", default=["smol", "q06"], type=lambda s: s.split(","), help="smol,q06")
    parser.add_argument("--routed-out", default=(64, 256), type=numbers, help="tokens of the answers of `routed` (64,256)")
    parser.add_argument(
        "--peer-threads", default=(1, 2), type=numbers, help="threads of each llama-server of `routed` and `tiny` (1,2)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for our server")
    parser.add_argument("--max-foreign", type=float, default=0.1, help="most that others may take of the machine")
    parser.add_argument("--keep-noisy", action="store_true", help="keep repeats above that")
    parser.add_argument("--memory", default="6GiB", help="our server's budget")
    parser.add_argument("--port", type=int, default=18100, help="first of 90 local ports")
    args = parser.parse_args()
    args.repeats = args.repeats or (1 if args.quick else 5)
    args.keep_noisy |= args.quick
    for name in set(args.only) - set(SCENARIOS):
        parser.error(f"--only {name}: one of {', '.join(SCENARIOS)}")
    return args


def main():
    """Measure, then print the table and what goes with it."""
    args = arguments()
    env = Environment(args)
    print(about(args), flush=True)
    try:
        asyncio.run(measure(env))
    finally:
        print("\n" + report.table(env.cells) + "\n\n" + report.details(env.cells), flush=True)
        if args.out:
            report.write(args.out, env.cells, about(args))


if __name__ == "__main__":
    sys.exit(main())
