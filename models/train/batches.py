"""Training batches without end: stories and dense drills, cut to the same number of padded tokens each."""

import generate
import torch

IGNORED = -100  # the label that F.cross_entropy skips
POOL = 512  # problems that are drawn, sorted by length and cut at a time
SUMS = 16  # in a drill


def story(tokenizer, rng, count):
    """`count` problems as (ids, labels); the loss is on the assistant's part only."""
    drawn = [generate.draw(rng, "train") for _ in range(count)]
    prompts = tokenizer.encode_batch([generate.render_prompt(p["prompt"]) for p in drawn])
    answers = tokenizer.encode_batch([generate.render_answer(p) for p in drawn])
    return [(p.ids + a.ids, [IGNORED] * len(p.ids) + a.ids) for p, a in zip(prompts, answers)]


def drills(tokenizer, rng, count):
    """`count` sequences of random sums; the loss is on the digits of the results only."""
    equals, stop = tokenizer.token_to_id("="), tokenizer.encode("1.\n").ids[1]
    head = generate.render_prompt("Work out.")
    texts = [head + "".join(generate.draw_sum(rng) for _ in range(SUMS)) for _ in range(count)]
    out = []
    for encoded in tokenizer.encode_batch(texts):
        labels, inside = [], False
        for token in encoded.ids:
            inside = inside and token != stop
            labels.append(token if inside else IGNORED)
            inside = inside or token == equals
        out.append((encoded.ids, labels))
    return out


def batches(tokenizer, rng, tokens, drill_share):
    """Endless (ids, labels), `[sequences, length]` each, at most `tokens` padded tokens a batch."""
    dense = round(POOL * drill_share)
    while True:
        pool = story(tokenizer, rng, POOL - dense) + drills(tokenizer, rng, dense)
        pool.sort(key=lambda pair: len(pair[0]))
        cut, batch = [], []
        for pair in pool:
            if batch and len(pair[0]) * (len(batch) + 1) > tokens:
                cut.append(batch)
                batch = []
            batch.append(pair)
        cut.append(batch)
        rng.shuffle(cut)
        for batch in cut:
            longest = len(batch[-1][0])
            ids = torch.zeros(len(batch), longest, dtype=torch.long)
            labels = torch.full((len(batch), longest), IGNORED)
            for row, (i, l) in enumerate(batch):
                ids[row, :len(i)], labels[row, :len(l)] = torch.tensor(i), torch.tensor(l)
            yield ids, labels
