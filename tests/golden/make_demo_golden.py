"""Greedy tokens of the demo pair from transformers, in float32: each model alone, and routed by R-Stitch.

    python tests/golden/make_demo_golden.py [PROBLEMS]      (how many of eval.jsonl to run; default 300; the stored file: 120)

R-Stitch with threshold tau: the small model writes while its normalised entropy H / ln V is at most tau. Above, its
candidate is dropped, the large model writes that position and keeps control until its own normalised entropy is at
most tau; that token is kept too, and the small model goes on. An end-of-text token that is kept ends the answer.

Both models read every kept token at once here, which gives the same result as reading them when control arrives.
Writes demo.json with a few of the problems: those whose decisions lie furthest from a tie. For these, a float64 pass
(reference.py) must agree with every token and every decision, also with K and V rounded to f16 and to bf16.
"""

import hashlib
import json
import math
import os
import re
import sys

import ml_numbers as num
import numpy as np
import torch
import transformers
from reference import Reference, log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(HERE, "..", "..", "models", "demo")
TAU = 0.03
MAX_NEW = 220
PLAIN_CASES, RESCUED_CASES = 20, 10
SMALL, LARGE = 0, 1
BUILT_IN = "test-17"  # the demo's own prompt: the small model alone gets it wrong, the routed pair right


class Reader:
    """One model and its cache for one sequence."""

    def __init__(self, model, prompt):
        self.model, self.cache = model, None
        self.read(prompt)

    def read(self, ids):
        with torch.no_grad():
            step = self.model(torch.tensor([ids]), cache=self.cache, use_cache=True)
        self.cache, self.logits = step.cache, step.logits[0, -1].double()

    def best(self):
        top = self.logits.topk(2)
        return int(top.indices[0]), float(top.values[0] - top.values[1])

    def entropy(self):
        lp = self.logits.log_softmax(-1)
        return float(-(lp.exp() * lp).sum()) / math.log(len(lp))


def alone(model, prompt, eos):
    reader, ids, margin = Reader(model, prompt), [], math.inf
    while len(ids) < MAX_NEW:
        token, gap = reader.best()
        ids.append(token)
        margin = min(margin, gap)
        if token in eos:
            break
        reader.read([token])
    return dict(ids=ids, smallest_margin=round(margin, 4))


def routed(models, prompt, eos):
    readers = [Reader(m, prompt) for m in models]
    ids, writers, dropped, handoffs = [], [], 0, 0
    margin, distance, owner = math.inf, math.inf, SMALL
    while len(ids) < MAX_NEW:
        if owner == SMALL:
            h = readers[SMALL].entropy()
            distance = min(distance, abs(h - TAU))
            if h > TAU:
                owner, dropped, handoffs = LARGE, dropped + 1, handoffs + 1
        token, gap = readers[owner].best()
        margin = min(margin, gap)
        ids.append(token)
        writers.append(owner)
        if token in eos:
            break
        if owner == LARGE:
            h = readers[LARGE].entropy()
            distance = min(distance, abs(h - TAU))
            if h <= TAU:
                owner, handoffs = SMALL, handoffs + 1
        for r in readers:
            r.read([token])
    return dict(ids=ids, writers="".join(map(str, writers)), llm_tokens=sum(writers), dropped=dropped,
                handoffs=handoffs, smallest_margin=round(margin, 4), smallest_entropy_distance=round(distance, 5))


def confirmed(references, case, kv_round):
    """Does a float64 pass over prompt and answer pick the same tokens and the same writers?"""
    start = len(case["prompt_ids"]) - 1
    logits = lambda r, ids: r.logits(case["prompt_ids"] + ids[:-1], kv_round)[start:]
    for reference, name in zip(references, ("slm", "llm")):
        if (logits(reference, case[name]["ids"]).argmax(-1) != case[name]["ids"]).any():
            return False
    ids, writers, owner = case["routed"]["ids"], "", SMALL
    both = [logits(r, ids) for r in references]
    entropy = [-(np.exp(lp) * lp).sum(-1) / math.log(lp.shape[1]) for lp, _ in map(log_softmax, both)]
    for t, token in enumerate(ids):
        if owner == SMALL and entropy[SMALL][t] > TAU:
            owner = LARGE
        if both[owner][t].argmax() != token:
            return False
        writers += str(owner)
        if owner == LARGE and entropy[LARGE][t] <= TAU:
            owner = SMALL
    return writers == case["routed"]["writers"]


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    folder = lambda name: os.path.join(DEMO, name)
    tokenizer = AutoTokenizer.from_pretrained(folder("slm"))
    models = [AutoModelForCausalLM.from_pretrained(folder(n), dtype=torch.float32, attn_implementation="eager").eval()
              for n in ("slm", "llm")]
    with open(folder(os.path.join("slm", "generation_config.json"))) as f:
        eos = json.load(f)["eos_token_id"]
    with open(os.path.join(DEMO, "eval.jsonl")) as f:
        problems = [json.loads(line) for line in f][:count]

    cases, right, llm_tokens, tokens = [], dict(slm=0, llm=0, routed=0), 0, 0
    for p in problems:
        rendered = tokenizer.apply_chat_template([dict(role="user", content=p["prompt"])], tokenize=False,
                                                 add_generation_prompt=True)
        prompt = tokenizer(rendered, add_special_tokens=False).input_ids
        case = dict(id=p["id"], prompt=p["prompt"], answer=p["answer"], prompt_ids=prompt,
                    slm=alone(models[SMALL], prompt, eos), llm=alone(models[LARGE], prompt, eos),
                    routed=routed(models, prompt, eos))
        for name in right:
            answer = case[name]
            answer["text"] = tokenizer.decode(answer["ids"], skip_special_tokens=True)
            found = re.search(r"</think>\s*The answer is (\d+)\.$", answer["text"])
            answer["right"] = bool(found) and found.group(1) == p["answer"]
            right[name] += answer["right"]
        llm_tokens += case["routed"]["llm_tokens"]
        tokens += len(case["routed"]["ids"])
        cases.append(case)
    n = len(cases)
    print({k: f"{v}/{n} {100 * v / n:.1f} %" for k, v in right.items()}, f"large model: {100 * llm_tokens / tokens:.1f} % of tokens")

    # how far the closest decision of a case is from going the other way
    def safety(c):
        r = c["routed"]
        return min(r["smallest_margin"] / 10, r["smallest_entropy_distance"], c["slm"]["smallest_margin"] / 10,
                   c["llm"]["smallest_margin"] / 10)

    rescued = [c for c in cases if c["routed"]["right"] and not c["slm"]["right"]
               and 0 < c["routed"]["llm_tokens"] < len(c["routed"]["ids"])]
    print(len(rescued), "of", n, "are wrong with the small model alone and right when routed")
    rescued = sorted(rescued, key=lambda c: -safety(c))[:RESCUED_CASES]
    plain = sorted((c for c in cases if c not in rescued), key=lambda c: -safety(c))[:PLAIN_CASES]
    for c in rescued:
        r = c["routed"]
        print(c["id"], f"safety {safety(c):.4f}", f"tokens {len(r['ids'])}, large {r['llm_tokens']}, handoffs {r['handoffs']}",
              "large model right" if c["llm"]["right"] else "LARGE MODEL WRONG")
    references = [Reference(folder(name)) for name in ("slm", "llm")]
    for c in plain + rescued:
        for kv_round in (lambda x: x, num.round_f16, num.round_bf16):
            assert confirmed(references, c, kv_round), c["id"]
    assert BUILT_IN in [c["id"] for c in rescued], "choose one of the problems above"
    order = {p["id"]: i for i, p in enumerate(problems)}
    chosen = sorted(plain + rescued, key=lambda c: order[c["id"]])
    golden = dict(
        made_with=dict(transformers=transformers.__version__, torch=torch.__version__.split("+")[0]),
        arithmetic="float32",
        files_sha256={f"{m}/model.safetensors": sha256(folder(os.path.join(m, "model.safetensors"))) for m in ("slm", "llm")},
        threshold=TAU, max_new_tokens=MAX_NEW, eos_ids=eos,
        measured=dict(problems=n, right=right, large_token_share=round(llm_tokens / tokens, 4)),
        plain=[c["id"] for c in chosen if c in plain], rescued=[c["id"] for c in chosen if c in rescued],
        built_in=BUILT_IN, cases=chosen)
    num.write_json(os.path.join(HERE, "demo.json"), golden)


if __name__ == "__main__":
    main()
