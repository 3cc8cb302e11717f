"""Greedy tokens of SmolLM2-135M from transformers, in float32.

    python tests/golden/make_smollm2_golden.py [FOLDER]      (default: models/smollm2)

Tries all candidate prompts and keeps, per kind, the few whose path has the widest smallest margin between the two
best logits, so that another correct float32 computation picks the same tokens. A float64 pass (reference.py) must
pick them too, also with K and V rounded to f16 and to bf16. Writes smollm2.json.
"""

import hashlib
import json
import os
import sys

import ml_numbers as num
import numpy as np
import torch
import transformers
from reference import Reference, log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
NEW_TOKENS = 48
KEEP = {"chat": 3, "plain": 3, "long": 2}

CHAT = [
    [("user", "What is the capital of France?")],
    [("user", "Name three primary colours.")],
    [("system", "Answer in one short sentence."), ("user", "Why is the sky blue?")],
    [("user", "Write a two-line poem about rain.")],
    [("user", "Hello!"), ("assistant", "Hello! How can I help you today?"), ("user", "Tell me what a prime number is.")],
    [("user", "List the days of the week.")],
    [("user", "What is water made of?")],
]
PLAIN = [
    "Once upon a time, there was a",
    "The three states of matter are",
    "def fibonacci(n):\n    ",
    "The first ten letters of the alphabet are A, B, C,",
    "In the year 1969, humans first",
    "1, 2, 3, 4, 5, 6, 7, 8,",
    "Water boils at 100 degrees Celsius at sea level. At higher altitudes",
    "Dear Sir or Madam,\n\n",
]
STORY = (
    "Anna lives in a small house near the river. Every morning she walks to the market and buys bread, milk and six "
    "apples. On Monday it rained, so she took her red umbrella. At the market she met her friend Peter, who sells "
    "fish. Peter told her that the bridge would be closed until Friday, because two of its boards were broken. Anna "
    "thanked him and went home by the longer way, past the school and the old mill. In the evening she baked a cake "
    "with four of the apples and gave half of it to her neighbour."
)
LONG = [
    [("user", STORY + "\n\nWhat colour is the umbrella?")],
    [("user", STORY + "\n\nWhat does Peter sell?")],
    [("user", "Copy this text word by word:\n\n" + STORY)],
    [("user", STORY + "\n\nWhat did Anna bake?")],
    [("user", STORY), ("assistant", "A nice story."), ("user", "Who lives in a small house near the river?")],
]


def greedy(model, prompt, eos):
    ids, out, logprobs, margin, cache = torch.tensor([prompt]), [], [], float("inf"), None
    with torch.no_grad():
        while len(out) < NEW_TOKENS:
            step = model(ids, cache=cache, use_cache=True)
            cache, logits = step.cache, step.logits[0, -1]
            top = logits.topk(2)
            token = int(top.indices[0])
            margin = min(margin, float(top.values[0] - top.values[1]))
            logprobs.append(round(float(logits.double().log_softmax(-1)[token]), 6))
            out.append(token)
            if token == eos:
                break
            ids = torch.tensor([[token]])
    return out, logprobs, margin


def confirm(reference, case):
    """The largest log-probability difference per cache type; the tokens must be the same."""
    ids, start = case["output_ids"], len(case["prompt_ids"]) - 1
    out = {}
    for name, kv_round in (("float64", lambda x: x), ("kv_f16", num.round_f16), ("kv_bf16", num.round_bf16)):
        lp, _ = log_softmax(reference.logits(case["prompt_ids"] + ids[:-1], kv_round)[start:])
        assert (lp.argmax(-1) == ids).all(), (name, case)
        out[name] = float(f"{np.abs(lp[np.arange(len(ids)), ids] - case['output_logprobs']).max():.2g}")
    return out


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "..", "models", "smollm2")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    eos = model.config.eos_token_id
    cases = []
    for kind, candidates in (("chat", CHAT), ("plain", PLAIN), ("long", LONG)):
        found = []
        for text in candidates:
            case = dict(kind=kind)
            if kind != "plain":
                case["messages"] = [dict(role=r, content=c) for r, c in text]
                rendered = tokenizer.apply_chat_template(case["messages"], tokenize=False, add_generation_prompt=True)
            else:
                case["prompt"] = rendered = text
            case["prompt_ids"] = tokenizer(rendered, add_special_tokens=False).input_ids
            out, logprobs, margin = greedy(model, case["prompt_ids"], eos)
            case.update(output_ids=out, output_logprobs=logprobs, smallest_margin=round(margin, 4),
                        text=tokenizer.decode(out, skip_special_tokens=True))
            print(f"{margin:8.4f} {len(out):3d} {kind} {str(text)[-60:]!r} -> {case['text']!r}", flush=True)
            found.append(case)
        cases += sorted(found, key=lambda c: -c["smallest_margin"])[: KEEP[kind]]
    del model
    reference = Reference(folder)
    for case in cases:
        case["noise"] = confirm(reference, case)
    files = {f: sha256(os.path.join(folder, f)) for f in ("model.safetensors", "tokenizer.json")}
    golden = dict(
        made_with=dict(transformers=transformers.__version__, torch=torch.__version__.split("+")[0]),
        arithmetic="float32", files_sha256=files, new_tokens=NEW_TOKENS, eos_id=eos, cases=cases)
    num.write_json(os.path.join(HERE, "smollm2.json"), golden)


if __name__ == "__main__":
    main()
