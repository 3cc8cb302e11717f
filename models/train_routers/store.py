"""Labels on disk: one safetensors file a batch, and `labels.json`.

A row is one position of an answer; the models have read everything before it and say what comes there.

| tensor | of each row |
| --- | --- |
| `hidden` | the small model's state after the final norm, `[hidden]` |
| `top` | its largest raw logits, falling, `[top]` |
| `entropy` | of its distribution, divided by the logarithm of the vocabulary |
| `small_best`, `large_best` | both arg-maxes; the small model's is the candidate that a router judges |
| `token` | what the text has there |
| `small_logp`, `large_logp` | both log-probabilities of `token` |
| `needed` | 1 where the large model should write: the best tokens differ, and where that was verified, harmfully |
| `prompt` | which prompt it belongs to |

and of each prompt, in the order of `prompt`: `mean` (the small model's states, averaged over the prompt's tokens),
`small_right` and `large_right` (1, 0).
"""

import glob
import json
import os

import torch
from safetensors.torch import load_file, save_file


class Writer:
    """Fills a folder; what an earlier run left there goes first."""

    def __init__(self, folder):
        self.folder, self.batches = folder, 0
        os.makedirs(folder, exist_ok=True)
        for old in glob.glob(os.path.join(folder, "*-*.safetensors")):
            os.remove(old)

    def add(self, tensors):
        name = os.path.join(self.folder, f"batch-{self.batches:05}.safetensors")
        save_file({k: v.contiguous().cpu() for k, v in tensors.items()}, name)
        self.batches += 1

    def close(self, about):
        with open(os.path.join(self.folder, "labels.json"), "w", encoding="utf-8") as f:
            json.dump(about, f, indent=1)
            f.write("\n")


class Labels:
    """All batches of a folder, each tensor as one: `labels.hidden`, `labels.mean`, ..."""

    def __init__(self, folder):
        with open(os.path.join(folder, "labels.json"), encoding="utf-8") as f:
            self.about = json.load(f)
        parts = [load_file(name) for name in sorted(glob.glob(os.path.join(folder, "batch-*.safetensors")))]
        if not parts:
            raise SystemExit(f"{folder}: there is no batch in it; run label.py")
        for name in parts[0]:
            setattr(self, name, torch.cat([p[name] for p in parts]))
        self.needed = self.needed == 1

    def split(self, share, seed):
        """Which prompts are held out, `[prompts]`: whole prompts, or their tokens would be known from training."""
        order = torch.randperm(len(self.mean), generator=torch.Generator().manual_seed(seed))
        held = torch.zeros(len(order), dtype=torch.bool)
        held[order[: max(1, round(share * len(order)))]] = True
        return held
