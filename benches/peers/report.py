"""Cells of the comparison, the repeats in them, and the table."""

import json
import statistics

# What is compared in each kind of cell: the field, and whether more of it is better.
PRIMARY = {
    "decode": ("tok_s", True),
    "prefill": ("tok_s", True),
    "context": ("step_ms", False),
    "routed": ("tok_s", True),
    "lock-step": ("tok_s", True),
}


class Cell:
    """One line of the table: the same work done by two sides in turn."""

    def __init__(self, kind, params):
        self.kind, self.params, self.notes = kind, params, {}
        self.pairs, self.discarded = [], 0

    @property
    def sides(self):
        """Names of the two, ours first."""
        return list(self.pairs[0]) if self.pairs else []

    def median(self, side, field):
        """Median of a field over the repeats that count."""
        return statistics.median(pair[side][field] for pair in self.pairs)

    def ratios(self, field, more_is_better):
        """Ours against the peer, repeat by repeat, so that above 1 is in our favour."""
        ours, peer = self.sides
        found = [pair[ours][field] / max(pair[peer][field], 1e-12) for pair in self.pairs]
        return sorted(found if more_is_better else [1 / max(r, 1e-12) for r in found])

    def to_json(self):
        """Everything measured."""
        found = {"kind": self.kind, **self.params, "repeats": len(self.pairs), "discarded": self.discarded}
        if self.pairs:
            field, more = PRIMARY[self.kind]
            for name, values in [("ratio", self.ratios(field, more)), ("cpu_ratio", self.ratios("cpu_ms", False))]:
                found[name] = {"median": statistics.median(values), "min": values[0], "max": values[-1]}
        return found | {"notes": self.notes, "samples": self.pairs}


def spread(values):
    """Median and the ends."""
    return f"{statistics.median(values):.2f} ({values[0]:.2f}-{values[-1]:.2f})"


def line(cell):
    """The texts of a line of the table."""
    what = " ".join(f"{k}={v}" for k, v in cell.params.items() if k not in ("model", "pair"))
    name = cell.params.get("model") or cell.params.get("pair")
    if not cell.pairs:
        return [cell.kind, name, what, "-", "-", "-", "-", "-", "-", f"0 (-{cell.discarded})"]
    field, more = PRIMARY[cell.kind]
    ours, peer = cell.sides
    figures = [f"{cell.median(side, field):.4g}" for side in (ours, peer)]
    cpu = [f"{cell.median(side, 'cpu_ms'):.4g}" for side in (ours, peer)]
    ratios = [spread(cell.ratios(field, more)), spread(cell.ratios("cpu_ms", False))]
    return [cell.kind, name, what, *figures, ratios[0], *cpu, ratios[1], f"{len(cell.pairs)} (-{cell.discarded})"]


HEAD = ["what", "model", "work", "ours", "peer", "ratio (range)", "ours CPU ms", "peer CPU ms", "CPU ratio", "repeats"]


def table(cells):
    """A Markdown table: tok/s (`context`: ms per step), the servers' processor ms per token; above 1 is in our favour."""
    rows = [HEAD, *[line(cell) for cell in cells]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    texts = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([texts[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *texts[1:]])


def side_details(cell, side):
    """One side of a cell: the client's processor time, the rate by quarter, the shares, the dispatcher's calls."""
    sample, parts = cell.pairs[-1][side], []
    if "client_cpu_ms" in sample:
        parts.append(f"client CPU {cell.median(side, 'client_cpu_ms'):.3g} ms")
    if "quarters_tok_s" in sample:
        rates = [statistics.median(pair[side]["quarters_tok_s"][k] for pair in cell.pairs) for k in range(4)]
        parts.append("tok/s by quarter " + " ".join(f"{rate:.4g}" for rate in rates))
        parts.append(f"last over first {cell.median(side, 'last_over_first'):.2f}")
        parts.append(f"without the prompts {cell.median(side, 'after_first_tok_s'):.4g} tok/s")
        parts.append(f"large share {cell.median(side, 'large_share'):.3f}")
    for name, call in zip(("small", "large"), sample.get("calls", [])):
        times = f"{call['call_ms']:.2f} ms, {call['compute_ms']:.2f} of them computing"
        parts.append(f"{name} call {times}, {call['fed']:.2f} tokens fed")
    return f"  {side}: {'; '.join(parts)}" if parts else ""


def details(cells):
    """What the table has no room for."""
    texts = []
    for cell in (c for c in cells if c.pairs):
        if "after_first_tok_s" in cell.pairs[0][cell.sides[0]]:
            cell.notes["ratio without the prompts"] = spread(cell.ratios("after_first_tok_s", True))
        lines = [text for side in cell.sides if (text := side_details(cell, side))]
        lines += [f"  {name}: {value}" for name, value in cell.notes.items()]
        if lines:
            texts += [" ".join([cell.kind, *map(str, cell.params.values())]), *lines]
    return "\n".join(texts)


def write(path, cells, about):
    """The whole as JSON."""
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"about": about, "cells": [cell.to_json() for cell in cells]}, f, indent=1)
        f.write("\n")
