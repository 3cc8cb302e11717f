"""Muon: momentum whose update is made (nearly) orthogonal, for the hidden matrices. Matrices of one shape go together."""

import torch

# The quintic iteration of Jordan et al. (2024); it drives all singular values into about [0.7, 1.2].
A, B, C = 3.4445, -4.7750, 2.0315
ROUNDS = 5


def orthogonal(x):
    """`[n, rows, columns]`, each matrix replaced by one with the same singular vectors and values near one."""
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        y = x @ x.transpose(1, 2)
        x = A * x + (B * y + C * y @ y) @ x
    return x.transpose(1, 2) if tall else x


class Muon:
    def __init__(self, parameters, momentum=0.95, weight_decay=0.05):
        self.momentum, self.weight_decay, self.groups = momentum, weight_decay, {}
        for p in parameters:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.sums = {shape: torch.zeros(len(ps), *shape) for shape, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, rate):
        for (rows, columns), ps in self.groups.items():
            grads, sums = torch.stack([p.grad for p in ps]), self.sums[rows, columns]
            sums.mul_(self.momentum).add_(grads)
            updates = orthogonal(grads + self.momentum * sums)  # Nesterov
            scale = rate * max(1.0, rows / columns) ** 0.5
            for p, update in zip(ps, updates):
                p.mul_(1 - rate * self.weight_decay).add_(update, alpha=-scale)
