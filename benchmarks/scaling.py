"""How throughput grows with the number of workers, for a step that keeps a CPU busy for 5 ms.

    python benchmarks/scaling.py --workers 1 2 4 8 16

Efficiency is the throughput of n workers over n times that of one. The work of a step is fixed (so many additions), not
its time, so workers that get in each other's way show.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import manyarms
from manyarms.simulators.base import Field, Simulator, Spec, StepResult


def work(additions: int) -> int:
    """Keep a CPU busy."""
    total = 0
    for i in range(additions):
        total += i
    return total


class Worker(Simulator):
    """A simulator whose step is `additions` additions."""

    def __init__(self, additions: int) -> None:
        self.additions = additions
        self.spec = Spec({"": Field((32,))}, {"": Field((8,), "float32", -1.0, 1.0)})

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        pass

    def step(self, action: Any) -> StepResult:
        work(self.additions)
        return StepResult(0.0)

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        out[""][0] += 1


def calibrate(seconds: float) -> int:
    """Return how many additions take this long on one CPU."""
    additions = 10_000
    while True:
        began = time.process_time()
        work(additions)
        spent = time.process_time() - began
        if spent > 0.2:
            return int(additions * seconds / spent)
        additions *= 2


def throughput(workers: int, chunk: int, additions: int, seconds: float) -> float:
    """Return env-steps per second."""
    with manyarms.make_vec(Worker, workers, additions=additions, copy=False) as envs:
        envs.reset(seed=0)
        shape = (workers, chunk, 8)
        actions = np.zeros(shape, np.float32)
        for _ in range(3):
            envs.step_chunk(actions)
        began = time.perf_counter()
        calls = 0
        while time.perf_counter() - began < seconds:
            envs.step_chunk(actions)
            calls += 1
        return calls * workers * chunk / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    additions = calibrate(arguments.step_ms / 1e3)
    samples: dict[tuple[int, int], list[float]] = {}
    for _ in range(arguments.repetitions):
        for chunk in arguments.chunks:
            for workers in arguments.workers:
                speed = throughput(workers, chunk, additions, arguments.seconds)
                samples.setdefault((chunk, workers), []).append(speed)
    print(f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {arguments.step_ms:g} ms of computing a step")
    results = []
    for (chunk, workers), speeds in samples.items():
        base = statistics.median(samples[chunk, arguments.workers[0]]) / arguments.workers[0]
        speed = statistics.median(speeds)
        efficiency = speed / workers / base
        results.append({"chunk": chunk, "workers": workers, "env_steps_per_second": speed, "efficiency": efficiency})
        print(f"K={chunk:<3} {workers:>3} workers  {speed:>9,.0f} env-steps/s  efficiency {100 * efficiency:5.1f} %")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
