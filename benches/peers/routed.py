"""Routed answers: our server with the `fixed` router against standard serving on two llama-servers, the same decisions."""

import draw
import http_client
import servers
import standard
import workload
from machine import Meter
from single import Side

PROMPT = 100
FRACTION = 0.35


def quarters(streams):
    """tok/s by quarter of the answer, from each stream's first token on: the sum of the streams' own rates."""
    rates = [0.0] * 4
    for marks in streams:
        total = marks[-1][1]
        bounds = [max(total * k // 4, 1) for k in range(5)]
        times = [next(at for at, n in marks if n >= bound) for bound in bounds]
        for k in range(4):
            rates[k] += (bounds[k + 1] - bounds[k]) / max(times[k + 1] - times[k], 1e-9)
    return rates


def after_first(streams):
    """tok/s without the prompts: the sum of the streams' own rates from the first token to the last."""
    return sum((marks[-1][1] - marks[0][1]) / max(marks[-1][0] - marks[0][0], 1e-9) for marks in streams)


def summary(marks, writers, tokens, metered, servers_of):
    """One repeat: rates, processor time per committed token, the large model's share."""
    total = len(marks) * tokens
    rates = quarters(marks)
    cpu = {label: 1e3 * seconds / total for label, seconds in metered["cpu_s"].items()}
    return {
        "tok_s": total / metered["wall_s"],
        "after_first_tok_s": after_first(marks),
        "cpu_ms": sum(cpu[label] for label in servers_of),
        "client_cpu_ms": cpu["client"],
        "cpu_by_process_ms": cpu,
        "quarters_tok_s": rates,
        "last_over_first": rates[3] / rates[0],
        "large_share": sum(map(sum, writers)) / total,
        "foreign": metered["foreign"],
    }


class Ours:
    """Our server with the route `pair`."""

    def __init__(self, server):
        self.side = Side(server, workload.TokenRouter("pair"))

    async def once(self, prompts, tokens):
        """One closed-loop run; also checks that the decisions were the dispatcher's."""
        meter = Meter({"server": self.side.server.pid})
        recorded = await workload.send(self.side.open(len(prompts)), self.side.words, prompts, tokens)
        metered = meter.stop()
        answers = workload.read(self.side.words, recorded, tokens)
        for seed, got in enumerate(answers):
            if got.writers != draw.writers(seed, len(prompts[seed]), tokens, FRACTION):
                raise RuntimeError(f"request {seed} was routed otherwise than the dispatcher would")
        found = summary([a.marks for a in answers], [a.writers for a in answers], tokens, metered, ["server"])
        return found | {"ids": [a.ids for a in answers]}

    def close(self):
        """Close the connections."""
        self.side.close()


class Standard:
    """The dispatcher over two llama-servers."""

    def __init__(self, small, large):
        self.pids = {"small": small.pid, "large": large.pid}
        self.ports, self.pairs = (small.port, large.port), []

    async def once(self, prompts, tokens):
        """One closed-loop run."""
        while len(self.pairs) < len(prompts):
            self.pairs.append([http_client.Connection(port) for port in self.ports])
        meter = Meter(self.pids)
        runs, calls = await standard.serve(self.pairs, prompts, tokens, FRACTION)
        metered = meter.stop()
        found = summary([r[0] for r in runs], [r[1] for r in runs], tokens, metered, list(self.pids))
        return found | {"calls": calls, "ids": [r[2] for r in runs]}

    def close(self):
        """Close the connections."""
        for connection in [c for pair in self.pairs for c in pair]:
            connection.close()


def agreement(a, b):
    """Tokens at which two sets of answers first differ, as a share of their length; for information."""
    same = [next((i for i, (x, y) in enumerate(zip(p, q)) if x != y), len(p)) / len(p) for p, q in zip(a, b)]
    return sum(same) / len(same)


async def run(env, small, large, cases):
    """All cells of one pair, with every number of threads of the peer's servers; `cases` are (clients, tokens)."""
    for threads in env.args.peer_threads:
        await beside(env, small, large, cases, threads)


async def beside(env, small, large, cases, threads):
    """All cells of one pair beside two llama-servers with so many threads each."""
    slots = max(clients for clients, _ in cases)
    per_slot = PROMPT + max(tokens for _, tokens in cases) + 32
    small_gguf, large_gguf = env.checkpoint(small)[0], env.checkpoint(large)[0]
    with (
        env.ours([small, large], per_slot, FRACTION) as ours,
        servers.llama(env.llama, small_gguf, env.port(), slots, per_slot, threads) as llama_small,
        servers.llama(env.llama, large_gguf, env.port(), slots, per_slot, threads) as llama_large,
    ):
        sides = {"ours": Ours(ours), "standard serving": Standard(llama_small, llama_large)}
        try:
            await warm_up(env, sides, slots)
            for clients, tokens in cases:
                await one_case(env, sides, f"{small}+{large}", clients, tokens, threads)
        finally:
            for side in sides.values():
                side.close()


async def warm_up(env, sides, clients):
    """Some answers before anything counts: pages are touched, and our planner has seen steps of every size."""
    tokens = 8 if env.args.quick else 64
    for side in sides.values():
        await side.once([workload.prompt(10**6 + i, PROMPT) for i in range(1 if env.args.quick else clients)], tokens)


async def one_case(env, sides, pair, clients, tokens, threads):
    """One cell; the answers of both sides are compared and then dropped."""
    cell = env.cell("routed", pair=pair, clients=clients, out=tokens, peer_threads=threads)
    answers = {}

    async def once(side, seed):
        found = await side.once([workload.prompt(seed * 1000 + i, PROMPT) for i in range(clients)], tokens)
        answers.setdefault(seed, []).append(found.pop("ids"))
        return found

    await env.repeat(cell, sides, once)
    pairs = [two for two in answers.values() if len(two) == 2]
    cell.notes["answers_equal_up_to"] = sum(agreement(*two) for two in pairs) / max(len(pairs), 1)
