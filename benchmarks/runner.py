"""What the runner itself costs: decisions per second with a simulator and a policy that do nothing, in one process.

    python benchmarks/runner.py                     # writes docs/benchmarks/runner.md

All rows of the simulator step in one call, as those of a simulator on a GPU do, so no process is waited for. Rows show
two images of 64 by 64 pixels and a state; a decision is a chunk of 8 actions, an episode has 64. Everything is on that
is on when a policy is trained: the schedule, queues, stages, the books of every episode, what episodes keep. The
policy's call is not counted. What is kept of images has to be copied once, out of the arrays that the simulator writes
next: how long the same copy takes by itself, in the same run, is shown beside it.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from manyarms import EpisodeId
from manyarms.policies import ActionChunk, Observations
from manyarms.rollout import Runner, RunnerConfig
from manyarms.simulators.base import Field, Spec
from manyarms.vector import VectorConfig
from manyarms.vector.chunk import Chunk

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
CHUNK, LENGTH, WIDTH = 8, 64, 7


@dataclass(frozen=True)
class RunnerBenchmark:
    """What to measure."""

    rows: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    seconds: float = 2.0
    rounds: int = 5
    images: bool = True
    """Whether rows show images too."""
    out: Path = DOCS


class NullRows:
    """A vector environment whose rows all step at once, in no time."""

    lockstep = False

    def __init__(self, num_envs: int, images: bool) -> None:
        self.num_envs = num_envs
        self.config = VectorConfig(num_envs, max_chunk=CHUNK, max_episode_steps=LENGTH)
        fields = {"state": Field((16,))}
        if images:
            fields |= {f"{name}_rgb": Field((64, 64, 3), "u1", camera=name) for name in ("front", "wrist")}
        self.simulator_spec = Spec(fields, {"": Field((WIDTH,), "f4", -1.0, 1.0)}, horizon=LENGTH)
        self.row_tasks: list[tuple[str, ...]] = [()] * num_envs
        self.observations = {name: np.zeros((num_envs, *f.shape), f.dtype) for name, f in fields.items()}
        self._steps = np.zeros(num_envs, np.int64)
        self._asked = np.full(num_envs, -1)
        """Actions that each row was sent; -1: none."""

    def begin(self, rows: Any, episodes: Sequence[EpisodeId], *, cameras: Any = None) -> None:
        self._steps[rows] = 0
        self._asked[rows] = 0

    def send(self, rows: Any, actions: Any, lengths: Any = None, *, cameras: Any = None) -> None:
        self._asked[rows] = lengths

    def recv(self, min_rows: int = 1, timeout: float | None = None, **_: Any) -> Chunk:
        # As many as are waited for: the others simulate meanwhile.
        rows = np.flatnonzero(self._asked >= 0)[:min_rows]
        steps = np.minimum(self._asked[rows], LENGTH - self._steps[rows])
        self._steps[rows] += steps
        self._asked[rows] = -1
        ended, no = self._steps[rows] >= LENGTH, np.zeros(len(rows), bool)
        return Chunk(rows, None, np.zeros((len(rows), CHUNK)), steps, no, ended, no, no, {})

    def abandon(self) -> None:
        self._asked[:] = -1


class NullPolicy:
    """Gives the same actions to everybody, with what a learner needs to know of them."""

    chunk = CHUNK

    def __init__(self, num_envs: int) -> None:
        self._actions = np.zeros((num_envs, CHUNK, WIDTH), np.float32)
        self._values = np.zeros(num_envs, np.float32)
        self.decisions, self.seconds = 0, 0.0

    def act(self, observations: Observations) -> ActionChunk:
        count = len(observations)
        self.decisions += count
        actions = self._actions[:count]
        return ActionChunk.of(actions, chosen=actions, log_probs=actions, values=self._values[:count])


def decision_us(num_envs: int, config: RunnerBenchmark) -> float:
    """Return microseconds per decision and row, the policy's call excluded."""
    policy = NullPolicy(num_envs)
    runner = Runner(cast(Any, NullRows(num_envs, config.images)), policy, RunnerConfig())
    endless = (EpisodeId(None, seed) for seed in itertools.count())
    began, counted, spent = 0.0, 0, 0.0
    while True:
        for i, _ in enumerate(runner.play(endless)):
            if i % 16:
                continue
            now = time.perf_counter()
            if not began and i > 2 * num_envs:
                began, counted, spent = now, policy.decisions, runner.times.policy
            elif began and now - began > config.seconds:
                seconds = now - began - (runner.times.policy - spent)
                return seconds / (policy.decisions - counted) * 1e6


def copy_us(num_envs: int, config: RunnerBenchmark) -> float:
    """Return microseconds that copying a row's observation takes, a stage of rows at a time, into new memory."""
    fields = NullRows(num_envs, config.images).observations
    rows = np.arange(0, num_envs, 2) if num_envs > 1 else np.zeros(1, np.int64)
    spent, count, kept = 0.0, 0, []
    while spent < config.seconds / 4:
        began = time.perf_counter()
        kept.append([np.take(array, rows, 0) for array in fields.values()])
        spent += time.perf_counter() - began
        count += len(rows)
        if len(kept) > 2 * LENGTH // CHUNK:
            kept.clear()
    return spent / count * 1e6


def measured(config: RunnerBenchmark) -> dict[str, dict[str, float]]:
    """Return medians by number of rows."""
    found: dict[str, dict[str, list[float]]] = {}
    for i in range(config.rounds):
        for count in config.rows:
            one = {"all": decision_us(count, config), "copy": copy_us(count, config)}
            for name, value in one.items():
                found.setdefault(str(count), {}).setdefault(name, []).append(value)
            print(f"{i + 1}/{config.rounds}: {count} rows", {k: round(v, 2) for k, v in one.items()}, flush=True)
    return {count: {name: statistics.median(v) for name, v in parts.items()} for count, parts in found.items()}


def main() -> None:
    import tyro

    config = tyro.cli(RunnerBenchmark)
    print(json.dumps(measured(config)))


if __name__ == "__main__":
    main()
