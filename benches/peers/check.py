#!/usr/bin/env python3
"""Checks that both sides of the comparison compute the same thing.

    python check.py                                              the coin against values of the Rust code; the sums
    python check.py --tokenrouter B --llama B --checkpoints F    also the servers: weights, tokens, decisions

For each model: greedy answers of both servers to the same token ids, and how many tokens agree before the first
difference (the sums are rounded differently, so long answers part some day; random weights part sooner). For the pair:
our answer's writers are those that the dispatcher's coin says.
"""

import argparse
import asyncio
import os

import draw
import http_client
import report
import routed
import servers
import workload

# From `tokenrouter_scheduler::router::draw` and the `fixed` router: (seed, choice, position, purpose, model) -> draw.
KNOWN = [
    ((0, 0, 0, 1, 0), 0.44067791545896273),
    ((0, 0, 100, 1, 0), 0.4271858338729878),
    ((7, 0, 163, 1, 0), 0.366649991275239),
    ((7, 3, 163, 1, 0), 0.018431388080543898),
    ((7, 0, 163, 2, 0), 0.24468192454634363),
    ((7, 0, 163, 1, 1), 0.7011642731597612),
    ((18446744073709551615, 0, 4095, 1, 0), 0.028559056131608695),
    ((11400714819323198485, 0, 1, 1, 0), 0.8764001900548649),
]
# At least so many tokens of SmolLM2's answer, which has real weights, must agree.
SMOL_TOKENS = 8
TEXT_IDS = [504, 3575, 282, 4649, 314]  # "The capital of France is"


def check_coin():
    """The coin gives the Rust code's draws, and a share that is its own rounding."""
    for key, expected in KNOWN:
        got = draw.draw(*key)
        assert got == expected, f"draw{key} is {got!r}, the router's is {expected!r}"
    drawn = draw.writers(9, 1, 4000, 0.35)
    assert abs(sum(drawn) / 4000 - 0.35) < 0.03, sum(drawn)
    print(f"coin: {len(KNOWN)} draws agree")


def check_sums():
    """Rates by quarter, ratios, and the parsing of a stream that is cut anywhere."""
    marks = [(float(i), i) for i in range(1, 101)]
    faster = [(i / 2, i) for i in range(1, 101)]
    assert routed.quarters([marks, faster]) == [3.0] * 4 and routed.after_first([marks, faster]) == 3.0
    cell = report.Cell("decode", {"model": "m", "streams": 1})
    cell.pairs = [{"ours": dict(tok_s=r, cpu_ms=1), "peer": dict(tok_s=2, cpu_ms=r)} for r in (2, 8, 4)]
    assert cell.ratios("tok_s", True) == [1, 2, 4] and cell.ratios("cpu_ms", False) == [2, 4, 8]
    whole = b'HTTP/1.1 200 OK\r\nA: 0\r\n\r\n9\r\ndata: {"a":1}\n\n\r\nb\r\ndata: {"a":2}\n\n\r\n0\r\n\r\n'
    for cut in range(16, len(whole)):
        found = http_client.events([(1.0, whole[:cut]), (2.0, whole[cut:])])
        assert [event["a"] for _, event in found] == [1, 2], cut
    print("sums: rates, ratios and events as expected")


async def answer(port, words, ids, tokens):
    """The token ids of a greedy answer."""
    connection = http_client.Connection(port)
    pieces = await connection.stream(words.path, words.body(ids, tokens, seed=5))
    connection.close()
    return words.answer(pieces)


async def check_model(args, name):
    """Both servers on one checkpoint."""
    folder = f"{args.checkpoints}/{name}"
    ours = servers.tokenrouter(args.tokenrouter, [(name, folder)], args.port, 256, "4GiB")
    with ours, servers.llama(args.llama, f"{folder}.gguf", args.port + 1, 1, 256) as llama:
        for ids in (TEXT_IDS, workload.prompt(3, 40)):
            a = (await answer(ours.port, workload.TokenRouter(name), ids, args.tokens)).ids
            b = (await answer(llama.port, workload.Llama(), ids, args.tokens)).ids
            same = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            print(f"{name}, prompt of {len(ids)}: {same} of {args.tokens} tokens agree", flush=True)
            if name == "smol" and ids is TEXT_IDS:
                assert same >= min(SMOL_TOKENS, args.tokens), f"{a} and {b}"
            else:
                assert same >= 1, f"not even the first token: {a[:3]} and {b[:3]}"


async def check_routing(args):
    """Who wrote what on our server, for several seeds."""
    models = [(name, f"{args.checkpoints}/{name}") for name in ("tinyslm", "tinyllm")]
    with servers.tokenrouter(args.tokenrouter, models, args.port + 2, 512, "2GiB", 0.35) as ours:
        words = workload.TokenRouter("pair")
        for seed in range(3):
            connection = http_client.Connection(ours.port)
            body = words.body(workload.prompt(seed, 20), 200, seed)
            got = words.answer(await connection.stream(words.path, body))
            connection.close()
            assert got.writers == draw.writers(seed, 20, 200, 0.35), f"seed {seed}"
    print("pair: 600 decisions agree")


async def check_servers(args):
    """Everything that needs them."""
    await check_routing(args)
    for name in args.models:
        await check_model(args, name)


def main():
    """Run what the arguments allow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenrouter")
    parser.add_argument("--llama")
    parser.add_argument("--checkpoints")
    parser.add_argument("--models", default=["tinyslm", "tinyllm", "smol", "q06"], type=lambda s: s.split(","))
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--port", type=int, default=18190)
    args = parser.parse_args()
    args.checkpoints = args.checkpoints and os.path.abspath(args.checkpoints)
    check_coin()
    check_sums()
    if args.tokenrouter and args.llama and args.checkpoints:
        asyncio.run(check_servers(args))


if __name__ == "__main__":
    main()
