"""What rendering once a chunk is worth: `tabletop` with two 128x128 cameras and chunks of 16, ours and Gymnasium's way.

    python benchmarks/tabletop.py                    # writes docs/benchmarks/tabletop.md

Measured in turn, round after round: ours; the same simulator as a `gymnasium.Env` behind `AsyncVectorEnv`, used the
usual way (every step renders); the same with a wrapper that takes a chunk and renders once; and, without cameras, ours
on two workers against a bare loop in one process.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

import manyarms
from manyarms.simulators.tabletop.simulator import TabletopSimulator

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"


@dataclass(frozen=True)
class TabletopBenchmark:
    """What to measure."""

    task: str = "stack_blocks"
    num_envs: int = 4
    chunk: int = 16
    image_size: int = 128
    cameras: tuple[str, ...] = ("front", "wrist")
    seconds: float = 4.0
    """How long each measurement takes, after a warm-up."""
    rounds: int = 5
    out: Path = DOCS


class TabletopEnv(gymnasium.Env[Any, Any]):
    """The simulator as an environment: a step takes `chunk` actions and renders once at its end."""

    def __init__(self, task: str, options: dict[str, Any], chunk: int) -> None:
        self._simulator = TabletopSimulator(task, max_episode_steps=10**9, **options)
        spec = self._simulator.spec
        self._out = {name: np.zeros(field.shape, field.dtype) for name, field in spec.observations.items()}
        self.observation_space = Dict({name: _box(array) for name, array in self._out.items()})
        width = spec.actions[""].shape[0]
        self.action_space = Box(-1.0, 1.0, (chunk, width) if chunk > 1 else (width,), np.float32)
        self._chunk = chunk

    def _observe(self) -> dict[str, np.ndarray]:
        self._simulator.observe(self._out, self._simulator.spec.cameras)
        return self._out

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._simulator.reset(None, seed, None)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for one in action if self._chunk > 1 else [action]:
            self._simulator.step(one)
        return self._observe(), 0.0, False, False, {}

    def close(self) -> None:
        self._simulator.close()


def _box(array: np.ndarray) -> Box:
    return Box(0, 255, array.shape, np.uint8) if array.dtype == np.uint8 else Box(-np.inf, np.inf, array.shape)


def rate(step: Callable[[], None], steps: int, seconds: float) -> float:
    """Return env-steps per second of a call that makes `steps` of them."""
    step()
    began = time.perf_counter()
    calls = 0
    while time.perf_counter() - began < seconds:
        step()
        calls += 1
    return calls * steps / (time.perf_counter() - began)


def actions(shape: tuple[int, ...]) -> np.ndarray:
    """Return small moves, the same for everyone."""
    return np.random.default_rng(0).uniform(-0.3, 0.3, shape).astype(np.float32)


def ours(config: TabletopBenchmark, options: dict[str, Any], num_envs: int) -> float:
    """Return what `step_chunk` does."""
    settings: dict[str, Any] = {"copy": False, "max_episode_steps": 10**9, **options}
    with manyarms.make_vec(f"tabletop/{config.task}", num_envs, **settings) as envs:
        envs.reset(seed=0)
        batch = actions((num_envs, config.chunk, 7))
        return rate(lambda: _drop(envs.step_chunk(batch)), num_envs * config.chunk, config.seconds)


def theirs(config: TabletopBenchmark, options: dict[str, Any], chunk: int) -> float:
    """Return what Gymnasium's vector environment does with chunks of `chunk`."""
    make = partial(TabletopEnv, config.task, options, chunk)
    envs = gymnasium.vector.AsyncVectorEnv([make] * config.num_envs, context="spawn", copy=False)
    try:
        envs.reset(seed=0)
        batch = actions((config.num_envs, chunk, 7) if chunk > 1 else (config.num_envs, 7))
        return rate(lambda: _drop(envs.step(batch)), config.num_envs * chunk, config.seconds)
    finally:
        envs.close()


def bare(config: TabletopBenchmark, options: dict[str, Any]) -> float:
    """Return what a loop in this process does."""
    simulator = TabletopSimulator(config.task, **options)
    simulator.reset(None, 0, None)
    out = {name: np.zeros(field.shape, field.dtype) for name, field in simulator.spec.observations.items()}
    batch = actions((config.chunk, 7))

    def step() -> None:
        for action in batch:
            simulator.step(action)
        simulator.observe(out, ())

    return rate(step, config.chunk, config.seconds)


def _drop(_: Any) -> None:
    return None


def main() -> None:
    import tyro

    config = tyro.cli(TabletopBenchmark)
    side = config.image_size
    seen: dict[str, Any] = {"cameras": list(config.cameras), "image_size": (side, side), "arm_mode": "delta_ee"}
    blind: dict[str, Any] = {"cameras": [], "arm_mode": "delta_ee"}
    ways: dict[str, Callable[[], float]] = {
        "ours": lambda: ours(config, seen, config.num_envs),
        "gymnasium, a render a step": lambda: theirs(config, seen, 1),
        "gymnasium, a wrapper that renders once a chunk": lambda: theirs(config, seen, config.chunk),
        "without cameras: ours, two workers": lambda: ours(config, blind, 2),
        "without cameras: a bare loop, one process": lambda: bare(config, blind),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(config.rounds):
        for name, measure in ways.items():
            samples[name].append(measure())
            print(f"{i + 1}/{config.rounds} {name}: {samples[name][-1]:,.0f} env-steps/s", flush=True)
    medians = {name: statistics.median(found) for name, found in samples.items()}
    first, usual, wrapped, pair, loop = medians.values()
    lines = ["| | env-steps/s | of the rounds, lowest to highest |", "|---|---:|---:|"]
    for name, found in samples.items():
        lines.append(f"| {name} | {medians[name]:,.0f} | {min(found):,.0f} – {max(found):,.0f} |")
    text = (
        "# Tabletop: rendering once a chunk\n\n"
        f"`{config.task}`, {config.num_envs} environments on {os.cpu_count()} cores, "
        f"{len(config.cameras)} cameras of {side}×{side}, chunks of {config.chunk}; medians of "
        f"{config.rounds} interleaved rounds of {config.seconds:g} s. Made with `python benchmarks/tabletop.py`.\n\n"
        + "\n".join(lines)
        + f"\n\nOurs is {first / usual:.1f} × Gymnasium's used the usual way and {first / wrapped:.2f} × it with a "
        f"wrapper; without cameras, two workers do {pair / loop:.2f} × what one process does in a loop.\n"
    )
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "tabletop.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
