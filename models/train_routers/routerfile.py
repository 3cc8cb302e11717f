"""Router files as the engine reads them (engine/src/heads), and the fingerprint of the model that a head belongs to."""

import glob
import json
import os

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

SAMPLED = 4096  # bytes of each matrix that the fingerprint reads


def read_tensor(folder, name):
    """One tensor of a checkpoint as stored, in however many files it lies."""
    for file in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with safe_open(file, "pt") as f:
            if name in f.keys():
                return f.get_tensor(name)
    raise SystemExit(f"{folder}: there is no tensor {name}")


def digest(*parts):
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in b"".join(parts):
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"fp{h:016x}"


def owner(folder):
    """What a router file says about the model in `folder` (engine/src/heads/owner.rs)."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(os.path.join(folder, "tokenizer.json"), "rb") as f:
        tokenizer = digest(f.read())
    stored = lambda name: read_tensor(folder, name).contiguous().view(torch.uint8).numpy().tobytes()
    last = f"model.layers.{config['num_hidden_layers'] - 1}."
    sampled = ["model.embed_tokens.weight", last + "self_attn.q_proj.weight", last + "mlp.down_proj.weight"]
    weights = digest(stored("model.norm.weight"), *(stored(name)[:SAMPLED] for name in sampled))
    return dict(hidden_size=config["hidden_size"], vocab_size=config["vocab_size"], layers=config["num_hidden_layers"],
                tokenizer=tokenizer, weights=weights)


def write_router(folder, description, tensors):
    os.makedirs(folder, exist_ok=True)
    weights = save({name: x.detach().float().contiguous() for name, x in tensors.items()})
    put(os.path.join(folder, "router.safetensors"), weights)
    put(os.path.join(folder, "router.json"), (json.dumps(dict(format=1, **description), indent=2) + "\n").encode())


def put(file, data):
    """Writes beside the place and renames: a server may have the old file mapped."""
    with open(file + ".new", "wb") as f:
        f.write(data)
    os.replace(file + ".new", file)


def read_router(folder):
    """(description, tensors)"""
    with open(os.path.join(folder, "router.json"), encoding="utf-8") as f:
        description = json.load(f)
    return description, load_file(os.path.join(folder, "router.safetensors"))
