"""What each kind of head reads, learns and writes.

A task gives train.py: `net`; `inputs(rows)` and `loss(raw, rows)` for row numbers of its tables; `learn`, the rows that are
good to learn from; `positive` (should the large model write here?) and `prompt` of every row; `settle()` after training;
`asks(raw)`, how much the head asks for the large model, 0 to 1; `write()`, the description and the tensors of the router file.
"""

import nets
import torch
from routerfile import read_tensor
from torch.nn import functional as F


def spread(x):
    """Mean and deviation of every column; a column that never changes keeps deviation 1."""
    scale = x.std(0)
    return x.mean(0), torch.where(scale > 1e-6, scale, torch.ones_like(scale))


def balanced(raw, positive, weight):
    return F.binary_cross_entropy_with_logits(raw, positive.float(), pos_weight=weight)


def ratio(positive):
    """Negatives for each positive: the weight that makes both classes count the same."""
    hits = int(positive.sum())
    return torch.tensor((len(positive) - hits) / max(1, hits))


class Task:
    """Heads that judge every token."""

    direction = ">="

    def __init__(self, labels, train):
        self.labels, self.prompt, self.positive = labels, labels.prompt, labels.needed
        self.learn = train
        self.hidden = labels.hidden.shape[1]
        self.shift, self.scale = spread(labels.hidden[train])

    def asks(self, raw):
        return raw.sigmoid()

    def settle(self):
        """What is left to do to the network after the last step."""

    def states(self, rows):
        return (self.labels.hidden[rows] - self.shift) / self.scale


class R2r(Task):
    """Learns which tokens need the large model.

    They are rare. In training they weigh more by the root of the ratio only: with the whole ratio, as in the paper, a few
    hundred of them are soon known by heart. The other root goes into the bias afterwards, so that the scores read as if
    both classes were equally frequent.
    """

    defaults = dict(dims=[64, 64], epochs=8, rate=1e-3, decay=1e-3)

    def __init__(self, labels, train, args):
        super().__init__(labels, train)
        size = min(args.logits, labels.about["top"])
        self.shape = dict(hidden_dims=args.hidden, expansion_factor=args.expansion, logits_size=size)
        self.embed = read_tensor(labels.about["small"], "model.embed_tokens.weight").float()
        self.top = labels.top[:, :size]
        self.of_embed = spread(self.embed[labels.small_best[train].long()])
        self.of_top = spread(self.top[train])
        self.net = nets.R2r(self.hidden, args.hidden, args.expansion, size, args.dropout)
        self.root = ratio(self.positive[train]).sqrt()

    def inputs(self, rows):
        embedded = self.embed[self.labels.small_best[rows].long()]
        return (self.states(rows), (embedded - self.of_embed[0]) / self.of_embed[1],
                (self.top[rows] - self.of_top[0]) / self.of_top[1])

    def loss(self, raw, rows):
        return balanced(raw, self.positive[rows], self.root)

    def settle(self):
        with torch.no_grad():
            self.net.backbone.output_layer[1].bias += self.root.log()

    def write(self):
        same = torch.zeros(self.hidden), torch.ones(self.hidden)  # the projected logits are no input
        shift, scale = (torch.cat([a, b, c]) for a, b, c in zip((self.shift, self.scale), self.of_embed, same))
        nets.absorb(self.net.logits_projection, *self.of_top)
        nets.absorb(self.net.combined_projection, shift, scale)
        about = dict(self.shape, outputs=1, normalize_input=False, layer_norm_eps=1e-5)
        return about, self.net.state_dict()


class Citer(Task):
    """Learns where the small model's token is good enough: it is the right one, or the large model's would not be better.

    Where both are wrong and differ, neither can be called better: those rows are not learned from.
    """

    defaults = dict(dims=[128, 64], epochs=8, rate=1e-3, decay=1e-1)
    direction = "<"

    def __init__(self, labels, train, args):
        super().__init__(labels, train)
        self.right = (labels.small_best == labels.token) | ~labels.needed
        self.learn = train & (self.right | (labels.large_best == labels.token))
        self.shape = dict(hidden_dims=args.hidden)
        self.net = nets.Citer(self.hidden, args.hidden, args.dropout)
        self.weight = ratio(self.right[self.learn])

    def inputs(self, rows):
        return (self.states(rows),)

    def loss(self, raw, rows):
        return balanced(raw, self.right[rows], self.weight)

    def asks(self, raw):
        return (-raw).sigmoid()

    def write(self):
        nets.absorb(self.net.mlp[0], self.shift, self.scale)
        tensors = {k: v for k, v in self.net.state_dict().items() if not k.endswith("num_batches_tracked")}
        return dict(self.shape, batch_norm_eps=1e-5), tensors


class CoLlm(Task):
    """Learns d in `(1 - d) p_small + d p_large` to make the text likely, at a price for every d.

    Without the price deferring is free, d goes to 1 wherever the large model is not worse, and it ranks nothing.
    """

    defaults = dict(dims=[], epochs=30, rate=1e-2, decay=0.0)
    direction = ">"

    def __init__(self, labels, train, args):
        super().__init__(labels, train)
        self.price = args.price
        self.shift = torch.zeros(self.hidden)  # the row has no bias that could take a shift
        self.net = nets.CoLlm(self.hidden)

    def inputs(self, rows):
        return (self.states(rows),)

    def loss(self, raw, rows):
        kept = F.logsigmoid(-raw) + self.labels.small_logp[rows]
        deferred = F.logsigmoid(raw) + self.labels.large_logp[rows]
        return self.price * raw.sigmoid().mean() - torch.logaddexp(kept, deferred).mean()

    def write(self):
        return dict(defer_id=None), dict(defer_row=self.net.defer_row / self.scale)


class Query(Task):
    """Learns of which prompts the large model's answer is right and the small model's is not."""

    defaults = dict(dims=[64], epochs=60, rate=1e-3, decay=1e-2)

    def __init__(self, labels, train, args):
        self.mean = labels.mean
        self.prompt, self.learn = torch.arange(len(self.mean)), train
        self.positive = (labels.large_right == 1) & (labels.small_right == 0)
        self.shift, self.scale = spread(self.mean[train])
        self.shape, self.net = dict(hidden_dims=args.hidden), nets.Query(self.mean.shape[1], args.hidden)
        self.weight = ratio(self.positive[train])

    def inputs(self, rows):
        return ((self.mean[rows] - self.shift) / self.scale,)

    def loss(self, raw, rows):
        return balanced(raw, self.positive[rows], self.weight)

    def write(self):
        nets.absorb(self.net.mlp[0], self.shift, self.scale)
        return self.shape, self.net.state_dict()


TASKS = {"r2r": R2r, "citer": Citer, "co-llm": CoLlm, "query": Query}
