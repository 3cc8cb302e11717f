"""Write a Hugging Face folder (Llama or Qwen3, one model.safetensors in bf16, tied embeddings) as a bf16 GGUF.

The matrices keep their bytes, so that llama.cpp and TokenRouter compute with the same weights; norms become f32, as
llama.cpp wants them. Llama's query and key rows are reordered for its interleaved rotary embedding.

    python gguf_from_hf.py FOLDER OUT.gguf
"""

import json
import os
import struct
import sys

import gguf
import numpy as np

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
BF16 = gguf.GGMLQuantizationType.BF16
NORMAL, CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL


def read_safetensors(path):
    """Names and memory-mapped 16-bit words of every tensor."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
    words = np.memmap(path, dtype=np.uint16, mode="r", offset=8 + length)
    for name, info in header.items():
        if name == "__metadata__":
            continue
        if info["dtype"] != "BF16":
            raise SystemExit(f"{path}: {name} is {info['dtype']}, only BF16 is taken")
        begin, end = info["data_offsets"]
        yield name, words[begin // 2 : end // 2].reshape(info["shape"])


def gguf_name(name):
    """The name of a tensor in a GGUF."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    stem = rest.removesuffix(".weight")
    return f"blk.{layer}.{LAYER_NAMES[stem]}.weight"


def interleave(words, heads):
    """Query or key rows in the order of an interleaved rotary embedding: halves of a head become pairs."""
    rows, columns = words.shape
    return words.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_f32(words):
    """bf16 words as f32."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def add_shape(writer, config):
    """The shape of the model and its constants."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def add_tokenizer(writer, folder, config):
    """The byte-level BPE tokenizer: token list, merges, special tokens."""
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    tokens = [f"[PAD{i}]" for i in range(config["vocab_size"])]
    types = [NORMAL] * len(tokens)
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i] = token
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def convert(folder, out):
    """Write the checkpoint in `folder` to the file `out`."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    arch = config["model_type"]
    if arch not in ("llama", "qwen3"):
        raise SystemExit(f"{folder}: model_type {arch}, only llama and qwen3 are taken")
    # A half-written file must not be taken for a whole one.
    part = f"{out}.part"
    writer = gguf.GGUFWriter(part, arch)
    writer.add_name(os.path.basename(os.path.abspath(folder)))
    add_shape(writer, config)
    add_tokenizer(writer, folder, config)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for source, words in read_safetensors(os.path.join(folder, "model.safetensors")):
        name = gguf_name(source)
        if words.ndim == 1:
            writer.add_tensor(name, to_f32(words))
            continue
        kind = name.split(".")[-2]
        if arch == "llama" and kind in heads:
            words = interleave(words, heads[kind])
        writer.add_tensor(name, np.ascontiguousarray(words).view(np.uint8), raw_dtype=BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    convert(sys.argv[1], sys.argv[2])
