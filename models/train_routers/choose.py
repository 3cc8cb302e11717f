"""How well scores rank, and which threshold to use."""

import torch


def auc(scores, positive):
    """The chance that a positive scores above a negative, ties counted half; 0.5 when one of them is absent."""
    hits, others = int(positive.sum()), int((~positive).sum())
    if not hits or not others:
        return 0.5
    _, place, size = torch.unique(scores.double(), return_inverse=True, return_counts=True)
    last = size.cumsum(0).double()
    rank = (last - (size - 1) / 2)[place]
    return ((rank[positive].sum() - hits * (hits + 1) / 2) / (hits * others)).item()


def saved(scores, diverges, prompt):
    """For each prompt that has a diverging token, the lowest score of such a token.

    With a threshold at or below it the large model writes every token that it would write differently, and the
    answer becomes its own.
    """
    lowest = torch.full((int(prompt.max()) + 1,), float("inf"), dtype=torch.double)
    lowest.scatter_reduce_(0, prompt[diverges].long(), scores[diverges].double(), "amin")
    return lowest[lowest.isfinite()]


def threshold(scores, diverges, prompt, recover, most):
    """The highest threshold that makes `recover` of the answers with a diverging token the large model's own, unless
    more than `most` of the tokens would go there: then the one that sends `most`.

    Scores are probabilities, and those at or above the threshold ask the large model.
    """
    ordered = scores.double().sort(descending=True).values
    lowest = saved(scores, diverges, prompt).sort(descending=True).values
    needed = lowest[min(len(lowest) - 1, int(recover * len(lowest)))].item() if len(lowest) else 1.0
    count = int((ordered >= needed).sum())
    count = max(1, min(count, int(most * len(ordered))))
    # Between two scores, so that another order of the sums on another machine does not move a token across.
    below = ordered[min(count, len(ordered) - 1)]
    return ((ordered[count - 1] + below) / 2).item()


def report(scores, diverges, prompt, at):
    """What the threshold does to these tokens."""
    sent, lowest = scores >= at, saved(scores, diverges, prompt)
    return dict(auc=round(auc(scores, diverges), 4), share=round(sent.float().mean().item(), 4),
                recall=round(sent[diverges].float().mean().item(), 4),
                answers=round((lowest >= at).float().mean().item(), 4), of_answers=len(lowest))
