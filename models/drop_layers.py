#!/usr/bin/env python3
"""Copy a Hugging Face folder (Llama, Qwen2, Qwen3) without some of its decoder layers.

    python models/drop_layers.py SRC DST --drop 10,20

Layers count from 0. The layers that stay keep their bytes and are numbered anew; everything else is copied. One
model.safetensors comes out, however many files the source has. Nothing is trained: the copy is a weaker model with
the same tokenizer, a mate for the full one. Python 3.9, standard library only. config.json is written last: a folder
that has one is complete.
"""

import argparse
import json
import os
import re
import shutil
import struct

# Copied where the source has them.
BESIDE = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
]
LAYER = re.compile(r"^model\.layers\.(\d+)\.")
CHUNK = 1 << 24


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError) as e:
        raise SystemExit(f"{path}: {e}")


def weight_files(src):
    """The safetensors files of a folder."""
    index = os.path.join(src, "model.safetensors.index.json")
    if os.path.exists(index):
        names = sorted(set(read_json(index)["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    return [os.path.join(src, name) for name in names]


def read_header(path):
    """Name, dtype, shape, and the place of the bytes in the file, of every tensor."""
    try:
        with open(path, "rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            head = json.loads(f.read(length))
        size = os.path.getsize(path)
    except (OSError, ValueError, struct.error) as e:
        raise SystemExit(f"{path}: not a safetensors file: {e}")
    head.pop("__metadata__", None)
    out = []
    for name, entry in head.items():
        start, end = (8 + length + at for at in entry["data_offsets"])
        if not 8 + length <= start <= end <= size:
            raise SystemExit(f"{path}: the bytes of {name} are outside the file")
        out.append((name, entry["dtype"], entry["shape"], path, start, end))
    return out


def renumber(name, stay):
    """The name in the copy; None for a tensor of a dropped layer."""
    found = LAYER.match(name)
    if not found:
        return name
    layer = int(found[1])
    return f"model.layers.{stay[layer]}.{name[found.end():]}" if layer in stay else None


def write_weights(tensors, path):
    """One safetensors file, tensors in the order of their names."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, _, start, end in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + end - start]}
        at += end - start
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for _, _, _, source, start, end in tensors:
            with open(source, "rb") as f:
                f.seek(start)
                while start < end:
                    part = f.read(min(CHUNK, end - start))
                    if not part:
                        raise SystemExit(f"{source}: it has become shorter")
                    out.write(part)
                    start += len(part)


def shorter(config, stay):
    """The configuration of the copy."""
    config = dict(config)
    config["num_hidden_layers"] = len(stay)
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = [kind for layer, kind in enumerate(config["layer_types"]) if layer in stay]
    if "max_window_layers" in config:
        # Layers from this one on use the sliding window, where there is one.
        config["max_window_layers"] = sum(layer < config["max_window_layers"] for layer in stay)
    return config


def layer_numbers(text):
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; layer numbers with commas between them are needed")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("source", metavar="SRC")
    args.add_argument("out", metavar="DST")
    args.add_argument("--drop", metavar="N,N,...", type=layer_numbers, required=True, help="the layers to leave out")
    args = args.parse_args()

    config = read_json(os.path.join(args.source, "config.json"))
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int):
        raise SystemExit(f"{args.source}/config.json has no num_hidden_layers")
    for layer in args.drop:
        if not 0 <= layer < layers:
            raise SystemExit(f"--drop has {layer}; {args.source} has {layers} layers, 0 to {layers - 1}")
    if len(args.drop) == layers:
        raise SystemExit(f"--drop has all {layers} layers; at least one must stay")
    at = lambda name: os.path.join(args.out, name)
    if os.path.exists(at("config.json")):
        raise SystemExit(f"{args.out} has a config.json already")

    # Every layer that stays, with its new number.
    stay = {layer: new for new, layer in enumerate(sorted(set(range(layers)) - set(args.drop)))}
    tensors = [tensor for path in weight_files(args.source) for tensor in read_header(path)]
    found = {int(m[1]) for m in (LAYER.match(t[0]) for t in tensors) if m}
    if found != set(range(layers)):
        raise SystemExit(
            f"{args.source}: config.json says {layers} layers, the weights have model.layers of {len(found)}"
        )
    kept = sorted((name, *rest) for old, *rest in tensors if (name := renumber(old, stay)) is not None)

    os.makedirs(args.out, exist_ok=True)
    write_weights(kept, at("model.safetensors"))
    for name in BESIDE:
        if os.path.exists(os.path.join(args.source, name)):
            shutil.copyfile(os.path.join(args.source, name), at(name))
    with open(at("config.json"), "w", encoding="utf-8") as f:
        json.dump(shorter(config, stay), f, ensure_ascii=False, indent=1)
        f.write("\n")
    size = os.path.getsize(at("model.safetensors"))
    print(f"{args.out}: {len(stay)} of {layers} layers, {len(kept)} tensors, {size} bytes")


if __name__ == "__main__":
    main()
