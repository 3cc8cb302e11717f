"""A plain float64 forward pass of Qwen3, Qwen2 and Llama in numpy: the second opinion beside transformers.

Used by make_goldens.py to say how far float32 arithmetic, and a KV cache kept in a narrow type, may lie from the
exact result. One sequence, no batching, no tricks.
"""

import json
import math
import os

import ml_numbers as num
import numpy as np

LLAMA_BASE = 10000.0  # rope_theta where a config names none


def rope_settings(c):
    """One dictionary of rotary settings from either style of config.json.

    Old style: top-level `rope_theta`, and `rope_scaling` null or an object whose kind is `rope_type` or `type`.
    New style: one `rope_parameters` object with `rope_theta` and `rope_type` in it.
    """
    r = dict(c.get("rope_scaling") or c.get("rope_parameters") or {})
    r.setdefault("rope_theta", c.get("rope_theta", LLAMA_BASE))
    r["rope_type"] = r.get("rope_type", r.get("type", "default"))
    r.setdefault("original_max_position_embeddings", c["max_position_embeddings"])
    return r


def inverse_frequencies(r, dim):
    """(dim/2 inverse frequencies, factor on cos and sin)."""
    base = r["rope_theta"]
    plain = base ** -(np.arange(0, dim, 2) / dim)
    kind = r["rope_type"]
    if kind == "default":
        return plain, 1.0
    factor, trained = r["factor"], r["original_max_position_embeddings"]
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        low, high = r["low_freq_factor"], r["high_freq_factor"]
        turns = trained * plain / (2 * math.pi)  # rotations within the trained length
        smooth = np.clip((turns - low) / (high - low), 0, 1)  # 0: slow, divide by factor; 1: fast, leave alone
        return plain * ((1 - smooth) / factor + smooth), 1.0
    if kind == "yarn":
        def dim_at(rotations):
            return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(dim_at(r.get("beta_fast") or 32)), 0)
        high = min(math.ceil(dim_at(r.get("beta_slow") or 1)), dim - 1)
        if low == high:
            high += 0.001
        ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)  # 0: leave alone, 1: divide by factor
        scale = r.get("attention_factor")
        if scale is None:
            scale = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        return plain * (ramp / factor + (1 - ramp)), scale
    raise ValueError(f"rope type {kind}")


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rotate(x, cos, sin):
    """x [heads, tokens, dim]; the two halves of a head form the pairs."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class Reference:
    def __init__(self, folder, config="config.json"):
        with open(os.path.join(folder, config), encoding="utf-8") as f:
            self.c = json.load(f)
        self.w = {k: v.astype(np.float64) for k, v in num.read_checkpoint(folder).items()}

    def linear(self, name, x):
        y = x @ self.w[name + ".weight"].T
        bias = self.w.get(name + ".bias")
        return y if bias is None else y + bias

    def logits(self, ids, kv_round=lambda x: x):
        """[tokens, vocab]. kv_round narrows K (after rotation) and V the way a cache would."""
        c, n, eps = self.c, len(ids), self.c["rms_norm_eps"]
        heads = c["num_attention_heads"]
        kv_heads = c.get("num_key_value_heads") or heads
        dim = c.get("head_dim") or c["hidden_size"] // heads
        freq, scale = inverse_frequencies(rope_settings(c), dim)
        angle = np.arange(n)[:, None] * freq[None, :]
        cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            h = rms_norm(x, self.w[p + "input_layernorm.weight"], eps)
            split = lambda name, k: self.linear(p + "self_attn." + name, h).reshape(n, k, dim).swapaxes(0, 1)
            q, k, v = split("q_proj", heads), split("k_proj", kv_heads), split("v_proj", kv_heads)
            if p + "self_attn.q_norm.weight" in self.w:
                q = rms_norm(q, self.w[p + "self_attn.q_norm.weight"], eps)
                k = rms_norm(k, self.w[p + "self_attn.k_norm.weight"], eps)
            q, k = rotate(q, cos, sin), kv_round(rotate(k, cos, sin))
            v = kv_round(v)
            group = heads // kv_heads
            k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
            s = q @ k.swapaxes(1, 2) / math.sqrt(dim)
            s[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
            s = np.exp(s - s.max(-1, keepdims=True))
            s /= s.sum(-1, keepdims=True)
            x = x + self.linear(p + "self_attn.o_proj", (s @ v).swapaxes(0, 1).reshape(n, heads * dim))
            h = rms_norm(x, self.w[p + "post_attention_layernorm.weight"], eps)
            gate, up = self.linear(p + "mlp.gate_proj", h), self.linear(p + "mlp.up_proj", h)
            x = x + self.linear(p + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
        x = rms_norm(x, self.w["model.norm.weight"], eps)
        head = "model.embed_tokens.weight" if c.get("tie_word_embeddings") else "lm_head.weight"
        return x @ self.w[head].T


def log_softmax(logits):
    """(log-probabilities, log-sum-exp) in float64."""
    x = np.asarray(logits, np.float64)
    top = x.max(-1, keepdims=True)
    lse = top + np.log(np.exp(x - top).sum(-1, keepdims=True))
    return x - lse, lse[..., 0]
