#!/usr/bin/env python3
"""Counts the instructions of the hot paths under callgrind, and fails when one is over its budget.

Usage: benches/instructions/check.py [--write]

Builds the bench `instructions`, which does the same work in every run, in the dev profile, and compares what valgrind
counts with budget.toml: no clock is looked at, so a busy machine changes nothing. `--write` puts what was measured into the
budget. In the dev profile kernels, scheduler and engine are optimised (with their assertions), the server is not: its counts
are many times those of the release build, and only their changes mean something.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUDGET = HERE / "budget.toml"
HEADER = """# Instructions that benches/instructions/check.py allows, per unit, on the AVX2 path, in the dev profile.
# Written by `benches/instructions/check.py --write`: run it when a change is worth its cost, and say so.

# Compilers, libraries and processors differ by this much; more is a change of the code.
tolerance = 0.10

[instructions]
"""


def program():
    """The program, with the libraries that the tests use."""
    build = ["cargo", "bench", "--locked", "--profile", "dev", "--bench", "instructions", "--no-run"]
    out = subprocess.run(
        [*build, "--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    messages = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    built = [m for m in messages if m.get("executable") and m["target"]["name"] == "instructions"]
    return built[-1]["executable"]


def measure(binary):
    """Instructions per unit of every scenario, in order."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "counts"
        run = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--collect-atstart=no"]
        run += ["--toggle-collect=tokenrouter_counted", "--dump-after=tokenrouter_scenario_ends", binary]
        done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"valgrind failed:\n{done.stderr[-3000:]}")
        counts = {}
        for number, line in enumerate(done.stdout.splitlines(), 1):
            name, unit, units = line.split("\t")
            text = out.with_name(f"counts.{number}").read_text()
            total = int(re.search(r"^(?:summary|totals): (\d+)", text, re.M)[1])
            counts[f"{name}, per {unit}"] = total / int(units)
        return counts


def main():
    counts = measure(program())
    if "--write" in sys.argv[1:]:
        lines = "".join(f'"{name}" = {round(count)}\n' for name, count in counts.items())
        BUDGET.write_text(HEADER + lines)
    budget = tomllib.loads(BUDGET.read_text())
    allowed, tolerance = budget["instructions"], budget["tolerance"]
    faults = [f"{name}: in the budget and not measured" for name in allowed if name not in counts]
    for name, count in counts.items():
        if name not in allowed:
            faults.append(f"{name}: measured and not in the budget")
            continue
        ratio = count / allowed[name]
        print(f"{name:58} {count:12.0f} of {allowed[name]:9}  {100 * ratio:6.1f} %")
        if ratio > 1 + tolerance:
            faults.append(f"{name}: {count:.0f} instructions, {allowed[name]} allowed")
        elif ratio < 1 - 2 * tolerance:
            print("    far below its budget: lower it with --write")
    if faults:
        sys.exit("over budget:\n" + "\n".join(faults))


main()
