#!/usr/bin/env python3
"""Talk to a running server with the official openai package. Exit status 0 when everything is as a user expects.

    pip install -r tests/clients/requirements.txt
    python tests/clients/openai_stream.py http://127.0.0.1:8000/v1 [--prompt TEXT] [--expect TEXT]

--expect TEXT: the chat answer must contain TEXT.
"""

import argparse
import sys

import openai

ENDS = ("stop", "length")


def check(ok, message):
    if not ok:
        sys.exit(f"FAILED: {message}")


def check_usage(usage, where):
    check(usage is not None, f"{where}: no usage")
    check(usage.prompt_tokens > 0, f"{where}: prompt_tokens is {usage.prompt_tokens}")
    check(usage.completion_tokens > 0, f"{where}: completion_tokens is {usage.completion_tokens}")
    total = usage.prompt_tokens + usage.completion_tokens
    check(usage.total_tokens == total, f"{where}: total_tokens is {usage.total_tokens}, the parts add up to {total}")


def models(client):
    names = [m.id for m in client.models.list()]
    check(names, "no model is listed")
    for name in names:
        check(client.models.retrieve(name).id == name, f"models.retrieve({name!r}) gave another id")
    print("models:", ", ".join(names))
    return names


def chat(client, ask):
    answer = client.chat.completions.create(**ask)
    choice = answer.choices[0]
    check(answer.object == "chat.completion", f"chat: object is {answer.object!r}")
    check(choice.message.role == "assistant", f"chat: role is {choice.message.role!r}")
    check(choice.message.content, "chat: empty answer")
    check(choice.finish_reason in ENDS, f"chat: finish_reason is {choice.finish_reason!r}")
    check_usage(answer.usage, "chat")
    return choice.message.content, choice.finish_reason, answer.usage


def chat_stream(client, ask, whole):
    """Every chunk as it comes; the joined text must equal the answer that came in one piece."""
    text, role, reason, usage, ids, pieces = "", None, None, None, set(), 0
    for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        check(chunk.object == "chat.completion.chunk", f"stream: object is {chunk.object!r}")
        check(usage is None, "stream: a chunk after the usage chunk")
        ids.add((chunk.id, chunk.created, chunk.model))
        if chunk.usage is not None:
            check(not chunk.choices, "stream: the usage chunk has choices")
            usage = chunk.usage
            continue
        (choice,) = chunk.choices
        check(reason is None, "stream: a chunk after the finish_reason")
        reason, role = choice.finish_reason, role or choice.delta.role
        if choice.delta.content:
            text += choice.delta.content
            pieces += 1
    check(len(ids) == 1, f"stream: id, created and model change on the way: {ids}")
    check(role == "assistant", f"stream: role is {role!r}")
    check(reason in ENDS, f"stream: finish_reason is {reason!r}")
    check_usage(usage, "stream")
    check((text, reason, usage.completion_tokens) == (whole[0], whole[1], whole[2].completion_tokens),
          f"stream and whole answer differ:\n{text!r} {reason} {usage}\n{whole[0]!r} {whole[1]} {whole[2]}")
    check(pieces > 1, "stream: the whole text came in one chunk")
    print(f"chat, streamed in {pieces} pieces, ended by {reason}: {text!r}")


def stream_without_usage(client, ask):
    for chunk in client.chat.completions.create(**ask, stream=True):
        check(chunk.choices, "stream without include_usage: a chunk without choices")


def closed_stream(client, ask):
    """Walk away after two chunks; the next request must not notice."""
    stream = client.chat.completions.create(**{**ask, "max_tokens": 1000}, stream=True)
    for _, _ in zip(range(2), stream):
        pass
    stream.close()
    chat(client, ask)


def completion(client, name):
    ask = dict(model=name, prompt="In January Max has 12 apples. In February Max picks 20", max_tokens=8, temperature=0)
    answer = client.completions.create(**ask)
    check(answer.object == "text_completion", f"completion: object is {answer.object!r}")
    choice = answer.choices[0]
    check(choice.finish_reason in ENDS, f"completion: finish_reason is {choice.finish_reason!r}")
    check_usage(answer.usage, "completion")
    check(answer.usage.completion_tokens <= 8, "completion: longer than max_tokens")
    streamed = "".join(c.text for part in client.completions.create(**ask, stream=True) for c in part.choices)
    check(streamed == choice.text, f"completion: stream and whole differ: {streamed!r}, {choice.text!r}")
    ids = client.completions.create(**{**ask, "prompt": [1, 2, 3]})
    check(ids.usage.prompt_tokens == 3, f"completion from ids: prompt_tokens is {ids.usage.prompt_tokens}")
    print(f"completion: {choice.text!r}")


def refused(what, kind, status, call):
    try:
        call()
    except openai.APIStatusError as e:
        check(type(e) is kind, f"{what}: {type(e).__name__} instead of {kind.__name__}: {e}")
        check(e.status_code == status, f"{what}: status {e.status_code}")
        check(isinstance(e.body, dict) and e.body.get("message"), f"{what}: no message in the error body: {e.body!r}")
        print(f"{what}: {kind.__name__}: {e.body['message']}")
        return
    check(False, f"{what}: was accepted")


def errors(client, ask):
    create = client.chat.completions.create
    refused("negative temperature", openai.BadRequestError, 400, lambda: create(**{**ask, "temperature": -1}))
    refused("max_tokens of the wrong type", openai.BadRequestError, 400, lambda: create(**{**ask, "max_tokens": "many"}))
    refused("no messages", openai.BadRequestError, 400, lambda: create(**{**ask, "messages": []}))
    refused("bad value in a stream", openai.BadRequestError, 400, lambda: create(**{**ask, "top_p": 7}, stream=True))
    refused("unknown model", openai.NotFoundError, 404, lambda: create(**{**ask, "model": "no-such-model"}))
    refused("unknown model, retrieve", openai.NotFoundError, 404, lambda: client.models.retrieve("no-such-model"))


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("base_url", help="with /v1 at its end")
    args.add_argument("--prompt", default="In January Max has 12 apples. In February Max picks 80 apples. In March Max loses 69 apples. How many apples does Max have?")
    args.add_argument("--expect")
    args = args.parse_args()
    client = openai.OpenAI(base_url=args.base_url, api_key="none", max_retries=0, timeout=60)
    try:
        name = models(client)[0]
        ask = dict(model=name, messages=[dict(role="user", content=args.prompt)], max_tokens=300, temperature=0)
        whole = chat(client, ask)
        check(args.expect is None or args.expect in whole[0], f"{args.expect!r} is not in the answer {whole[0]!r}")
        chat_stream(client, ask, whole)
        stream_without_usage(client, ask)
        closed_stream(client, ask)
        completion(client, name)
        errors(client, ask)
    except openai.OpenAIError as e:
        sys.exit(f"FAILED: {type(e).__name__}: {e}")
    print(f"openai {openai.__version__}: all as expected")


if __name__ == "__main__":
    main()
