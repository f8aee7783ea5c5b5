"""How fast a vector environment steps, and where the time goes."""

from __future__ import annotations

import functools
import os
import platform
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import Any

import gymnasium
import numpy as np
import psutil

from manyarms.reporting.charts import Bar, Bars, Plot
from manyarms.reporting.console import Shown, Table, Telling
from manyarms.reporting.progress import progress
from manyarms.simulators.gymnasium import make_env
from manyarms.vector import VectorEnv

#: Random chunks are drawn once and used in turn, so that drawing them is not what is measured.
_POOL = 8

#: What the time of a call is made of.
_PARTS = {
    "build": "main side",
    "sim": "simulation",
    "obs": "observation",
    "vid": "video",
    "toggle": "switching cameras",
    "other": "rest of the worker",
    "ipc": "hand-over",
}


@dataclass(frozen=True, repr=False)
class BenchResult(Shown):
    """What was measured."""

    config: dict[str, Any]
    env_steps: int
    seconds: float
    env_steps_per_second: float
    latency_ms: dict[str, float]
    """Of one call: p50, p90, p99, mean."""
    cpu_us_per_env_step: float
    """Main process and workers together."""
    start_seconds: float
    worker_memory_mb: float
    """Mean memory of a worker, shared pages counted in part."""
    episodes: int
    refused: int = 0
    """Calls in which a row refused an action: what was not carried out cost next to nothing."""
    interrupted: bool = False
    profile: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def told(self) -> Telling:
        config, speed = self.config, f"{self.env_steps_per_second:,.0f} env-steps/s"
        chunks = f", chunks of {config['action_chunk']}" if config["action_chunk"] > 1 else ""
        rows = [
            ("env-steps", f"{self.env_steps:,} in {self.seconds:.2f} s, {self.episodes} episodes ended"),
            ("latency of a call", "  ".join(f"{k} {v:.3f} ms" for k, v in self.latency_ms.items())),
            ("processor time", f"{self.cpu_us_per_env_step:.1f} µs per env-step, all processes"),
            ("start", f"{self.start_seconds:.2f} s"),
            ("memory of a worker", f"{self.worker_memory_mb:.0f} MB"),
        ]
        notes = ["interrupted: these are the results so far"] if self.interrupted else []
        calls = -(-self.env_steps // config["action_chunk"])
        if self.refused:
            notes.append(
                f"random actions were refused in {self.refused:,} of about {calls:,} calls of a row, and cost next to "
                "nothing: choose a mode in which any action moves the arm (--options arm_mode=joint_velocity)"
            )
        return Telling(
            f"{config['simulator']}: {speed} ({config['num_envs']} environments{chunks})",
            [Table(rows), *self._split()],
            notes,
        )

    def _split(self) -> list[Table]:
        """Return where the time goes, if that was measured."""
        if not self.profile:
            return []
        mean, workers = self.profile["mean_ms"], self.profile["workers_ms"]
        total = mean["build"] + mean["env_call"]
        rows = [
            (name, f"{value:9.3f} ms  {100 * value / total:5.1f} %", _percentiles(workers.get(name)))
            for name, value in mean.items()
        ]
        header = ("part", "mean", "over workers p50 / p90 / p99")
        return [Table(rows, header, "time of a call (main side; slowest worker)")]

    def plot(self) -> Plot:
        """Draw the time of a call, and its parts if they were measured."""
        latencies = [Bar(name, value, f"{value:.3f} ms") for name, value in self.latency_ms.items()]
        panels = [Bars("time of a call", latencies)]
        if self.profile:
            spent = {name: ms for name, ms in self.profile["mean_ms"].items() if name in _PARTS and ms}
            parts = [Bar(_PARTS[name], ms, f"{ms:.3f} ms", colour=2) for name, ms in spent.items()]
            panels.append(Bars("where it goes", parts))
        return Plot(self.told().headline, panels)


def measure(
    envs: VectorEnv,
    *,
    steps: int,
    action_chunk: int,
    warmup: int,
    seed: int,
    start_seconds: float,
    config: Mapping[str, Any],
) -> BenchResult:
    """Step environments with random actions; `config` is what the result notes."""
    chunks = _random_chunks(envs, action_chunk)
    envs.reset(seed=seed)
    workers = [psutil.Process(pid) for pid in envs.worker_pids]
    latencies: list[float] = []
    env_steps = episodes = refused = 0
    interrupted = False
    calls = -(-steps // action_chunk)
    with progress("warming up", warmup) as advance:
        for i in range(warmup):
            _advance(envs, chunks[i % _POOL])
            advance(1, "")
    if envs.profiler:
        envs.profiler.clear()
    cpu, clock = _cpu_seconds(workers), time.perf_counter()
    try:
        with progress(f"{config['simulator']} × {envs.num_envs}", calls) as advance:
            for i in range(calls):
                began = time.perf_counter()
                taken, ended, invalid = _advance(envs, chunks[i % _POOL])
                latencies.append(time.perf_counter() - began)
                env_steps += taken
                episodes += ended
                refused += invalid
                advance(1, f"{env_steps / (time.perf_counter() - clock):,.0f} env-steps/s")
    except KeyboardInterrupt:
        interrupted = True
        if not latencies:
            raise
    seconds = time.perf_counter() - clock
    cpu = _cpu_seconds(workers) - cpu
    ms = np.array(latencies) * 1e3
    return BenchResult(
        config=dict(config),
        env_steps=env_steps,
        seconds=seconds,
        env_steps_per_second=env_steps / seconds,
        latency_ms={
            **{f"p{q}": float(np.percentile(ms, q)) for q in (50, 90, 99)},
            "mean": float(ms.mean()),
        },
        cpu_us_per_env_step=cpu / max(1, env_steps) * 1e6,
        start_seconds=start_seconds,
        worker_memory_mb=float(np.mean([_memory(worker) for worker in workers])) / 1e6,
        episodes=episodes,
        refused=refused,
        interrupted=interrupted,
        profile=envs.profiler.summary() if envs.profiler else {},
        machine={"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
    )


def _random_chunks(envs: VectorEnv, length: int) -> list[Any]:
    """Return batches of random actions: [num_envs, …] for single steps, [num_envs, K, …] for chunks."""
    envs.action_space.seed(0)
    if length == 1:
        return [envs.action_space.sample() for _ in range(_POOL)]
    return [_stack([envs.action_space.sample() for _ in range(length)]) for _ in range(_POOL)]


def _stack(actions: Sequence[Any]) -> Any:
    if isinstance(actions[0], dict):
        return {key: _stack([action[key] for action in actions]) for key in actions[0]}
    return np.stack(actions, axis=1)


def _advance(envs: VectorEnv, actions: Any) -> tuple[int, int, int]:
    """Make one call; return how many steps ran, how many episodes ended, and how many rows refused an action."""
    if envs.config.max_chunk == 1:
        _, _, terminated, truncated, infos = envs.step(actions)
        steps, ended = envs.num_envs, terminated | truncated
    else:
        chunk = envs.step_chunk(actions)
        steps, ended, infos = int(chunk.num_steps.sum()), chunk.ended, chunk.infos
    return steps, int(np.count_nonzero(ended)), int(np.count_nonzero(infos.get("_invalid_action", ())))


def _cpu_seconds(workers: Sequence[psutil.Process]) -> float:
    own = psutil.Process().cpu_times()
    return own.user + own.system + sum(t.user + t.system for t in (worker.cpu_times() for worker in workers))


def _memory(worker: psutil.Process) -> int:
    full = worker.memory_full_info()
    return getattr(full, "pss", 0) or full.rss


def _percentiles(values: dict[str, float] | None) -> str:
    return " / ".join(f"{value:.3f}" for value in values.values()) + " ms" if values else ""


# -- Gymnasium's own way -----------------------------------------------------------------------------------------------


def gymnasium_speed(task: str, num_envs: int, seconds: float) -> float:
    """Return env-steps per second of Gymnasium's own vector environment, measured for some seconds."""
    with _deaf_children():
        envs = gymnasium.vector.AsyncVectorEnv(
            [functools.partial(make_env, task, {})] * num_envs, copy=False, context="spawn"
        )
    try:
        envs.action_space.seed(0)
        actions = [envs.action_space.sample() for _ in range(8)]
        envs.reset(seed=0)
        for action in actions:
            envs.step(action)
        began = time.perf_counter()
        calls = 0
        while time.perf_counter() - began < seconds:
            envs.step(actions[calls % len(actions)])
            calls += 1
        return calls * num_envs / (time.perf_counter() - began)
    finally:
        # After Ctrl-C in the midst of a step, Gymnasium would warn, then wait for an answer that it has had already.
        with warnings.catch_warnings(action="ignore"):
            envs.close(terminate=True)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Have processes that are started here never hear of Ctrl-C, which is ours to handle; it waits until they run."""
    resource_tracker.ensure_running()  # its own start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
