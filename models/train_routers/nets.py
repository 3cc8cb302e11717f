"""The networks of the heads. Module names are chosen so that `state_dict()` has the tensor names of router files."""

import torch
from torch import nn


class Block(nn.Module):
    """Pre-norm, with a matrix on the skip where the width changes."""

    def __init__(self, before, after, expansion, dropout):
        super().__init__()
        inner = before * expansion
        self.layer_norm = nn.LayerNorm(before)
        self.mlp = nn.Sequential(nn.Linear(before, inner), nn.GELU(), nn.Dropout(dropout), nn.Linear(inner, after))
        if before != after:
            self.dim_change = nn.Linear(before, after)

    def forward(self, x):
        skip = self.dim_change(x) if hasattr(self, "dim_change") else x
        return skip + self.mlp(self.layer_norm(x))


class R2r(nn.Module):
    """R2R: hidden state, embedding of the candidate, largest raw logits. High: the large model should write here."""

    def __init__(self, hidden, dims, expansion, logits, dropout=0.0):
        super().__init__()
        self.logits_projection = nn.Linear(logits, hidden)
        self.combined_projection = nn.Linear(3 * hidden, dims[0])
        self.backbone = nn.Module()
        self.backbone.input_projection = nn.Linear(dims[0], dims[0])
        widths = zip(dims, dims[1:] + dims[-1:])
        self.backbone.blocks = nn.ModuleList(Block(a, b, expansion, dropout) for a, b in widths)
        self.backbone.output_layer = nn.Sequential(nn.LayerNorm(dims[-1]), nn.Linear(dims[-1], 1))

    def forward(self, hidden, embedded, logits):
        joined = torch.cat([hidden, embedded, self.logits_projection(logits)], -1)
        x = self.backbone.input_projection(self.combined_projection(joined))
        for block in self.backbone.blocks:
            x = block(x)
        return self.backbone.output_layer(x)[:, 0]


class Citer(nn.Module):
    """CITER: the hidden state alone. High: the small model's token is good enough."""

    def __init__(self, hidden, dims, dropout=0.0):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(hidden, dims[0]), nn.BatchNorm1d(dims[0]), nn.ReLU(), nn.Dropout(dropout),
                                 nn.Linear(dims[0], dims[1]))
        self.linear = nn.Linear(dims[1], 1)

    def forward(self, hidden):
        return self.linear(self.mlp(hidden))[:, 0]


class CoLlm(nn.Module):
    """Co-LLM: one more row of the output matrix, without a bias. High: defer to the large model."""

    def __init__(self, hidden):
        super().__init__()
        self.defer_row = nn.Parameter(torch.zeros(1, hidden))

    def forward(self, hidden):
        return (hidden @ self.defer_row.T)[:, 0]


class Query(nn.Module):
    """Query-level routing: the small model's mean state over the prompt. High: the large model should answer it."""

    def __init__(self, hidden, dims):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(hidden, dims[0]), nn.SiLU(), nn.Linear(dims[0], 1))

    def forward(self, mean):
        return self.mlp(mean)[:, 0]


@torch.no_grad()
def absorb(linear, shift, scale):
    """Makes `linear(x)` what `linear((x - shift) / scale)` was: the engine gives heads their raw inputs."""
    weight = linear.weight.double() / scale.double()
    linear.bias.copy_(linear.bias.double() - weight @ shift.double())
    linear.weight.copy_(weight)
