"""`tokenrouter simulate` on the workload that `bench` measures."""

import json
import os
import statistics

import engine

# Tokens of a run that chooses a threshold.
LONG = 40_000
# A threshold is taken for better only beyond this: equal ones are told apart by luck.
MARGIN = 1.002


class Simulator:
    """The pair of the configuration on virtual devices with the times of a profile."""

    def __init__(self, args, settings, profile, folder):
        self.args, self.settings, self.profile = args, settings, profile
        self.file = os.path.join(folder, "scenario.toml")

    def _write(self, warm_up, tokens, factors):
        """The scenario: limits of the configuration, room without end, and factors on the step times."""
        lines = []
        for model in self.settings["model"]:
            lines += ["[[model]]", f'name = "{model["name"]}"']
            lines += [f"{key} = {model[key]}" for key in ("max_batch", "max_step_tokens")]
        for model, factor in zip(self.settings["model"], factors or []):
            lines += ["[[change]]", "at_s = 0", f'model = "{model["name"]}"', f"latency_factor = {factor}"]
        limits = self.settings["server"]
        lines += ["[router]", 'name = "fixed"', f"fraction = {self.settings['router']['fraction']}"]
        lines += ["[budget]", "tokens = 1_000_000", "prefix_cache = false", f"max_running = {limits['max_running']}"]
        lines += ["[workload]", 'arrivals = "closed"', "clients = 1", "staggered = true"]
        lines += [f"prompt = {self.args.prompt}", f"answer = {self.args.answer}"]
        lines += ["[run]", f"warm_up = {warm_up}", f"tokens = {tokens}"]
        with open(self.file, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")

    def _run(self, policies, handoff, clients, seed):
        command = [self.args.tokenrouter, "simulate", self.file, "--profile", self.profile, "--json"]
        command += ["--handoff", handoff, "--clients", str(clients), "--seed", str(seed)]
        for policy in policies:
            command += ["--policy", policy]
        return json.loads(engine.run(command))["runs"]

    def best(self, name, clients):
        """The best threshold of at least 2 for a policy; the smallest of those that are as good."""
        self._write(1_000, LONG, None)
        runs = self._run([f"{name}={b}" for b in range(2, clients + 1)], "resume", clients, 1)
        best = runs[0]
        for run in runs[1:]:
            if run["tokens_per_s"] > MARGIN * best["tokens_per_s"]:
                best = run
        return best["policy"]

    def predict(self, cell, factors=None):
        """The mean over seeds of the very window that is measured; with `factors`, at other step times."""
        self._write(cell.warm_tokens, cell.tokens, factors)
        runs = [self._run([cell.policy], cell.handoff, cell.clients, seed)[0] for seed in range(1, self.args.seeds + 1)]
        # Of rates over the same tokens, the mean time counts.
        rate = 1 / statistics.fmean(1 / run["tokens_per_s"] for run in runs)
        return {"tokens_per_s": rate, "models": models(runs)}


def models(runs):
    """Step time, rows, fed tokens and share of the time at work of each model, over runs of `simulate` or `bench`."""
    found = []
    for index, first in enumerate(runs[0]["models"]):
        parts = [run["models"][index] for run in runs]
        seconds = sum(run["seconds"] for run in runs)
        busy = sum(part["utilisation"] * run["seconds"] for part, run in zip(parts, runs))
        steps = max(sum(part["launches"] for part in parts), 1)
        found.append(
            {
                "name": first["name"],
                "step_ms": 1e3 * busy / steps,
                "rows": sum(part["rows"] for part in parts) / steps,
                "fed": sum(part["fed_tokens"] for part in parts) / steps,
                "busy": busy / seconds,
            }
        )
    return found
