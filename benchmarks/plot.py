"""Draw docs/benchmarks/vector.png: ``plot.py vector.json vector.png``, with matplotlib."""

# pyright: reportMissingImports=false
# Runs in an environment of its own.

from __future__ import annotations

import json
import sys

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

OURS, OTHERS = "#c2410c", "#94a3b8"


def draw(found: dict, path: str) -> None:
    """Draw one panel for every case and chunk, fastest on top."""
    results = found["results"]
    chunks = list(next(iter(results.values())))
    figure, axes = pyplot.subplots(
        len(results), len(chunks), figsize=(7.5 * len(chunks), 3.4 * len(results)), squeeze=False, layout="constrained"
    )
    for row, (case, by_chunk) in zip(axes, results.items(), strict=True):
        for axis, (chunk, peers) in zip(row, by_chunk.items(), strict=True):
            ordered = sorted(peers.items(), key=lambda item: item[1]["env_steps_per_second"])
            names = [name for name, _ in ordered]
            rates = [m["env_steps_per_second"] for _, m in ordered]
            colours = [OURS if name.startswith("manyarms") else OTHERS for name in names]
            axis.barh(names, rates, color=colours)
            lows = [min(m["rounds"]) for _, m in ordered]
            highs = [max(m["rounds"]) for _, m in ordered]
            axis.hlines(range(len(names)), lows, highs, color="#1e293b", linewidth=1)
            if max(rates) > 40 * min(rates):
                axis.set_xscale("log")
            for i, rate in enumerate(rates):
                axis.annotate(f" {rate:,.0f}", (max(rate, highs[i]), i), va="center", fontsize=7)
            workload, _, count = case.partition(":")
            axis.set_title(f"{workload}, {count} environments, K = {chunk}", fontsize=10)
            axis.tick_params(labelsize=7)
            axis.margins(x=0.15)
            axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(
        "environment steps a second (logarithmic where they differ much; lines: slowest and fastest round)", fontsize=9
    )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    with open(sys.argv[1]) as source:
        draw(json.load(source), sys.argv[2])
