#!/usr/bin/env python3
"""What users of the official openai package meet beside a plain answer. Exit status 0 when all is as they expect.

    pip install -r tests/clients/requirements.txt
    python tests/clients/openai_suite.py extras   http://127.0.0.1:8000/v1
    python tests/clients/openai_suite.py retries  http://127.0.0.1:8000/v1    # max_running = 1, max_waiting = 1
    python tests/clients/openai_suite.py failures http://127.0.0.1:8000/v1 --poison ID

extras: fields that the package does not know, request ids, several choices, ids as a prompt.
retries: a full queue is RateLimitError with Retry-After, and the package's own retries get through once there is room.
failures: after token ID the model has no numbers; a stream ends in APIError, a whole answer in InternalServerError,
and neither is asked again.
"""

import argparse
import sys
import threading
import time
import urllib.request

import openai

PROMPT = "In January Max has 12 apples. In February Max picks 80 apples. How many apples does Max have?"


def check(ok, message):
    if not ok:
        sys.exit(f"FAILED: {message}")


def client(url, retries=0, **more):
    return openai.OpenAI(base_url=url, api_key="none", max_retries=retries, timeout=120, **more)


def counter(url, name):
    """The sum of a metric over its labels."""
    page = urllib.request.urlopen(url.removesuffix("/v1") + "/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name + "{"))


def extras(url):
    c = client(url)
    ask = dict(model=c.models.list().data[0].id, messages=[dict(role="user", content=PROMPT)], max_tokens=60, temperature=0)
    create = c.chat.completions.create

    answer = create(**ask, extra_body={"token_routing": {"return": "tokens"}, "return_token_ids": True, "top_k": 5})
    routing, choice = answer.model_extra["token_routing"], answer.choices[0]
    written = sum(m["committed_tokens"] for m in routing["models"])
    check(written == answer.usage.completion_tokens, f"extras: {routing} and {answer.usage}")
    writers, ids = choice.model_extra["token_routing"]["model_index"], choice.model_extra["token_ids"]
    check(len(writers) == len(ids) == written, f"extras: {len(writers)} writers, {len(ids)} ids, {written} tokens")
    check(0 < sum(writers) < written, f"extras: both models write: {writers}")
    print(f"extra_body: {written} tokens, {sum(writers)} of them by the large model, {routing['switches']} handoffs")

    seen = []
    for chunk in create(**ask, stream=True, extra_body={"token_routing": {"return": "tokens"}}):
        for part in chunk.choices:
            seen += (part.model_extra.get("token_routing") or {}).get("model_index", [])
        last = chunk
    check(seen == writers, f"stream extras: {seen} instead of {writers}")
    check(last.model_extra.get("token_routing", {}).get("algorithm") == routing["algorithm"], "stream: no summary at the end")

    named = create(**ask, extra_headers={"x-request-id": "client-7"})
    check(named._request_id == "client-7", f"request id: {named._request_id!r}")
    check(answer._request_id, "request id: none was made")
    raw = c.chat.completions.with_raw_response.create(**ask)
    check(raw.headers.get("x-token-routing") == routing["algorithm"], f"x-token-routing: {dict(raw.headers)}")
    print(f"request ids: {answer._request_id!r} made, {named._request_id!r} kept")

    several = create(**{**ask, "temperature": 1}, n=3, seed=5)
    again = create(**{**ask, "temperature": 1}, n=3, seed=5)
    texts = [c.message.content for c in several.choices]
    check(texts == [c.message.content for c in again.choices] and len(set(texts)) > 1, f"n and seed: {texts}")
    check([c.index for c in several.choices] == [0, 1, 2], "n: the indices")
    print(f"n = 3 under one seed: {len(set(texts))} texts, the same twice")

    scored = create(**ask, logprobs=True, top_logprobs=2)
    entries = scored.choices[0].logprobs.content
    check(len(entries) == scored.usage.completion_tokens, f"{len(entries)} log-probabilities, {scored.usage}")
    check(all(e.logprob <= 0 and len(e.top_logprobs) == 2 for e in entries), "log-probabilities and their lists")
    certain = sum(e.logprob > -0.01 for e in entries)
    print(f"log-probabilities: {len(entries)} entries, {certain} of them above -0.01")

    ids = c.completions.create(model=ask["model"], prompt=[[5, 6, 7], [8]], max_tokens=3, temperature=0)
    check(len(ids.choices) == 2 and ids.usage.prompt_tokens == 4, f"ids as prompts: {ids.usage}")
    null = create(**ask, extra_body={"logprobs": None, "stop": None, "seed": None, "tools": None, "user": "u", "store": True})
    check(null.choices[0].message.content == choice.message.content, "null means not given")
    for name, wrong in [("token_routing", {"thresold": 1}), ("best_of", 2)]:
        try:
            create(**ask, extra_body={name: wrong})
            check(False, f"{name}={wrong} was accepted")
        except openai.APIStatusError as e:
            check(e.status_code in (400, 422) and name in e.body["message"], f"{name}: {e}")
            print(f"{name}={wrong}: {type(e).__name__}: {e.body['message']}")


def retries(url):
    c = client(url)
    name = c.models.list().data[0].id
    ask = dict(model=name, prompt=PROMPT, temperature=0)
    long = dict(max_tokens=2000, extra_body={"ignore_eos": True})
    held = [c.completions.create(**ask, **long, stream=True)]
    next(iter(held[0]))
    # The second one waits: its stream has not begun, so it is asked for on a thread.
    waiting = threading.Thread(target=lambda: held.append(client(url).completions.create(**ask, **long, stream=True)), daemon=True)
    waiting.start()
    until = time.monotonic() + 60
    while counter(url, "vllm:num_requests_waiting") < 1:
        check(time.monotonic() < until, "nobody waits")
        time.sleep(0.02)
    refusal = None
    try:
        c.completions.create(**ask, max_tokens=1)
        check(False, "a full queue refuses nobody")
    except openai.RateLimitError as e:
        refusal = e
    after = refusal.response.headers.get("retry-after")
    check(after is not None and int(after) >= 1, f"Retry-After: {after!r}")
    check(refusal.body["code"] == "queue_full" and refusal.body["type"] == "rate_limit_error", f"body: {refusal.body}")
    print(f"full: {type(refusal).__name__}, Retry-After {after}: {refusal.body['message']}")

    # Room comes while the package waits for its second try.
    threading.Timer(0.3, lambda: [stream.close() for stream in held]).start()
    began = time.monotonic()
    answer = client(url, retries=4).completions.create(**ask, max_tokens=4)
    waited = time.monotonic() - began
    check(answer.usage.completion_tokens > 0, "no answer after a retry")
    check(waited >= 0.9, f"the package waited {waited:.2f} s, though it was told to wait a second")
    print(f"with retries: answered after {waited:.1f} s")


def failures(url, poison):
    ask = dict(model=client(url).models.list().data[0].id, prompt=[poison], max_tokens=20, temperature=0)
    c = client(url, retries=2)
    text = ""
    try:
        for chunk in c.completions.create(**ask, stream=True):
            text += chunk.choices[0].text
        check(False, f"a broken stream ended as if it were whole: {text!r}")
    except openai.APIError as e:
        check(not isinstance(e, openai.APIStatusError), f"mid-stream: {type(e).__name__}")
        check(e.message and text, f"mid-stream: {e!r} after {text!r}")
        print(f"mid-stream, after {text!r}: {type(e).__name__}: {e.message}")
    before = counter(url, "vllm:request_success_total")
    try:
        c.completions.create(**ask)
        check(False, "an answer without numbers was given out")
    except openai.InternalServerError as e:
        check(e.status_code == 500 and e.body["type"] == "server_error", f"whole: {e}")
        print(f"whole: {type(e).__name__}: {e.body['message']}")
    tries = counter(url, "vllm:request_success_total") - before
    check(tries == 1, f"a request that cannot succeed was tried {tries:.0f} times")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("part", choices=["extras", "retries", "failures"])
    args.add_argument("base_url", help="with /v1 at its end")
    args.add_argument("--poison", type=int, default=0)
    args = args.parse_args()
    try:
        match args.part:
            case "extras":
                extras(args.base_url)
            case "retries":
                retries(args.base_url)
            case "failures":
                failures(args.base_url, args.poison)
    except openai.OpenAIError as e:
        sys.exit(f"FAILED: {type(e).__name__}: {e}")
    print(f"openai {openai.__version__}, {args.part}: all as expected")


if __name__ == "__main__":
    main()
