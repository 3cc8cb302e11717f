"""bf16 rounding, safetensors files in numpy and readable JSON, for the golden scripts."""

import json
import os
import re
import struct

import numpy as np

NUMPY = {"F32": "<f4", "F16": "<f2", "I32": "<i4"}


def bf16_bits(x):
    """float32 to bf16 bits, round to nearest, ties to even."""
    b = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).astype("<u2")


def bf16_floats(bits):
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def round_bf16(x):
    return bf16_floats(bf16_bits(np.asarray(x, np.float32))).astype(np.float64)


def round_f16(x):
    return np.asarray(x, np.float32).astype(np.float16).astype(np.float64)


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, array). Sorted by name; header padded to 8 bytes."""
    header, blobs, end = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        dtype, x = tensors[name]
        blob = bf16_bits(x).tobytes() if dtype == "BF16" else np.ascontiguousarray(x).astype(NUMPY[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [end, end + len(blob)]}
        end += len(blob)
        blobs.append(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(blobs))
    return end


def read_safetensors(path):
    """name -> array, bf16 widened to float32."""
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack_from("<Q", data)
    out = {}
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name == "__metadata__":
            continue
        a, b = (8 + n + o for o in t["data_offsets"])
        if t["dtype"] == "BF16":
            x = bf16_floats(np.frombuffer(data[a:b], "<u2"))
        else:
            x = np.frombuffer(data[a:b], NUMPY[t["dtype"]])
        out[name] = x.reshape(t["shape"])
    return out


def read_checkpoint(folder):
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read_safetensors(os.path.join(folder, "model.safetensors"))
    with open(index, encoding="utf-8") as f:
        files = sorted(set(json.load(f)["weight_map"].values()))
    out = {}
    for name in files:
        out.update(read_safetensors(os.path.join(folder, name)))
    return out


def write_json(path, value):
    """Indented JSON with a list of numbers on one line."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    number = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
    text = re.sub(rf"\[\n\s*({number}(?:,\s+{number})*)\s*\]", lambda m: "[" + " ".join(m.group(1).split()) + "]", text)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text + "\n")
