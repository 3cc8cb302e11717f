"""The table of an ablation: the engine's medians beside the simulator's figures, and where they part."""

import json
import statistics

import simulator

# Figures that lie closer together have no order.
TIE = 0.03
# The tolerance.
NEAR = 0.10


def rates(cell):
    """Tokens per second of the repeats that count, ascending."""
    return sorted(run["tokens_per_s"] for run in cell.counted())


def step_factors(cell):
    """By how much the engine's steps took longer than the simulator's, per model."""
    found = simulator.models(cell.counted())
    return [ours["step_ms"] / max(said["step_ms"], 1e-9) for ours, said in zip(found, cell.predicted["models"])]


def aligned(rows):
    """A Markdown table."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    texts = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([texts[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *texts[1:]])


def ranks(cells, value):
    """Place of each cell among those with as many clients."""
    above = lambda cell: [other for other in cells if other.clients == cell.clients and value(other) > value(cell)]
    return {id(cell): 1 + len(above(cell)) for cell in cells}


def summary(cells):
    """The table."""
    measured, predicted = (lambda cell: statistics.median(rates(cell))), (lambda cell: cell.predicted["tokens_per_s"])
    ours, said = ranks(cells, measured), ranks(cells, predicted)
    head = ["N", "what", "policy", "engine tok/s, median (range)", "simulator", "engine / simulator"]
    rows = [[*head, "rank", "simulator's", "at the engine's step times", "repeats (discarded)"]]
    for cell in cells:
        found = rates(cell)
        doubt = "" if cell.runs else " !"
        explained = measured(cell) / cell.explained["tokens_per_s"] if cell.explained else float("nan")
        rows.append(
            [
                str(cell.clients),
                cell.name,
                cell.policy,
                f"{measured(cell):.4g} ({found[0]:.4g}-{found[-1]:.4g}){doubt}",
                f"{predicted(cell):.4g}",
                f"{measured(cell) / predicted(cell):.3f}",
                str(ours[id(cell)]),
                str(said[id(cell)]),
                f"{explained:.3f}",
                f"{len(cell.runs)} ({len(cell.discarded)})",
            ]
        )
    return aligned(rows)


def differences(cells):
    """Step times, batches and shares of both sides, and processor time beside the models."""
    head = ["N", "what", "model", "step ms", "simulator", "ratio", "rows", "sim.", "fed", "sim.", "busy %", "sim."]
    rows = [[*head, "CPU ms/tok", "sim.", "client"]]
    for cell in cells:
        runs = cell.counted()
        tokens = sum(run["tokens"] for run in runs)
        keys = ("cpu_seconds", "client_cpu_seconds")
        server, client = (1e3 * sum(run["repeats"][0][key] for run in runs) / tokens for key in keys)
        # With a thread per model, what the simulator's models are at work for is processor time.
        work = 1e3 * sum(model["busy"] for model in cell.predicted["models"]) / cell.predicted["tokens_per_s"]
        own = [f"{ms:.3g}" for ms in (server, work, client)]
        for index, (ours, said) in enumerate(zip(simulator.models(runs), cell.predicted["models"])):
            figures = [f"{ours['step_ms']:.4g}", f"{said['step_ms']:.4g}", f"{ours['step_ms'] / said['step_ms']:.3f}"]
            for key, scale in (("rows", 1), ("fed", 1), ("busy", 100)):
                figures += [f"{scale * ours[key]:.3g}", f"{scale * said[key]:.3g}"]
            first = [str(cell.clients), cell.name] if index == 0 else ["", ""]
            rows.append([*first, ours["name"], *figures, *(own if index == 0 else [""] * len(own))])
    return aligned(rows)


def verdict(cells):
    """Whether figures and order agree, in words."""
    lines = []
    for cell in cells:
        ratio = statistics.median(rates(cell)) / cell.predicted["tokens_per_s"]
        if abs(ratio - 1) > NEAR:
            lines.append(f"N={cell.clients} {cell.name}: {100 * (ratio - 1):+.0f} % beside the simulator")
    for one in cells:
        for other in cells:
            gap = one.predicted["tokens_per_s"] / other.predicted["tokens_per_s"] - 1
            turned = statistics.median(rates(one)) < statistics.median(rates(other))
            if one.clients == other.clients and gap > TIE and turned:
                lines.append(f"N={one.clients}: {one.name} should be {100 * gap:.0f} % above {other.name}")
    good = f"all figures within {100 * NEAR:.0f} %, all differences of more than {100 * TIE:.0f} % in the same order"
    return "\n".join(lines or [good])


def text(cells):
    """Everything for people."""
    note = "! no repeat counts: those that others disturbed are shown; ranks are among cells with as many clients"
    return "\n\n".join([summary(cells), differences(cells), note, verdict(cells)])


def write(path, cells, about):
    """Everything for programs."""
    fields = ("name", "policy", "handoff", "clients", "tokens", "warm_tokens", "predicted", "explained", "runs")
    found = [{key: getattr(cell, key) for key in fields} | {"discarded": cell.discarded} for cell in cells]
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"about": about, "cells": found}, f, indent=1)
