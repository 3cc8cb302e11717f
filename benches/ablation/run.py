#!/usr/bin/env python3
"""The paper's ablation on our own engine, beside what the simulator predicts from step times measured on this machine.

    python run.py --tokenrouter BINARY --config pair.toml [--out FILE.json] [--quick]

Step-sync, eager, delayed batching, the same with hold, and handoff by re-admission, at N = 4, 8 and 16 clients in a
closed loop. docs/bench.md says how to read the table. Standard library only.
"""

import argparse
import os
import tempfile

import engine
import simulator
import table

# More attempts than that many per wanted repeat are not made on a noisy machine.
ATTEMPTS = 3
# Answers of a client before the window, and the part of a window that re-admission gets. Answers are staggered, so that
# a window sees every part of an answer.
WARM_UP = {"resume": 0.5, "readmit": 0.25}
PART = {"resume": 1.0, "readmit": 0.25}
# Re-admission feeds every context anew at every handoff: dozens of times slower, so one policy shows it.
READMITTED = ["eager"]


class Cell:
    """One line of the table: a policy under one handoff and number of clients, and its repeats."""

    def __init__(self, name, policy, handoff, clients, args):
        self.name, self.policy, self.handoff, self.clients = name, policy, handoff, clients
        self.tokens = max(round(args.answers * PART[handoff] * args.answer * clients), 1)
        self.warm_answers = max(round(WARM_UP[handoff] * clients), 1)
        # Staggered answers of a length end one after another: the n-th end comes after n shares of one of each client.
        self.warm_tokens = self.warm_answers * args.answer
        self.runs, self.discarded, self.predicted, self.explained = [], [], None, None

    def take(self, run):
        """A repeat, or one that others disturbed."""
        (self.discarded if run["repeats"][0]["discarded"] else self.runs).append(run)

    def counted(self):
        """Repeats that count; without any, all there are."""
        return self.runs or self.discarded


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenrouter", required=True, help="our binary")
    parser.add_argument("--config", required=True, help="a pair under the router `fixed`")
    parser.add_argument("--out", help="everything measured, as JSON; written anew after every repeat")
    parser.add_argument("--profile", help="step times of an earlier run; without it they are measured first")
    parser.add_argument("--clients", default="4,8,16", help="N,N,...")
    parser.add_argument("--readmit-clients", help="N,N,... for re-admission alone; `none` leaves it out")
    parser.add_argument("--repeats", type=int, default=5, help="that count, of every cell")
    parser.add_argument("--max-foreign", type=float, default=10.0, help="percent; a repeat with more is discarded")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--answers", type=float, default=2.0, help="a window has so many answers of every client")
    parser.add_argument("--vocab", type=int, default=49152, help="ids of prompts are below this")
    parser.add_argument("--profile-rounds", type=int, default=7)
    parser.add_argument("--profile-sample-ms", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=24, help="runs of the simulator per cell")
    parser.add_argument("--quick", action="store_true", help="a smoke run: one repeat whatever the noise, N = 4")
    args = parser.parse_args()
    if args.quick:
        args.clients, args.repeats, args.max_foreign, args.profile_rounds = "4", 1, 100.0, 1
        args.profile_sample_ms, args.seeds = 30, 4
    args.clients = [int(n) for n in args.clients.split(",")]
    given = args.readmit_clients
    args.readmit_clients = [] if given == "none" else [int(n) for n in given.split(",")] if given else args.clients
    return args


def cells_of(args, sim):
    """The cells; the thresholds of delayed batching are the simulator's best ones above 1, which is eager."""
    found = []
    for clients in args.clients:
        delayed = sim.best("threshold", clients)
        hold = sim.best("threshold+hold", clients)
        policies = [("step-sync", "step-sync"), ("eager", "eager"), ("delayed", delayed), ("hold", hold)]
        found += [Cell(name, policy, "resume", clients, args) for name, policy in policies]
    for clients in args.readmit_clients:
        found += [Cell("readmit, " + name, name, "readmit", clients, args) for name in READMITTED]
    return found


def measure(args, server, cells):
    """Rounds over all cells, every other one backwards, until each has enough repeats."""
    for attempt in range(args.repeats * ATTEMPTS):
        left = [cell for cell in cells if len(cell.runs) < args.repeats]
        if not left:
            return
        for cell in left if attempt % 2 == 0 else reversed(left):
            cell.take(server.bench(cell, attempt))
            write(args, cells)


def write(args, cells):
    """Everything so far."""
    if args.out:
        table.write(args.out, cells, {"clients": args.clients, "prompt": args.prompt, "answer": args.answer})


def main():
    """Profile, predict, measure, explain, print."""
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        server = engine.Engine(args, folder)
        profile = args.profile or server.profile(os.path.join(folder, "profile.toml"))
        sim = simulator.Simulator(args, server.settings, profile, folder)
        cells = cells_of(args, sim)
        for cell in cells:
            cell.predicted = sim.predict(cell)
        measure(args, server, cells)
        for cell in cells:
            cell.explained = sim.predict(cell, table.step_factors(cell))
        if args.out:
            write(args, cells)
            server.keep(profile, args.out)
    print(table.text(cells))


if __name__ == "__main__":
    main()
