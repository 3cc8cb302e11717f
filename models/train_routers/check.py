#!/usr/bin/env python3
"""Does a router file say what training saw? Recomputes scores from its raw inputs, and the fingerprint of its model.

    python models/train_routers/check.py ROUTER_DIR LABELS

LABELS is the folder that the head was trained from: train.py left its scores there. Ends with an error when a score
differs by more than 1e-4 (an input normalisation folded wrongly would show) or the model is another one.
"""

import argparse
import os

import nets
import torch
from routerfile import owner, read_router, read_tensor
from safetensors.torch import load_file
from store import Labels

TOLERANCE = 1e-4


def network(about, hidden):
    """The network that `router.json` describes."""
    if about["kind"] == "r2r":
        return nets.R2r(hidden, about["hidden_dims"], about["expansion_factor"], about["logits_size"])
    if about["kind"] == "citer":
        return nets.Citer(hidden, about["hidden_dims"])
    return nets.CoLlm(hidden) if about["kind"] == "co-llm" else nets.Query(hidden, about["hidden_dims"])


def inputs(about, labels, rows):
    """What the engine gives the head: nothing normalised."""
    if about["kind"] == "query":
        return (labels.mean[rows],)
    if about["kind"] != "r2r":
        return (labels.hidden[rows],)
    embed = read_tensor(labels.about["small"], "model.embed_tokens.weight").float()
    return labels.hidden[rows], embed[labels.small_best[rows].long()], labels.top[rows, : about["logits_size"]]


@torch.no_grad()
def check(router, labels_dir):
    """The largest difference of a score."""
    (about, tensors), labels = read_router(router), Labels(labels_dir)
    model = owner(labels.about["small"])
    if about["model"] != model:
        raise SystemExit(f"{router} is for {about['model']}, {labels.about['small']} is {model}")
    net = network(about, model["hidden_size"]).eval()
    missing, surplus = net.load_state_dict(tensors, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or surplus:
        raise SystemExit(f"{router}: missing {missing}, surplus {surplus}")
    seen = load_file(os.path.join(labels_dir, f"scores-{about['kind']}.safetensors"))
    scores = net(*inputs(about, labels, seen["rows"])).sigmoid()
    worst = (scores - seen["scores"]).abs().max().item()
    if not worst <= TOLERANCE:
        raise SystemExit(f"{router}: a score differs by {worst:.1e} from what training saw")
    return worst


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("router", metavar="ROUTER_DIR")
    args.add_argument("labels", metavar="LABELS")
    args = args.parse_args()
    torch.set_num_threads(1)
    print(f"{args.router}: scores within {check(args.router, args.labels):.1e}")


if __name__ == "__main__":
    main()
