"""Each model alone: decode with one stream and with several, prefill, and decode steps over long contexts."""

import contextlib

import http_client
import servers
import workload
from machine import Meter

PROMPT = 64
# Bytes of keys and values per token of context: layers, heads, head size, two of them, two bytes each (f16).
KV_BYTES = {"smol": 30 * 3 * 64 * 4, "q06": 28 * 8 * 128 * 4, "tinyslm": 2 * 32 * 4, "tinyllm": 8 * 4 * 32 * 4}


class Side:
    """A running server, how it is asked, and open connections to it."""

    def __init__(self, server, words):
        self.server, self.words = server, words
        self.connections = []

    def open(self, count):
        """At least `count` connections, always the same ones first."""
        while len(self.connections) < count:
            self.connections.append(http_client.Connection(self.server.port))
        return self.connections[:count]

    def close(self):
        """Close all connections."""
        for connection in self.connections:
            connection.close()


class Window:
    """The stretch in which all of `streams` are decoding: from the last one's first token to the first one's end."""

    def __init__(self, side, streams):
        self.waiting, self.side, self.meter, self.result = streams, side, None, None

    def first(self, _):
        """A stream has its first token."""
        self.waiting -= 1
        if self.waiting == 0:
            self.meter = Meter({"server": self.side.server.pid})

    def end(self, _):
        """A stream has ended."""
        if self.meter and self.result is None:
            self.result = self.meter.stop()


async def decode(side, seed, streams, tokens, context=PROMPT):
    """Decode rate and processor time per token, prefill left out."""
    prompts = [workload.prompt(seed * 1000 + i, context) for i in range(streams)]
    whole, window = Meter({"server": side.server.pid}), Window(side, streams)
    recorded = await workload.send(side.open(streams), side.words, prompts, tokens, window.first, window.end)
    foreign = whole.stop()["foreign"]
    answers = workload.read(side.words, recorded, tokens)
    begin = max(a.marks[0][0] for a in answers)
    end = min(a.marks[-1][0] for a in answers)
    # Counted by arrival: what a client holds when the window opens and when it closes.
    counts = [sum(max((n for at, n in a.marks if at <= t), default=0) for a in answers) for t in (begin, end)]
    made = counts[1] - counts[0]
    if window.result is None or made <= 0:
        raise RuntimeError(f"{streams} streams of {tokens} tokens never decoded at the same time; ask for more tokens")
    wall = end - begin
    return {
        "tok_s": made / wall,
        "step_ms": 1e3 * wall * streams / made,
        "cpu_ms": 1e3 * window.result["cpu_s"]["server"] / made,
        "client_cpu_ms": 1e3 * window.result["cpu_s"]["client"] / made,
        "foreign": foreign,
    }


async def prefill(side, seed, tokens):
    """Tokens of a cold prompt per second, from the request to its first token."""
    ids = workload.prompt(seed * 7919 + tokens, tokens)
    body = side.words.body(ids, 1, seed, stream=False)
    (connection,) = side.open(1)
    meter = Meter({"server": side.server.pid})
    await connection.post(side.words.path, body)
    got = meter.stop()
    return {
        "tok_s": tokens / got["wall_s"],
        "cpu_ms": 1e3 * got["cpu_s"]["server"] / tokens,
        "foreign": got["foreign"],
    }


@contextlib.contextmanager
def pair_of_servers(env, model, tokens_per_slot, slots):
    """Our server and llama-server on the same weights, both running; only one is asked at a time."""
    gguf, _ = env.checkpoint(model)
    with (
        env.ours([model], tokens_per_slot) as ours,
        servers.llama(env.llama, gguf, env.port(), slots, tokens_per_slot) as llama,
    ):
        sides = {"ours": Side(ours, workload.TokenRouter(model)), "llama.cpp": Side(llama, workload.Llama())}
        try:
            yield sides
        finally:
            for side in sides.values():
                side.close()


async def run(env, model, decodes, prefills, contexts):
    """All cells of one model: `decodes` are (streams, tokens), `prefills` prompt lengths, `contexts` (context, tokens)."""
    longest = max([PROMPT + t for _, t in decodes] + [p + 1 for p in prefills] + [c + t for c, t in contexts])
    slots = max([streams for streams, _ in decodes], default=1)
    with pair_of_servers(env, model, longest + 32, slots) as sides:
        for side in sides.values():
            await decode(side, 999, 1, 8)
        for streams, tokens in decodes:
            cell = env.cell("decode", model=model, streams=streams, out=tokens)
            await env.repeat(cell, sides, lambda side, seed, n=streams, t=tokens: decode(side, seed, n, t))
        for tokens in prefills:
            cell = env.cell("prefill", model=model, tokens=tokens)
            await env.repeat(cell, sides, lambda side, seed, n=tokens: prefill(side, seed, n))
        for context, tokens in contexts:
            cell = env.cell("context", model=model, context=context, out=tokens)
            await env.repeat(cell, sides, lambda side, seed, c=context, t=tokens: decode(side, seed, 1, t, c))


def kv_rates(model, short, long, field):
    """GB/s of keys and values read beyond the shortest context: from the medians of two cells by side."""
    rates = {}
    for side in short.sides:
        more = long.params["context"] - short.params["context"]
        took = long.median(side, field) - short.median(side, field)
        rates[side] = more * KV_BYTES[model] / took / 1e6 if took > 0 else float("nan")
    return rates
