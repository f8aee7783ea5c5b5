"""``manyarms demo``: what it does, next to what you have, on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium
import numpy as np

from manyarms.cli.bench import BenchConfig
from manyarms.cli.bench import run as bench
from manyarms.cli.options import parse
from manyarms.reporting.console import table


@dataclass(frozen=True)
class DemoConfig:
    """Step a Gymnasium environment in eight processes, Gymnasium's way and ours."""

    task: str = "CartPole-v1"
    """Any registered Gymnasium environment with a Discrete or Box action."""
    num_envs: int = 8
    """Environments side by side."""
    seconds: float = 3.0
    """How long each measurement takes, about."""


def run(config: DemoConfig) -> dict[str, float]:
    """Return env-steps per second by way of stepping."""
    speeds = {"gymnasium AsyncVectorEnv": _gymnasium_speed(config)}
    for label, chunk, rows in (
        ("manyarms step", 1, 1),
        ("manyarms step, two processes", 1, -(-config.num_envs // 2)),
        ("manyarms step_chunk, 16 actions", 16, 1),
    ):
        expected = 4 * chunk * speeds["gymnasium AsyncVectorEnv"]
        steps = max(200, int(expected * config.seconds / config.num_envs))
        settings = {"num_envs": config.num_envs, "action_chunk": chunk, "rows_per_worker": rows, "copy": False}
        speeds[label] = bench(BenchConfig(f"gym/{config.task}", steps=steps, **settings)).env_steps_per_second
    return speeds


def _gymnasium_speed(config: DemoConfig) -> float:
    envs = gymnasium.vector.AsyncVectorEnv(
        [lambda: gymnasium.make(config.task)] * config.num_envs, copy=False, context="spawn"
    )
    try:
        envs.action_space.seed(0)
        actions = [envs.action_space.sample() for _ in range(8)]
        envs.reset(seed=0)
        for action in actions:
            envs.step(action)
        began = time.perf_counter()
        calls = 0
        while time.perf_counter() - began < config.seconds:
            envs.step(actions[calls % len(actions)])
            calls += 1
        return calls * config.num_envs / (time.perf_counter() - began)
    finally:
        envs.close()


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    config = parse(DemoConfig, "demo", arguments)
    speeds = run(config)
    base = next(iter(speeds.values()))
    best = max(speeds, key=lambda label: speeds[label])
    table(
        f"{config.task}, {config.num_envs} environments: {speeds[best] / base:.0f} times Gymnasium's speed",
        [
            (label, f"{speed:>10,.0f} env-steps/s", f"{np.round(speed / base, 1):5.1f} ×")
            for label, speed in speeds.items()
        ],
        ("way", "speed", "ratio"),
    )
    print("next: manyarms bench gym/Pendulum-v1 --num-envs 8 --action-chunk 16 --profile")
    return 0
