"""Standard serving of a routed pair (paper, section 5.1): one server per model, each asked for ONE token at a time,
and a dispatcher that decides after every token which server the request goes to next.

Everything that can be had is on the baseline's side: a slot of its own per request, so that the prompt cache always
matches; raw token ids, appended to the request as text; answers cut to the two fields that are read; a hand-written
keep-alive client. The coin is the one of our `fixed` router: when it asks for the large model, the small one's token is
dropped, the large one writes that token, and control returns.
"""

import asyncio
import time

import draw


class Tally:
    """What the calls to one server took."""

    def __init__(self):
        self.calls, self.wall, self.compute, self.fed = 0, 0.0, 0.0, 0

    def per_call(self):
        """Milliseconds of a call, those of them in which the server computed for it, and tokens it fed."""
        n = max(self.calls, 1)
        return {"call_ms": 1e3 * self.wall / n, "compute_ms": self.compute / n, "fed": self.fed / n}


async def step(connection, text, slot, tally):
    """One token from one server."""
    body = (
        f'{{"prompt":[{text}],"n_predict":1,"temperature":0,"ignore_eos":true,"cache_prompt":true,'
        f'"return_tokens":true,"id_slot":{slot},"response_fields":["tokens","timings"]}}'
    ).encode()
    began = time.perf_counter()
    got = await connection.post("/completion", body)
    timings = got["timings"]
    tally.calls += 1
    tally.wall += time.perf_counter() - began
    tally.compute += timings["prompt_ms"] + timings["predicted_ms"]
    tally.fed += timings["prompt_n"]
    return got["tokens"][0]


async def client(pair, slot, ids, tokens, fraction, tallies):
    """One request from its prompt to its end: arrivals of its tokens, who wrote them, and the tokens."""
    text, marks, writers, answer = ",".join(map(str, ids)), [], [], []
    fraction = draw.share(fraction)
    while len(answer) < tokens:
        # The coin is not asked before the small model: its token is what a router would look at.
        token = await step(pair[0], text, slot, tallies[0])
        large = draw.asks_large(slot, len(ids) + len(answer), fraction)
        if large:
            token = await step(pair[1], text, slot, tallies[1])
        text += f",{token}"
        answer.append(token)
        writers.append(int(large))
        marks.append((time.perf_counter(), len(answer)))
    return marks, writers, answer


async def serve(pairs, prompts, tokens, fraction):
    """A closed loop of one request per prompt; request i has seed i, as our own clients' have."""
    tallies = [Tally(), Tally()]
    requests = [client(pairs[i], i, ids, tokens, fraction, tallies) for i, ids in enumerate(prompts)]
    return await asyncio.gather(*requests), [t.per_call() for t in tallies]
