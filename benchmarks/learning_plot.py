"""Draw a picture for each recipe: ``learning_plot.py learning.json docs/results``, with matplotlib."""

# pyright: reportMissingImports=false
# Runs in an environment of its own.

from __future__ import annotations

import json
import sys

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

COLOURS = ("#c2410c", "#0284c7", "#4d7c0f", "#7c3aed")


def draw(recipe: str, runs: dict, path: str) -> None:
    """Draw training thinly, evaluations with their intervals boldly, a colour for each seed."""
    figure, axis = pyplot.subplots(figsize=(7.5, 3.6), layout="constrained")
    for colour, (seed, run) in zip(COLOURS, sorted(runs.items()), strict=False):
        axis.plot(*zip(*run["training"], strict=True), color=colour, linewidth=0.7, alpha=0.45)
        steps, rates, low, high = [], [], [], []
        for evaluation in run["evaluations"]:
            tasks = evaluation["tasks"].values()
            won, played = sum(t["successes"] for t in tasks), sum(t["episodes"] for t in tasks)
            rate = won / played
            half = 1.96 * (max(rate * (1 - rate), 1e-9) / played) ** 0.5
            steps.append(evaluation["env_steps"])
            rates.append(rate)
            low.append(min(rate, half))
            high.append(min(1 - rate, half))
        axis.errorbar(
            steps, rates, [low, high], color=colour, linewidth=1.8, marker="o", markersize=4, label=f"seed {seed}"
        )
    axis.set_ylim(-0.02, 1.04)
    axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_xlabel("env-steps", fontsize=9)
    axis.set_ylabel("success", fontsize=9)
    axis.set_title(recipe, fontsize=10)
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    with open(sys.argv[1]) as source:
        found = json.load(source)
    for name, entry in found.items():
        draw(name, entry["runs"], f"{sys.argv[2]}/{name}.png")
