"""``manyarms bench``: how fast a simulator steps in many processes, and where the time goes."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil

from manyarms.cli.help import Guide
from manyarms.cli.options import Options, SimulatorName, options_of, parse
from manyarms.environments import EnvConfig, SimulatorSettings
from manyarms.errors import ConfigError
from manyarms.reporting.charts import Bar, Bars, Plot
from manyarms.reporting.console import Shown, Table, Telling
from manyarms.reporting.files import make_folder, write_atomically
from manyarms.reporting.progress import progress
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


@dataclass(frozen=True)
class BenchConfig:
    """Step a simulator with random actions and measure."""

    simulator: SimulatorName
    """<simulator>/<task>, package.module:factory or path/to/file.py:factory."""
    num_envs: int = 8
    """Environments side by side."""
    action_chunk: int = 1
    """Actions sent in one call."""
    steps: int = 1000
    """Steps measured in each environment."""
    warmup: int = 50
    """Calls made before the measurement."""
    rows_per_worker: int = 1
    """Environments that share a process."""
    profile: bool = False
    """Split the time into main side, simulation, observation, hand-over."""
    trace: str | None = None
    """Write a Chrome/Perfetto trace to this file; implies --profile."""
    copy: bool = True
    """Return copies of the observations; --no-copy returns views."""
    python: str | None = None
    """The interpreter the simulator runs in: a path, a command or a virtual environment."""
    seed: int = 0
    """Seed of the first environment; the others count up."""
    json: str | None = None
    """Where the results go; default: runs/bench-<simulator>-<time>.json."""
    options: Options = field(default_factory=dict)
    """Further options of the simulator or of the vector environment."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms bench gym/CartPole-v1 --num-envs 16 --action-chunk 16",
            "manyarms bench tabletop/open_drawer --profile   # and where the time goes",
            "manyarms bench rlbench/reach_target --options cameras=[] arm_mode=joint_velocity",
        ),
    )

    def __post_init__(self) -> None:
        for name in ("action_chunk", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.warmup < 0:
            raise ConfigError(f"warmup is {self.warmup}; it must be at least 0")
        object.__setattr__(self, "options", options_of(self.options))


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


def run(config: BenchConfig) -> BenchResult:
    """Measure and return."""
    began = time.perf_counter()
    settings = {"max_chunk": config.action_chunk, "profile": config.profile, "trace": config.trace}
    env = EnvConfig(
        (SimulatorSettings(config.simulator, python=config.python),),
        {**settings, **config.options},
        rows_per_worker=config.rows_per_worker,
        copy=config.copy,
    )
    with env.open(config.num_envs) as envs:
        start_seconds = time.perf_counter() - began
        return _measure(envs, config, start_seconds)


def _measure(envs: VectorEnv, config: BenchConfig, start_seconds: float) -> BenchResult:
    chunks = _random_chunks(envs, config.action_chunk)
    envs.reset(seed=config.seed)
    workers = [psutil.Process(pid) for pid in envs.worker_pids]
    latencies: list[float] = []
    env_steps = episodes = refused = 0
    interrupted = False
    calls = -(-config.steps // config.action_chunk)
    with progress("warming up", config.warmup) as advance:
        for i in range(config.warmup):
            _advance(envs, chunks[i % _POOL])
            advance(1, "")
    if envs.profiler:
        envs.profiler.clear()
    cpu, clock = _cpu_seconds(workers), time.perf_counter()
    try:
        with progress(f"{config.simulator} × {envs.num_envs}", calls) as advance:
            for i in range(calls):
                began = time.perf_counter()
                steps, ended, invalid = _advance(envs, chunks[i % _POOL])
                latencies.append(time.perf_counter() - began)
                env_steps += steps
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
        config=asdict(config),
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


def save(result: BenchResult) -> Path:
    """Write the results as JSON; return where."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in str(result.config["simulator"]))
    default = f"runs/bench-{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path = Path(result.config["json"] or default)
    make_folder(path.parent)
    write_atomically(path, json.dumps(asdict(result), indent=2))
    return path


def main(arguments: Sequence[str]) -> int:
    """Parse, measure, print, save."""
    result = run(parse(BenchConfig, "bench", arguments))
    result.show()
    print(f"results: {save(result)}")
    if result.config["trace"]:
        print(f"trace:   {result.config['trace']} (open it in chrome://tracing or ui.perfetto.dev)")
    return 130 if result.interrupted else 0
