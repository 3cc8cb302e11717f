"""Qwen3 in float32 (RMS norm of queries and keys, grouped-query attention, SwiGLU, tied embeddings).

Tensor names and config.json are those of Hugging Face, so that a saved folder opens in transformers and in the engine.
"""

import dataclasses
import json
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

# Where training starts. With the usual 0.02 the tokens drown in what the first layer adds to them; with norms of queries
# and keys at 1 no score exceeds the square root of head_dim, too little to pick one of 100 tokens.
EMBEDDING_STD = 0.2
SHARPNESS = 1.5


@dataclasses.dataclass
class Config:
    """The sizes, under the names of config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    vocab_size: int = 455
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096

    def to_json(self):
        return dict(
            architectures=["Qwen3ForCausalLM"], model_type="qwen3", attention_bias=False, attention_dropout=0.0,
            hidden_act="silu", tie_word_embeddings=True, torch_dtype="bfloat16", use_cache=True,
            use_sliding_window=False, sliding_window=None, max_window_layers=self.num_hidden_layers,
            rope_scaling=None, initializer_range=0.02, bos_token_id=None, eos_token_id=452, pad_token_id=450,
            **dataclasses.asdict(self))


class Norm(nn.Module):
    def __init__(self, size, eps, start=1.0):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.full((size,), start)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    """Rotary embedding in the half-split layout of Hugging Face; x `[batch, heads, tokens, head_dim]`."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj, self.o_proj = linear(c.hidden_size, queries), linear(queries, c.hidden_size)
        self.k_proj, self.v_proj = linear(c.hidden_size, keys), linear(c.hidden_size, keys)
        self.q_norm, self.k_norm = (Norm(c.head_dim, c.rms_norm_eps, SHARPNESS) for _ in range(2))

    def forward(self, x, turn, mask, cache):
        batch, tokens, _ = x.shape
        heads = lambda y: y.view(batch, tokens, -1, self.c.head_dim)
        q = rotate(self.q_norm(heads(self.q_proj(x))).transpose(1, 2), *turn)
        k = rotate(self.k_norm(heads(self.k_proj(x))).transpose(1, 2), *turn)
        v = heads(self.v_proj(x)).transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)
        group = self.c.num_attention_heads // self.c.num_key_value_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = linear(c.hidden_size, c.intermediate_size), linear(c.hidden_size, c.intermediate_size)
        self.down_proj = linear(c.intermediate_size, c.hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, turn, mask, cache):
        x = x + self.self_attn(self.input_layernorm(x), turn, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)


class LayerCache:
    """Keys and values of one layer, `[batch, kv heads, capacity, head_dim]`, filled from the front."""

    def __init__(self, c, batch, capacity):
        shape = (batch, c.num_key_value_heads, capacity, c.head_dim)
        self.k, self.v, self.used = torch.zeros(shape), torch.zeros(shape), 0

    def append(self, k, v):
        end = self.used + k.shape[2]
        self.k[:, :, self.used:end], self.v[:, :, self.used:end] = k, v
        self.used = end
        return self.k[:, :, :end], self.v[:, :, :end]


class Qwen3(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.model = c, Body(c)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = EMBEDDING_STD if "embed" in name else p.shape[1] ** -0.5
                if "o_proj" in name or "down_proj" in name:
                    std /= math.sqrt(2 * c.num_hidden_layers)
                nn.init.normal_(p, std=std)

    def hidden(self, ids, positions=None, mask=None, cache=None):
        """The state after the final norm, `[batch, tokens, hidden]`. Without a mask: causal, positions from 0.

        `mask` is boolean, `[batch, 1, tokens, keys]`, true where a token may look; `cache` is a list of `LayerCache`.
        """
        c = self.c
        if positions is None:
            positions = torch.arange(ids.shape[1])[None]
        rate = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angle = positions[..., None].float() * rate
        angle = torch.cat([angle, angle], -1)[:, None]
        turn = (angle.cos(), angle.sin())
        x = self.model.embed_tokens(ids)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, turn, mask, cache and cache[i])
        return self.model.norm(x)

    def logits(self, hidden):
        return hidden @ self.model.embed_tokens.weight.T

    def new_cache(self, batch, capacity):
        return [LayerCache(self.c, batch, capacity) for _ in self.model.layers]


def save(model, folder):
    """config.json and model.safetensors, weights rounded to bf16."""
    os.makedirs(folder, exist_ok=True)
    tensors = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write(json.dumps(model.c.to_json(), indent=1) + "\n")


def load(folder):
    with open(os.path.join(folder, "config.json")) as f:
        values = json.load(f)
    model = Qwen3(Config(**{f.name: values[f.name] for f in dataclasses.fields(Config)}))
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    model.load_state_dict({k: v.float() for k, v in tensors.items()})
    return model.eval()
