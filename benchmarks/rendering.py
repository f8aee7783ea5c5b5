"""Frames per second of `tabletop`: by quality in one process, and by number of workers and rows a worker.

    python benchmarks/rendering.py --layouts 1x1 2x1 4x1 8x1 16x1 4x4 --out docs/benchmarks/rendering-gpu.md

Every call renders two cameras of 128x128, as a policy that looks after every chunk of actions would have it. `4x2` is
four workers of two rows each. All are measured in turn, round after round; medians are reported.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import manyarms
from manyarms.simulators.graphics import choose_backend, has_gpu


@dataclass(frozen=True)
class RenderingBenchmark:
    """What to measure."""

    layouts: tuple[str, ...] = ("1x1", "2x1", "1x2", "2x2")
    """`<workers>x<rows a worker>`."""
    cameras: tuple[str, ...] = ("front", "wrist")
    image_size: int = 128
    chunks: tuple[int, ...] = (1, 16)
    """Actions a call; each call renders once."""
    seconds: float = 2.0
    rounds: int = 3
    out: Path | None = None
    """Where the table goes, besides the terminal."""


def rate(config: RenderingBenchmark, layout: str, chunk: int, **options: Any) -> float:
    """Return frames per second of all workers together."""
    workers, _, rows = layout.partition("x")
    count, side = int(workers) * int(rows), config.image_size
    with manyarms.make_vec(
        "tabletop/stack_blocks",
        count,
        rows_per_worker=int(rows),
        cameras=list(config.cameras),
        image_size=(side, side),
        arm_mode="joint_position",
        max_episode_steps=10**9,
        copy=False,
        **options,
    ) as envs:
        observation, _ = envs.reset(seed=0)
        actions = np.zeros((count, chunk, 8), np.float32)
        actions[..., :7] = observation["joint_positions"][:, None]
        calls, began, seconds = 0, time.perf_counter(), min(1.0, config.seconds)
        for measured in (False, True):
            calls, began = 0, time.perf_counter()
            while time.perf_counter() - began < (config.seconds if measured else seconds):
                envs.step_chunk(actions)
                calls += 1
        return calls * count * len(config.cameras) / (time.perf_counter() - began)


def renderer() -> str:
    """Name what renders here."""
    name = "in software"
    if has_gpu():
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        found = subprocess.run(query, capture_output=True, text=True, check=False)
        name = f"on {found.stdout.strip().splitlines()[0] if found.returncode == 0 else 'a GPU'}"
    return f"{name} through {choose_backend()}"


def main() -> None:
    import tyro

    config = tyro.cli(RenderingBenchmark)
    cases: dict[tuple[str, ...], Callable[[], float]] = {
        ("1", "1", "1", quality): lambda quality=quality: rate(config, "1x1", 1, render_quality=quality)
        for quality in ("good", "full")
    }
    for layout in config.layouts:
        workers, _, rows = layout.partition("x")
        for chunk in config.chunks:
            cases[workers, rows, str(chunk), "fast"] = lambda layout=layout, chunk=chunk: rate(config, layout, chunk)
    samples: dict[tuple[str, ...], list[float]] = {case: [] for case in cases}
    for i in range(config.rounds):
        for case, measure in cases.items():
            samples[case].append(measure())
            print(f"{i + 1}/{config.rounds} {' '.join(case)}: {samples[case][-1]:,.0f} frames/s", flush=True)
    lines = [
        "| workers | rows a worker | actions a call | quality | frames/s | a worker | env-steps/s |",
        "|---:|---:|---:|---|---:|---:|---:|",
    ]
    for (workers, rows, chunk, quality), found in samples.items():
        frames = statistics.median(found)
        steps = frames / len(config.cameras) * int(chunk)
        each = frames / int(workers)
        lines.append(f"| {workers} | {rows} | {chunk} | {quality} | {frames:,.0f} | {each:,.0f} | {steps:,.0f} |")
    side = config.image_size
    text = (
        f"`stack_blocks`, cameras {' and '.join(config.cameras)} of {side}×{side}, rendered {renderer()}, "
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}; medians of {config.rounds} interleaved rounds.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    print(text)
    if config.out:
        config.out.write_text(text)


if __name__ == "__main__":
    main()
