"""One request to either server, in each one's own words, and the closed-loop clients that send them."""

import asyncio
import json
import random

import http_client

# Ids below are special tokens of the shared vocabulary.
FIRST_ID, LAST_ID = 100, 49000


def prompt(seed, tokens):
    """Random token ids; equal seeds give both servers the same prompt."""
    rng = random.Random(seed)
    return [rng.randrange(FIRST_ID, LAST_ID) for _ in range(tokens)]


class Answer:
    """What a client saw: `marks` is a list of (arrival, tokens of the answer so far); `last` is the last event."""

    def __init__(self, marks, ids, writers, last):
        self.marks, self.ids, self.writers, self.last = marks, ids, writers, last

    @property
    def tokens(self):
        """Length of the answer."""
        return self.marks[-1][1]


class TokenRouter:
    """Requests to our server."""

    path = "/v1/completions"

    def __init__(self, model):
        self.model = model

    def body(self, ids, tokens, seed, stream=True):
        """A request for exactly `tokens` tokens, greedy."""
        fields = dict(model=self.model, prompt=ids, max_tokens=tokens, temperature=0, ignore_eos=True, seed=seed)
        fields |= dict(stream=stream, return_token_ids=True)
        if stream:
            fields |= dict(stream_options={"include_usage": True})
        if self.model == "pair":
            fields |= dict(token_routing={"return": "tokens"})
        return json.dumps(fields).encode()

    @staticmethod
    def answer(pieces):
        """What the events say; text held back for an unfinished character brings several tokens in one."""
        marks, ids, writers, last = [], [], [], {}
        for at, event in http_client.events(pieces):
            if event.get("error"):
                raise RuntimeError(str(event["error"]))
            for choice in event.get("choices", []):
                writers += (choice.get("token_routing") or {}).get("model_index", [])
                if new := choice.get("token_ids"):
                    ids += new
                    marks.append((at, len(ids)))
            last = event
        return Answer(marks, ids, writers, last)


class Llama:
    """Requests to llama-server."""

    path = "/completion"

    def body(self, ids, tokens, seed, stream=True, slot=-1, cache=False):
        """A request for exactly `tokens` tokens, greedy."""
        fields = dict(prompt=ids, n_predict=tokens, temperature=0, ignore_eos=True, cache_prompt=cache, id_slot=slot)
        fields |= dict(stream=stream, return_tokens=True, timings_per_token=stream, seed=seed)
        return json.dumps(fields).encode()

    @staticmethod
    def answer(pieces):
        """What the events say; each has the count of tokens so far."""
        marks, ids, last = [], [], {}
        for at, event in http_client.events(pieces):
            if event.get("error"):
                raise RuntimeError(str(event["error"]))
            count = event.get("timings", {}).get("predicted_n", 0)
            ids += event.get("tokens", [])
            if count and (not marks or count > marks[-1][1]):
                marks.append((at, count))
            last = event
        return Answer(marks, ids, [], last)


async def send(connections, words, prompts, tokens, on_first=None, on_end=None):
    """One request per connection, all at once; their recorded pieces in the same order."""

    async def one(i):
        first = (lambda: on_first(i)) if on_first else None
        pieces = await connections[i].stream(words.path, words.body(prompts[i], tokens, seed=i), first)
        if on_end:
            on_end(i)
        return pieces

    return await asyncio.gather(*[one(i) for i in range(len(prompts))])


def read(words, recorded, tokens):
    """The answers in recorded pieces; each must be as long as was asked."""
    answers = [words.answer(pieces) for pieces in recorded]
    for got in answers:
        if not got.marks or got.tokens != tokens:
            raise RuntimeError(f"asked for {tokens} tokens, got {got.marks[-1:]}: {got.last}")
    return answers
