"""Draw docs/results/cleanrl.png: ``cleanrl_plot.py cleanrl.json cleanrl.png``, with matplotlib."""

# pyright: reportMissingImports=false
# Runs in an environment of its own.

from __future__ import annotations

import json
import sys
from statistics import fmean, stdev

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

COLOURS = {
    "CleanRL": "#475569",
    "manyarms": "#c2410c",
    "manyarms, clock ends": "#f59e0b",
    "manyarms, as CleanRL": "#0284c7",
}


def draw(found: dict, path: str) -> None:
    """Draw every seed thinly, the means boldly, and CleanRL's spread as a band."""
    config = found["config"]
    batch = config["episodes_per_update"] * config["episode_steps"]
    figure, axis = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for side in (side for side in config["sides"] if found["runs"][side]):
        runs, colour = found["runs"][side], COLOURS[side]
        curves = [run["curve"] for run in runs.values()]
        steps = [batch * (update + 1) for update in range(len(curves[0]))]
        means = [fmean(values) for values in zip(*curves, strict=True)]
        for curve in curves:
            axis.plot(steps, curve, color=colour, linewidth=0.6, alpha=0.35)
        if side == "CleanRL" and len(curves) > 1:
            spread = [stdev(values) for values in zip(*curves, strict=True)]
            low = [m - s for m, s in zip(means, spread, strict=True)]
            high = [m + s for m, s in zip(means, spread, strict=True)]
            axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(steps, means, color=colour, linewidth=2, label=f"{side} ({len(curves)} seeds)")
    axis.set_xlabel("env-steps", fontsize=9)
    axis.set_ylabel("return of an episode", fontsize=9)
    axis.set_title(f"PPO on {config['env_id']} (band: CleanRL's deviation over seeds)", fontsize=10)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    with open(sys.argv[1]) as source:
        draw(json.load(source), sys.argv[2])
