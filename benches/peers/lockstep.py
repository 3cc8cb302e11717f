"""Routed answers: our server against the lock-step PyTorch loop of `lockstep_torch.py`, the same decisions and threads."""

import asyncio
import json
import os
import subprocess

import workload
from machine import Meter
from routed import FRACTION, PROMPT, Ours, summary, warm_up

# One thread per model is what the others have; the loop runs one model at a time, so it gets both.
THREADS = 2


class Loop:
    """The process with the loop."""

    def __init__(self, python, folders, dtype):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lockstep_torch.py")
        command = [python, script, *folders, dtype, str(THREADS), str(FRACTION)]
        quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore"}
        env = {**os.environ, **quiet, "OMP_WAIT_POLICY": "passive"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.about = self._read()

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the lock-step loop ended")
        return json.loads(line)

    async def once(self, prompts, tokens):
        """One batch."""
        meter = Meter({"loop": self.process.pid})
        self.process.stdin.write(json.dumps({"prompts": prompts, "out": tokens}) + "\n")
        self.process.stdin.flush()
        found = await asyncio.to_thread(self._read)
        metered = meter.stop()
        marks = [[(at, i + 1) for i, at in enumerate(found["marks"])]] * len(prompts)
        writers = [[found["large_share"] * tokens]] * len(prompts)
        sample = summary(marks, writers, tokens, metered | {"wall_s": found["wall_s"]}, ["loop"])
        return sample | {"large_steps": found["large_steps"], "ids": []}

    def close(self):
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


async def run(env, small, large, cases):
    """All cells of one pair; `cases` are (clients, tokens)."""
    folders = [env.checkpoint(name)[1] for name in (small, large)]
    per_slot = PROMPT + max(tokens for _, tokens in cases) + 32
    with env.ours([small, large], per_slot, FRACTION) as server:
        sides = {"ours": Ours(server), "lock-step": Loop(env.args.torch, folders, env.args.torch_dtype)}
        try:
            await warm_up(env, sides, max(clients for clients, _ in cases))
            for clients, tokens in cases:
                cell = env.cell("lock-step", pair=f"{small}+{large}", clients=clients, out=tokens)
                cell.notes |= sides["lock-step"].about | {"dtype": env.args.torch_dtype}
                await env.repeat(cell, sides, lambda side, seed, n=clients, t=tokens: once(side, seed, n, t))
        finally:
            for side in sides.values():
                side.close()


async def once(side, seed, clients, tokens):
    """One closed-loop run of either side; the answers are not compared, since PyTorch's numerics differ."""
    found = await side.once([workload.prompt(seed * 1000 + i, PROMPT) for i in range(clients)], tokens)
    found.pop("ids")
    return found
