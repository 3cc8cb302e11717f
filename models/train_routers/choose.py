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


def saved(scores, needed, prompt):
    """For each prompt with a token that needs the large model, the lowest score of such a token.

    With a threshold at or below it all of them go there, and the answer becomes the large model's.
    """
    lowest = torch.full((int(prompt.max()) + 1,), float("inf"), dtype=torch.double)
    lowest.scatter_reduce_(0, prompt[needed].long(), scores[needed].double(), "amin")
    return lowest[lowest.isfinite()]


def threshold(scores, needed, prompt, recover, least, most):
    """The highest threshold that saves `recover` of the answers that need the large model, but one that sends at least
    `least` and at most `most` of the tokens there.

    Scores are probabilities, and those at or above the threshold ask the large model.
    """
    ordered = scores.double().sort(descending=True).values
    lowest = saved(scores, needed, prompt).sort(descending=True).values
    wanted = lowest[min(len(lowest) - 1, int(recover * len(lowest)))].item() if len(lowest) else 1.0
    count = int((ordered >= wanted).sum())
    count = max(1, int(least * len(ordered)), min(count, int(most * len(ordered))))
    # Between two scores, so that another order of the sums on another machine does not move a token across.
    below = ordered[min(count, len(ordered) - 1)]
    return ((ordered[count - 1] + below) / 2).item()


def report(scores, needed, prompt, at):
    """What the threshold does to these tokens; null where none of them needs the large model."""
    sent, lowest = scores >= at, saved(scores, needed, prompt)
    share = lambda flags: round(flags.float().mean().item(), 4) if len(flags) else None
    return dict(auc=round(auc(scores, needed), 4), share=share(sent), recall=share(sent[needed]), answers=share(lowest >= at),
                of_answers=len(lowest))
