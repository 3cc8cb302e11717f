#!/usr/bin/env python3
"""Make every checkpoint of the comparison, as a Hugging Face folder and as a GGUF with the same weights.

    python checkpoints.py SMOLLM2_FOLDER OUT

SMOLLM2_FOLDER is SmolLM2-135M-Instruct in bf16 (`models/fetch_smollm2.sh`). OUT gets smol, q06, tinyslm and tinyllm, each as
NAME/ and NAME.gguf. All but smol have random weights of a Qwen3 shape and SmolLM2's tokenizer, so that any two of
them are a pair: what a token costs depends on the shape, and the coin that routes does not look at the text.
What is there already is kept. About 1.3 GB of folders and as much of GGUF files.
"""

import json
import os
import shutil
import struct
import sys

import numpy as np

import gguf_from_hf

# Qwen3-0.6B with SmolLM2's vocabulary, and the two tiny shapes in which everything but the model shows.
SHAPES = {
    "q06": dict(hidden=1024, inter=3072, layers=28, heads=16, kv=8, head_dim=128),
    "tinyslm": dict(hidden=64, inter=160, layers=2, heads=2, kv=1, head_dim=32),
    "tinyllm": dict(hidden=256, inter=768, layers=8, heads=8, kv=4, head_dim=32),
}
VOCAB = 49152
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]


def config_of(shape):
    """config.json of a random checkpoint."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": shape["hidden"],
        "intermediate_size": shape["inter"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv"],
        "head_dim": shape["head_dim"],
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-06,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def tensors_of(shape):
    """Name, shape and standard deviation of every tensor; None stands for a norm of ones."""
    hidden, inter, dim = shape["hidden"], shape["inter"], shape["head_dim"]
    q, kv = shape["heads"] * dim, shape["kv"] * dim
    yield "model.embed_tokens.weight", (VOCAB, hidden), 0.02
    for layer in range(shape["layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,), None
        for name, rows, columns in [
            ("self_attn.q_proj", q, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, q),
            ("mlp.gate_proj", inter, hidden),
            ("mlp.up_proj", inter, hidden),
            ("mlp.down_proj", hidden, inter),
        ]:
            yield f"{at}{name}.weight", (rows, columns), columns**-0.5
        yield at + "self_attn.q_norm.weight", (dim,), None
        yield at + "self_attn.k_norm.weight", (dim,), None
        yield at + "post_attention_layernorm.weight", (hidden,), None
    yield "model.norm.weight", (hidden,), None


def to_bf16(values):
    """f32 rounded to the nearest bf16, ties to even, as 16-bit words."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_random(folder, shape, seed, tokenizer_from):
    """A random checkpoint; config.json comes last, so a folder that has one is complete."""
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(seed)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dims, _ in tensors_of(shape):
        size = 2 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, dims, std in tensors_of(shape):
            if std is None:
                values = np.ones(dims, np.float32)
            else:
                values = rng.standard_normal(dims, dtype=np.float32) * np.float32(std)
            f.write(to_bf16(values).tobytes())
    for name in TOKENIZER_FILES:
        shutil.copy(os.path.join(tokenizer_from, name), folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config_of(shape), f, indent=1)


def main():
    """Make what is missing."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    smol, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    link = os.path.join(out, "smol")
    if not os.path.exists(link):
        os.symlink(os.path.abspath(smol), link)
    for seed, (name, shape) in enumerate(SHAPES.items(), start=1):
        folder = os.path.join(out, name)
        if not os.path.exists(os.path.join(folder, "config.json")):
            write_random(folder, shape, seed, smol)
    for name in ["smol", *SHAPES]:
        target = os.path.join(out, f"{name}.gguf")
        if not os.path.exists(target):
            gguf_from_hf.convert(os.path.join(out, name), target)
        print(f"{name}: {os.path.getsize(target) / 1e6:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
