"""Make the random tiny models and their log-probabilities from Hugging Face transformers.

    python tests/golden/make_goldens.py [NAME ...]     (all models without a name)

Run in an environment with torch and transformers (the versions are recorded in each golden.json); nothing else in
the repository needs them. README.md beside this file describes what is written.
"""

import json
import os
import shutil
import sys

import ml_numbers as num
import numpy as np
import torch
import transformers
from reference import Reference, log_softmax
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))

# Per model: name, architecture, seed, stored type, shape, extra config fields, and the rotary settings.
# "style" says which way config.json writes the rotary settings; config-other-style.json writes the other way.
# Each model also says how long its three sequences are.
MODELS = [
    dict(name="qwen3-tied", arch="qwen3", seed=1, dtype="BF16", style="old", tied=True,
         hidden=48, inter=80, heads=4, kv=2, dim=16, vocab=96, max_pos=128, rope=dict(rope_theta=1e6), lens=(5, 37, 80),
         extra=dict(use_sliding_window=False, sliding_window=None, max_window_layers=2),
         generation=dict(eos_token_id=[3, 7], pad_token_id=3, do_sample=True, temperature=0.6, top_k=20, top_p=0.95)),
    dict(name="qwen3-untied-sharded", arch="qwen3", seed=2, dtype="BF16", style="new", tied=False, shards=3, eps=1e-3,
         hidden=40, inter=64, heads=4, kv=2, dim=24, vocab=96, max_pos=128, rope=dict(rope_theta=5e5), lens=(5, 37, 80),
         extra=dict(use_sliding_window=False, sliding_window=None, max_window_layers=2,
                    layer_types=["full_attention", "full_attention"])),
    dict(name="qwen3-yarn", arch="qwen3", seed=3, dtype="BF16", style="old", tied=True,
         hidden=32, inter=64, heads=4, kv=2, dim=32, vocab=96, max_pos=128, lens=(6, 33, 100),
         rope=dict(rope_theta=1e4, rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
         extra=dict(use_sliding_window=False, sliding_window=None)),
    dict(name="qwen3-yarn-factors", arch="qwen3", seed=4, dtype="BF16", style="new", tied=True,
         hidden=32, inter=48, heads=2, kv=1, dim=32, vocab=96, max_pos=128, lens=(6, 33, 100),
         rope=dict(rope_theta=1e5, rope_type="yarn", factor=3.0, original_max_position_embeddings=40,
                   beta_fast=2.0, beta_slow=0.25, attention_factor=1.25)),
    dict(name="qwen2-mha-tied", arch="qwen2", seed=5, dtype="BF16", style="old", tied=True,
         hidden=64, inter=96, heads=4, kv=4, vocab=112, max_pos=128, rope=dict(rope_theta=1e6), lens=(5, 37, 80),
         extra=dict(use_sliding_window=False, sliding_window=32768, max_window_layers=2)),
    dict(name="qwen2-f16", arch="qwen2", seed=6, dtype="F16", style="new", tied=False,
         hidden=48, inter=64, heads=6, kv=3, vocab=96, max_pos=128, rope=dict(rope_theta=1e4), lens=(5, 37, 80)),
    dict(name="llama-gqa8-llama3", arch="llama", seed=7, dtype="BF16", style="old", tied=False,
         hidden=64, inter=96, heads=8, kv=1, dim=16, vocab=128, max_pos=256, lens=(6, 33, 100),
         rope=dict(rope_theta=1e4, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32),
         extra=dict(attention_bias=False, mlp_bias=False, pretraining_tp=1)),
    dict(name="llama-linear", arch="llama", seed=8, dtype="BF16", style="old", type_key="type", tied=True,
         hidden=48, inter=64, heads=3, kv=1, vocab=96, max_pos=128, lens=(6, 33, 100),
         rope=dict(rope_theta=1e4, rope_type="linear", factor=4.0)),
    dict(name="llama-bias-f32", arch="llama", seed=9, dtype="F32", style="old", tied=False, biases="all",
         hidden=32, inter=48, heads=4, kv=2, vocab=96, max_pos=128, rope={}, lens=(5, 37, 80),
         extra=dict(attention_bias=True, mlp_bias=True)),
    dict(name="llama-odd", arch="llama", seed=10, dtype="BF16", style="new", tied=False, eps=1e-2,
         hidden=45, inter=70, heads=3, kv=1, dim=36, vocab=97, max_pos=128, rope=dict(rope_theta=1e4), lens=(5, 37, 80),
         extra=dict(attention_bias=False, mlp_bias=False)),
]

ARCH = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
TORCH_NAME = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
LAYERS = 2


def config(m, style):
    c = dict(architectures=[ARCH[m["arch"]]], model_type=m["arch"], vocab_size=m["vocab"], hidden_size=m["hidden"],
             intermediate_size=m["inter"], num_hidden_layers=LAYERS, num_attention_heads=m["heads"],
             num_key_value_heads=m["kv"])
    if "dim" in m:
        c["head_dim"] = m["dim"]
    c.update(max_position_embeddings=m["max_pos"], rms_norm_eps=m.get("eps", 1e-5 if m["arch"] == "llama" else 1e-6),
             hidden_act="silu", attention_dropout=0.0, initializer_range=0.02, tie_word_embeddings=m["tied"],
             use_cache=True, bos_token_id=None, eos_token_id=3)
    if m["arch"] == "qwen3":
        c["attention_bias"] = False
    c.update(m.get("extra", {}))
    rope = dict(m["rope"])
    if style == "new":
        c["dtype"] = TORCH_NAME[m["dtype"]]
        # transformers 5 writes both keys always; a theta that the old style leaves out is its default
        c["rope_parameters"] = {"rope_theta": 1e4, "rope_type": "default", **rope}
        c["transformers_version"] = transformers.__version__
    else:
        c["torch_dtype"] = TORCH_NAME[m["dtype"]]
        if "rope_theta" in rope:
            c["rope_theta"] = rope.pop("rope_theta")
        if "rope_type" in rope:
            rope = {m.get("type_key", "rope_type"): rope.pop("rope_type"), **rope}
        c["rope_scaling"] = rope or None
        c["transformers_version"] = "4.51.0"
    return c


def weights(m):
    """Random weights with a gain high enough that the context, not the last token alone, picks the next token."""
    rng = np.random.default_rng(m["seed"])
    h, inter, v = m["hidden"], m["inter"], m["vocab"]
    dim = m.get("dim", h // m["heads"])
    q, kv = m["heads"] * dim, m["kv"] * dim
    out = {}

    def matrix(name, rows, cols, gain):
        out[name + ".weight"] = rng.standard_normal((rows, cols)) * gain / np.sqrt(cols)

    def vector(name, n, low, high):
        out[name] = rng.uniform(low, high, n)

    embed_std = 3.0 / np.sqrt(h) if m["tied"] else 1.0
    out["model.embed_tokens.weight"] = rng.standard_normal((v, h)) * embed_std
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        for name, rows, cols, gain in (
            ("self_attn.q_proj", q, h, 1.4), ("self_attn.k_proj", kv, h, 1.4), ("self_attn.v_proj", kv, h, 1.5),
            ("self_attn.o_proj", h, q, 2.5), ("mlp.gate_proj", inter, h, 1.2), ("mlp.up_proj", inter, h, 1.2),
            ("mlp.down_proj", h, inter, 1.5),
        ):
            matrix(p + name, rows, cols, gain)
            with_bias = m.get("biases") == "all" or (m["arch"] == "qwen2" and name[10:11] in "qkv" and "attn" in name)
            if with_bias:
                out[p + name + ".bias"] = rng.standard_normal(rows) * 0.5
        if m["arch"] == "qwen3":
            vector(p + "self_attn.q_norm.weight", dim, 1.0, 2.0)
            vector(p + "self_attn.k_norm.weight", dim, 0.7, 1.5)
        vector(p + "input_layernorm.weight", h, 0.6, 1.4)
        vector(p + "post_attention_layernorm.weight", h, 0.6, 1.4)
    vector("model.norm.weight", h, 0.6, 1.4)
    if not m["tied"]:
        matrix("lm_head", v, h, 3.0)
    return {k: (m["dtype"], x.astype(np.float32)) for k, x in out.items()}


def write_model(m, folder):
    tensors = weights(m)
    shards = m.get("shards", 1)
    if shards == 1:
        num.write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    else:
        names, where, total = sorted(tensors), {}, 0
        for s in range(shards):
            file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
            part = {n: tensors[n] for n in names[s::shards]}  # dealt out, so that a layer spans files
            total += num.write_safetensors(os.path.join(folder, file), part)
            where.update({n: file for n in part})
        num.write_json(os.path.join(folder, "model.safetensors.index.json"),
                   dict(metadata=dict(total_size=total), weight_map=dict(sorted(where.items()))))
    other = {"old": "new", "new": "old"}[m["style"]]
    num.write_json(os.path.join(folder, "config.json"), config(m, m["style"]))
    num.write_json(os.path.join(folder, "config-other-style.json"), config(m, other))
    if "generation" in m:
        num.write_json(os.path.join(folder, "generation_config.json"), m["generation"])


def transformers_logits(folder, sequences):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return [model(torch.tensor([ids.tolist()])).logits[0].numpy() for ids in sequences], type(model).__name__


def other_style_logits(folder, sequences):
    """The same weights, read through config-other-style.json."""
    tmp = os.path.join(folder, "tmp")
    os.mkdir(tmp)
    try:
        for f in os.listdir(folder):
            if f.startswith("model"):
                os.symlink(os.path.join("..", f), os.path.join(tmp, f))
        shutil.copy(os.path.join(folder, "config-other-style.json"), os.path.join(tmp, "config.json"))
        return transformers_logits(tmp, sequences)[0]
    finally:
        shutil.rmtree(tmp)


def spread(a, b):
    """Mean, 99th percentile and maximum of |a - b| over all positions and tokens, two digits."""
    d = np.abs(np.concatenate([(x - y).ravel() for x, y in zip(a, b)]))
    return {k: float(f"{v:.2g}") for k, v in (("mean", d.mean()), ("p99", np.quantile(d, 0.99)), ("max", d.max()))}


def prefix_matters(reference, ids, logprobs):
    """Share of the later positions whose best token changes when the first token does."""
    changed = ids.copy()
    changed[0] = (changed[0] + 1) % logprobs.shape[1]
    again = reference.logits(changed)
    return float(np.mean(again.argmax(-1)[1:] != logprobs.argmax(-1)[1:]))


def make(m):
    folder = os.path.join(HERE, m["name"])
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    write_model(m, folder)
    rng = np.random.default_rng(1000 + m["seed"])
    sequences = [rng.integers(0, m["vocab"], n).astype(np.int32) for n in m["lens"]]
    logits, class_name = transformers_logits(folder, sequences)
    assert class_name == ARCH[m["arch"]]
    for a, b in zip(logits, other_style_logits(folder, sequences)):
        assert np.array_equal(a, b), f"{m['name']}: the two config styles do not agree"

    exact = [log_softmax(x) for x in logits]
    stored, report = {}, []
    for i, (ids, (logprobs, lse)) in enumerate(zip(sequences, exact)):
        stored[f"ids.{i}"] = ("I32", ids)
        stored[f"logprobs.{i}"] = ("F32", logprobs)
        stored[f"lse.{i}"] = ("F32", lse)
        top2 = np.sort(logprobs, -1)[:, -2:]
        report.append(dict(tokens=len(ids), last_argmax=int(logprobs[-1].argmax()),
                           smallest_margin=float(f"{(top2[:, 1] - top2[:, 0]).min():.3g}")))
    num.write_safetensors(os.path.join(folder, "golden.safetensors"), stored)

    reference, other = Reference(folder), Reference(folder, "config-other-style.json")
    double = [log_softmax(reference.logits(ids))[0] for ids in sequences]
    for ids, d in zip(sequences, double):
        assert np.array_equal(log_softmax(other.logits(ids))[0], d)
    lp = [x for x, _ in exact]
    noise = dict(float64=spread(lp, double))
    assert noise["float64"]["max"] < 2e-4, noise
    for name, narrow in (("kv_f16", num.round_f16), ("kv_bf16", num.round_bf16)):
        noise[name] = spread(lp, [log_softmax(reference.logits(ids, narrow))[0] for ids in sequences])
    flips = prefix_matters(reference, sequences[2], lp[2])
    assert flips > 0.3, flips
    num.write_json(os.path.join(folder, "golden.json"), dict(
        made_with=dict(transformers=transformers.__version__, torch=torch.__version__.split("+")[0], numpy=np.__version__),
        attention="eager", arithmetic="float32", stored_weights=m["dtype"],
        parameters=int(sum(x.size for x in num.read_checkpoint(folder).values())),
        sequences=report, noise=noise, argmax_changes_with_first_token=round(flips, 2)))
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    entropy = np.mean([-(np.exp(x) * x).sum(-1).mean() / np.log(m["vocab"]) for x in lp])
    print(f"{m['name']:22s} {size:7d} bytes  entropy {entropy:.2f}  first-token flips {flips:.2f}  {noise}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for m in MODELS:
        if len(sys.argv) == 1 or m["name"] in sys.argv[1:]:
            make(m)
