"""What rendering once a chunk is worth: `tabletop` with two 128x128 cameras and chunks of 16, ours and Gymnasium's way.

    python benchmarks/tabletop.py                    # writes docs/benchmarks/tabletop.md

Measured in turn, round after round: ours, waiting for all rows (`step_chunk`) and sending each on as soon as it is back
(`send` and `recv`, with a worker a CPU); the same simulator as a `gymnasium.Env` behind `AsyncVectorEnv`, used the
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
from manyarms import EpisodeId
from manyarms.simulators.graphics import choose_backend
from manyarms.simulators.tabletop.simulator import TabletopSimulator

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"


@dataclass(frozen=True)
class TabletopBenchmark:
    """What to measure."""

    tasks: tuple[str, ...] = ("reach_target", "stack_blocks")
    """The one with the least in its scene, and the one with the most."""
    num_envs: int = 4
    chunk: int = 16
    image_size: int = 128
    cameras: tuple[str, ...] = ("front", "wrist")
    seconds: float = 3.0
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


def ours(config: TabletopBenchmark, task: str, options: dict[str, Any], num_envs: int) -> float:
    """Return what `step_chunk` does."""
    settings: dict[str, Any] = {"copy": False, "max_episode_steps": 10**9, **options}
    with manyarms.make_vec(f"tabletop/{task}", num_envs, **settings) as envs:
        envs.reset(seed=0)
        batch = actions((num_envs, config.chunk, 7))
        return rate(lambda: _drop(envs.step_chunk(batch)), num_envs * config.chunk, config.seconds)


def ours_ready(config: TabletopBenchmark, task: str, options: dict[str, Any]) -> float:
    """Return what `send` and `recv` do with a worker a CPU."""
    count = config.num_envs
    settings: dict[str, Any] = {"copy": False, "max_episode_steps": 10**9, **options}
    settings["rows_per_worker"] = max(1, count // (os.cpu_count() or 1))
    with manyarms.make_vec(f"tabletop/{task}", count, **settings) as envs:
        everyone, batch = np.arange(count), actions((count, config.chunk, 7))
        envs.begin(everyone, EpisodeId(seed=0))
        envs.recv(min_rows=count)
        envs.send(everyone, batch)

        def serve() -> None:
            """Go on until as many chunks as there are rows have come back; what has ended begins anew."""
            chunks = 0
            while chunks < count:
                ready = envs.recv()
                chunks += int((ready.num_steps > 0).sum())
                ended, going = ready.rows[ready.ended], ready.rows[~ready.ended]
                if len(ended):
                    envs.begin(ended, EpisodeId(seed=1))
                if len(going):
                    envs.send(going, batch[: len(going)])

        return rate(serve, count * config.chunk, config.seconds)


def theirs(config: TabletopBenchmark, task: str, options: dict[str, Any], chunk: int) -> float:
    """Return what Gymnasium's vector environment does with chunks of `chunk`."""
    make = partial(TabletopEnv, task, options, chunk)
    envs = gymnasium.vector.AsyncVectorEnv([make] * config.num_envs, context="spawn", copy=False)
    try:
        envs.reset(seed=0)
        batch = actions((config.num_envs, chunk, 7) if chunk > 1 else (config.num_envs, 7))
        return rate(lambda: _drop(envs.step(batch)), config.num_envs * chunk, config.seconds)
    finally:
        envs.close()


def bare(config: TabletopBenchmark, task: str, options: dict[str, Any]) -> float:
    """Return what a loop in this process does."""
    simulator = TabletopSimulator(task, **options)
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


def compared(config: TabletopBenchmark, task: str) -> str:
    """Return a section on one task."""
    side = config.image_size
    seen: dict[str, Any] = {"cameras": list(config.cameras), "image_size": (side, side), "arm_mode": "delta_ee"}
    blind: dict[str, Any] = {"cameras": [], "arm_mode": "delta_ee"}
    ways: dict[str, Callable[[], float]] = {
        "ours, `step_chunk`": lambda: ours(config, task, seen, config.num_envs),
        "ours, `send` and `recv`, a worker a CPU": lambda: ours_ready(config, task, seen),
        "Gymnasium, a render a step": lambda: theirs(config, task, seen, 1),
        "Gymnasium, a wrapper that renders once a chunk": lambda: theirs(config, task, seen, config.chunk),
        "without cameras: ours, two workers": lambda: ours(config, task, blind, 2),
        "without cameras: a bare loop, one process": lambda: bare(config, task, blind),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(config.rounds):
        for name, measure in ways.items():
            samples[name].append(measure())
            print(f"{task} {i + 1}/{config.rounds} {name}: {samples[name][-1]:,.0f} env-steps/s", flush=True)
    medians = {name: statistics.median(found) for name, found in samples.items()}
    together, ready, usual, wrapped, pair, loop = medians.values()
    lines = ["| | env-steps/s | of the rounds, lowest to highest |", "|---|---:|---:|"]
    lines += [f"| {name} | {medians[name]:,.0f} | {min(x):,.0f} – {max(x):,.0f} |" for name, x in samples.items()]
    return (
        f"## `{task}`\n\n"
        + "\n".join(lines)
        + f"\n\nOurs is {together / usual:.1f} × Gymnasium's used the usual way ({ready / usual:.1f} × with `recv`), "
        f"and {together / wrapped:.2f} × it with a wrapper ({ready / wrapped:.2f} × with `recv`); without cameras, two "
        f"workers do {pair / loop:.2f} × what one process does in a loop.\n"
    )


def main() -> None:
    import tyro

    config = tyro.cli(TabletopBenchmark)
    side = config.image_size
    sections = [compared(config, task) for task in config.tasks]
    text = (
        "# Tabletop: rendering once a chunk\n\n"
        f"{config.num_envs} environments on {os.cpu_count()} CPUs, {len(config.cameras)} cameras of {side}×{side} "
        f"rendered through {choose_backend()}, chunks of {config.chunk}, `delta_ee`; medians of {config.rounds} "
        f"interleaved rounds of {config.seconds:g} s. Made with `python benchmarks/tabletop.py`.\n\n"
        + "\n".join(sections)
    )
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "tabletop.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
