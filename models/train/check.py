#!/usr/bin/env python3
"""Does transformers read a trained folder as model.py does? Logits and greedy answers of a few problems.

    python models/train/check.py DIR [--count 20]

Besides requirements.txt it needs transformers. Ends with an error when a logit differs by more than 1e-3, an arg-max
differs, or a greedy answer is another text.
"""

import argparse
import os

import generate
import torch
from evaluate import MAX_NEW, Runner
from transformers import AutoModelForCausalLM, AutoTokenizer

TOLERANCE = 1e-3


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("folder")
    args.add_argument("--count", type=int, default=20)
    args = args.parse_args()
    torch.set_num_threads(1)
    runner, folder = Runner([args.folder]), os.path.abspath(args.folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    problems = generate.problems("test", args.count)
    answers = runner.answers([p["prompt"] for p in problems], "alone", 0.0)
    largest = 0.0
    for problem, (ids, _) in zip(problems, answers):
        text = tokenizer.apply_chat_template([dict(role="user", content=problem["prompt"])], tokenize=False,
                                             add_generation_prompt=True)
        assert text == generate.render_prompt(problem["prompt"]), "the chat template"
        prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        assert prompt[0].tolist() == runner.tokenizer.encode(text).ids, "the tokenizer"
        whole = torch.cat([prompt, torch.tensor([ids])], 1)
        with torch.no_grad():
            a = runner.models[0].logits(runner.models[0].hidden(whole))
            b = theirs(whole).logits
            greedy = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=MAX_NEW)
        largest = max(largest, (a - b).abs().max().item())
        assert largest <= TOLERANCE and (a.argmax(-1) == b.argmax(-1)).all(), (problem["id"], largest)
        assert greedy[0, prompt.shape[1]:].tolist() == ids, problem["id"]
    print(f"{args.folder}: {len(problems)} greedy answers equal, logits within {largest:.1e}")


if __name__ == "__main__":
    main()
