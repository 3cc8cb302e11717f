"""Our binary: `serve --print-config`, `profile` and `bench`."""

import json
import os
import shutil
import subprocess
import sys
import tomllib

# Prompts are random, and some begin alike in two cells.
SETTINGS = ["--set", "budget.prefix_cache=false"]


def run(command, echo=False):
    """Standard output of a command that must succeed; what it says on the way goes to our standard error."""
    err = None if echo else subprocess.PIPE
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=err, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Engine:
    """A pair of the user's configuration."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        text = run([args.tokenrouter, "serve", "--config", args.config, "--print-config", *SETTINGS])
        self.settings = tomllib.loads(text)
        router = self.settings["router"]
        if router["name"] != "fixed" or len(self.settings["model"]) != 2:
            raise SystemExit(f"{args.config}: two models under the router `fixed` are needed, not `{router['name']}`")
        for model in self.settings["model"]:
            # What the server takes where nothing is stated.
            model["max_step_tokens"] = model["max_step_tokens"] or max(128, model["max_batch"])

    def profile(self, path):
        """Measures the steps, at the context that answers have in the middle."""
        args = self.args
        context = args.prompt + args.answer // 2
        # Re-admission feeds whole contexts, several in a step.
        longest = max(model["max_step_tokens"] for model in self.settings["model"])
        command = [args.tokenrouter, "profile", "--config", args.config, "--out", path, *SETTINGS]
        command += ["--context", str(context), "--contexts", "1024", "--extend", str(longest)]
        command += ["--rounds", str(args.profile_rounds), "--sample-ms", str(args.profile_sample_ms)]
        print(run(command, echo=True), file=sys.stderr, flush=True)
        return path

    def bench(self, cell, attempt):
        """One repeat of a cell: what `bench --json` says about it."""
        args = self.args
        path = os.path.join(self.folder, "bench.json")
        command = [args.tokenrouter, "bench", "--config", args.config, *SETTINGS, "--json", path]
        command += ["--policy", cell.policy, "--handoff", cell.handoff, "--clients", str(cell.clients)]
        command += ["--random-ids", "--vocab", str(args.vocab), "--seed", str(attempt + 1)]
        command += ["--prompt-tokens", str(args.prompt), "--answer-tokens", str(args.answer), "--repeats", "1"]
        command += ["--warm-up", str(cell.warm_answers), "--tokens", str(cell.tokens)]
        command += ["--max-foreign-cpu", str(args.max_foreign)]
        run(command, echo=True)
        with open(path, encoding="utf-8") as f:
            found = json.load(f)["runs"][0]
        if found["failed"] or found.get("preemptions"):
            raise SystemExit(f"{cell.name}: requests failed or were preempted; the simulator knows of neither")
        return found

    def keep(self, profile, out):
        """A copy of the step times beside the results."""
        target = os.path.splitext(out)[0] + "-profile.toml"
        if os.path.abspath(profile) != os.path.abspath(target):
            shutil.copyfile(profile, target)
