"""How throughput grows with the number of workers, for a step that keeps a CPU busy for 5 ms.

    python benchmarks/scaling.py --workers 1 2 4 8 16

Three ways, measured in turn, round after round: `bare` is processes that do nothing but the same work, each by itself,
which is what the machine can give; `step` waits for all rows at every call; `recv` sends each row on as soon as it is
back. Efficiency is the throughput of n workers over n times that of one; `of bare` is over that of n bare processes.

By default the work of a step is fixed (so many additions): then CPUs that clock down or share a core when all of them
are busy show as well. With `--cpu-time` a step is over when it has had its 5 ms of CPU time, however much it got done:
then only what workers lose to the hand-over and to each other shows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import manyarms
from manyarms.simulators.base import Field, Simulator, Spec, StepResult


def work(additions: int) -> int:
    """Keep a CPU busy: for so many additions, or, below 0, for so many nanoseconds of CPU time."""
    total = 0
    if additions < 0:
        until = time.thread_time_ns() - additions
        while time.thread_time_ns() < until:
            for i in range(200):
                total += i
        return total
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


def _labour(additions: int, seconds: float, barrier: Any, counts: Any, index: int) -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # as workers run
    for _ in range(3):
        work(additions)
    barrier.wait()
    began = time.perf_counter()
    count = 0
    while time.perf_counter() - began < seconds:
        work(additions)
        count += 1
    counts[index] = count / (time.perf_counter() - began)


def bare(workers: int, chunk: int, additions: int, seconds: float) -> float:
    """Return what processes without any coordination do."""
    context = multiprocessing.get_context("fork")
    barrier, counts = context.Barrier(workers), context.Array("d", workers, lock=False)
    processes = [context.Process(target=_labour, args=(additions, seconds, barrier, counts, i)) for i in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(counts)


def step(workers: int, chunk: int, additions: int, seconds: float) -> float:
    """Return env-steps per second when every call waits for all."""
    with manyarms.make_vec(Worker, workers, additions=additions, copy=False) as envs:
        envs.reset(seed=0)
        actions = np.zeros((workers, chunk, 8), np.float32)
        for _ in range(3):
            envs.step_chunk(actions)
        began = time.perf_counter()
        calls = 0
        while time.perf_counter() - began < seconds:
            envs.step_chunk(actions)
            calls += 1
        return calls * workers * chunk / (time.perf_counter() - began)


def recv(workers: int, chunk: int, additions: int, seconds: float) -> float:
    """Return env-steps per second when each row goes on as soon as it is back."""
    with manyarms.make_vec(Worker, workers, additions=additions, copy=False) as envs:
        rows = np.arange(workers)
        actions = np.zeros((workers, chunk, 8), np.float32)
        envs.begin(rows, manyarms.EpisodeId(seed=0))
        envs.recv(min_rows=workers)
        envs.send(rows, actions)
        for _ in range(3 * workers):
            _serve(envs, actions)
        began = time.perf_counter()
        done = 0
        while time.perf_counter() - began < seconds:
            done += _serve(envs, actions)
        return done * chunk / (time.perf_counter() - began)


def _serve(envs: manyarms.VectorEnv, actions: np.ndarray) -> int:
    rows = envs.recv().rows
    envs.send(rows, actions[: len(rows)])
    return len(rows)


WAYS: dict[str, Callable[[int, int, int, float], float]] = {"bare": bare, "step": step, "recv": recv}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    additions = -round(arguments.step_ms * 1e6) if arguments.cpu_time else calibrate(arguments.step_ms / 1e3)
    samples: dict[tuple[str, int, int], list[float]] = {}
    for _ in range(arguments.repetitions):
        for chunk in arguments.chunks:
            for workers in arguments.workers:
                for way, measure in WAYS.items():
                    speed = measure(workers, chunk, additions, arguments.seconds)
                    samples.setdefault((way, chunk, workers), []).append(speed)
    print(f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {arguments.step_ms:g} ms of computing a step")
    results = []
    for (way, chunk, workers), speeds in sorted(samples.items()):
        first = arguments.workers[0]
        speed = statistics.median(speeds)
        efficiency = speed / workers / (statistics.median(samples[way, chunk, first]) / first)
        # Of the same round: a machine that is shared changes its mind from round to round.
        of_bare = statistics.median(
            mine / its for mine, its in zip(speeds, samples["bare", chunk, workers], strict=True)
        )
        results.append(
            {
                "way": way,
                "chunk": chunk,
                "workers": workers,
                "env_steps_per_second": speed,
                "efficiency": efficiency,
                "of_bare": of_bare,
            }
        )
        print(
            f"{way:4} K={chunk:<3} {workers:>3} workers  {speed:>9,.0f} env-steps/s  "
            f"efficiency {100 * efficiency:5.1f} %  of bare {100 * of_bare:5.1f} %"
        )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
