#!/usr/bin/env python3
"""The demo pair's tokenizer: byte-level BPE with Qwen2's split pattern, single digits and NFC; 455 tokens.

    python models/train/tokenizer.py --out DIR

Writes tokenizer.json, tokenizer_config.json (with the chat template) and generation_config.json. Trained on problems
of the train split; every word of the language becomes one token. Takes about two seconds.
"""

import argparse
import json
import os
import random

import generate
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BPE_SIZE = 450
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # 450, 451, 452
VISIBLE = ["<think>", "</think>"]  # 453, 454: one token each, but part of the text, as in Qwen3
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
PROBLEMS = 4000
# Words that a user may write and the problems do not have; they fill the vocabulary up to its size.
EXTRA = "system\nYou are a helpful assistant. Then he makes what is left. She starts with one of them."


def build():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    rng = random.Random(generate.SEEDS["train"])
    corpus = [EXTRA] * 50
    for _ in range(PROBLEMS):
        p = generate.draw(rng, "train")
        corpus += [f"user\n{p['prompt']}", "assistant\n", f"{p['think']}\n", f"\n\nThe answer is {p['answer']}."]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=BPE_SIZE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    assert tokenizer.get_vocab_size() == BPE_SIZE, tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in VISIBLE])
    return tokenizer


def save(tokenizer, folder):
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    for name, value in (
        ("tokenizer_config.json", dict(
            tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|endoftext|>",
            model_max_length=4096, clean_up_tokenization_spaces=False, chat_template=CHAT_TEMPLATE)),
        ("generation_config.json", dict(eos_token_id=[end, pad], pad_token_id=pad, do_sample=False)),
    ):
        with open(os.path.join(folder, name), "w") as f:
            f.write(json.dumps(value, indent=1) + "\n")


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--out", required=True, help="the folder")
    save(build(), args.parse_args().out)


if __name__ == "__main__":
    main()
