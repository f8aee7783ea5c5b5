"""What the runner itself costs: decisions per second with a simulator and a policy that do nothing, in one process.

    python benchmarks/runner.py                     # writes docs/benchmarks/runner.md

All rows of the simulator step in one call, as those of a simulator on a GPU do, so no process is waited for. Rows show
two images of 64 by 64 pixels and a state; a decision is a chunk of 8 actions, an episode has 64. Everything is on that
is on when a policy is trained: the schedule, queues, stages, the books of every episode, what episodes keep. The
policy's call is not counted. What is kept of images has to be copied once, out of the arrays that the simulator writes
next: how long the same copy takes by itself, in the same run, is shown beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from manyarms import EpisodeId
from manyarms.policies import ActionChunk, Observations
from manyarms.rollout import Runner, RunnerConfig
from manyarms.simulators.base import Field, Spec
from manyarms.vector import VectorConfig
from manyarms.vector.chunk import Chunk

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS, SOURCE = REPOSITORY / "docs" / "benchmarks", REPOSITORY / "src"
CHUNK, LENGTH, WIDTH = 8, 64, 7


@dataclass(frozen=True)
class RunnerBenchmark:
    """What to measure."""

    rows: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    seconds: float = 2.0
    rounds: int = 5
    images: bool = True
    """Whether rows show images too."""
    against: Path | None = None
    """The `src` of another version, measured in turn with this one."""
    once: bool = False
    """Measure once in this process, and print it."""
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
        self._turn = np.zeros(num_envs, np.int64)
        """When each row was sent something last."""

    def begin(self, rows: Any, episodes: Sequence[EpisodeId], *, cameras: Any = None) -> None:
        self._steps[rows] = 0
        self.send(rows, None, 0)

    def send(self, rows: Any, actions: Any, lengths: Any = None, *, cameras: Any = None) -> None:
        self._asked[rows] = lengths
        self._turn[rows] = self._turn.max() + 1

    def recv(self, min_rows: int = 1, timeout: float | None = None, **_: Any) -> Chunk:
        # As many as are waited for, in the order in which they were sent: the others simulate meanwhile.
        rows = np.flatnonzero(self._asked >= 0)
        rows = np.sort(rows[np.argsort(self._turn[rows], kind="stable")[:min_rows]])
        steps = np.minimum(self._asked[rows], LENGTH - self._steps[rows])
        self._steps[rows] += steps
        self._asked[rows] = -1
        ended, no = self._steps[rows] >= LENGTH, np.zeros(len(rows), bool)
        return Chunk(rows, None, np.zeros((len(rows), CHUNK)), steps, no, ended, no, no, {})

    def abandon(self) -> None:
        self._asked[:] = -1


class Measured(Exception):
    """Enough was played."""


class NullPolicy:
    """Gives the same actions to everybody, with what a learner needs to know of them, and keeps the time."""

    chunk = CHUNK

    def __init__(self, num_envs: int, seconds: float) -> None:
        self._actions = np.zeros((num_envs, CHUNK, WIDTH), np.float32)
        self._values = np.zeros(num_envs, np.float32)
        self._round = num_envs * LENGTH // CHUNK
        self._decisions = self._first = 0
        self._began, self._seconds, self._own = 0.0, seconds, 0.0
        self.us_per_decision = 0.0

    def act(self, observations: Observations) -> ActionChunk:
        now = time.perf_counter()
        if not self._began and self._decisions >= 5 * self._round:
            self._began, self._first, self._own = now, self._decisions, 0.0
        played, spent = self._decisions - self._first, now - self._began - self._own
        # Rows begin and end together: only whole episodes cost what an episode costs.
        if self._began and played and played % self._round == 0 and spent > self._seconds:
            self.us_per_decision = spent / played * 1e6
            raise Measured
        count = len(observations)
        self._decisions += count
        actions = self._actions[:count]
        chunk = ActionChunk.of(actions, chosen=actions, log_probs=actions, values=self._values[:count])
        self._own += time.perf_counter() - now
        return chunk


def decision_us(num_envs: int, config: RunnerBenchmark) -> float:
    """Return microseconds per decision and row, the policy's call excluded."""
    policy = NullPolicy(num_envs, config.seconds)
    runner = Runner(cast(Any, NullRows(num_envs, config.images)), policy, RunnerConfig())
    with contextlib.suppress(Measured):
        for _ in runner.play(EpisodeId(None, seed) for seed in itertools.count()):
            pass
    return policy.us_per_decision


def copy_us(num_envs: int, config: RunnerBenchmark) -> float:
    """Return microseconds that copying a row's observation takes, a stage of rows at a time, to memory that is warm."""
    fields = NullRows(num_envs, config.images).observations
    rows = np.arange(0, num_envs, 2) if num_envs > 1 else np.zeros(1, np.int64)
    rooms = [{name: array[rows] for name, array in fields.items()} for _ in range(2 * LENGTH // CHUNK)]
    spent, count = 0.0, 0
    while spent < config.seconds / 4:
        began = time.perf_counter()
        for room in rooms:
            for name, array in fields.items():
                np.take(array, rows, 0, out=room[name], mode="clip")
        spent += time.perf_counter() - began
        count += len(rows) * len(rooms)
    return spent / count * 1e6


def measure(num_envs: int, config: RunnerBenchmark, source: Path) -> dict[str, float]:
    """Measure a version of manyarms in a process of its own."""
    words = [sys.executable, __file__, "--rows", str(num_envs), "--seconds", str(config.seconds), "--once"]
    words += ["--images" if config.images else "--no-images"]
    path = os.pathsep.join(filter(None, [str(source.absolute()), os.environ.get("PYTHONPATH")]))
    found = subprocess.run(words, check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
    return json.loads(found.stdout)


def measured(config: RunnerBenchmark) -> dict[str, dict[int, dict[str, float]]]:
    """Return medians by version and number of rows; versions take turns."""
    versions = {"now": SOURCE, **({"before": config.against} if config.against else {})}
    found: dict[str, dict[int, dict[str, list[float]]]] = {}
    for i in range(config.rounds):
        for count in config.rows:
            for version, source in versions.items():
                one = measure(count, config, source)
                for name, value in one.items():
                    found.setdefault(version, {}).setdefault(count, {}).setdefault(name, []).append(value)
                print(f"{i + 1}/{config.rounds}: {count} rows, {version}", one, flush=True)
    return {
        version: {count: {name: statistics.median(v) for name, v in parts.items()} for count, parts in rows.items()}
        for version, rows in found.items()
    }


def page(config: RunnerBenchmark, found: dict[str, dict[int, dict[str, float]]]) -> str:
    """Return the page of the documentation."""
    before = found.get("before")
    head = ["rows", "decisions per second", "µs per decision and row", "the copy of what is seen by itself"]
    lines = [head + ["before, µs"] * bool(before), ["---:"] * (len(head) + bool(before))]
    for count, one in found["now"].items():
        cells = [f"{count:,}", f"{1e6 / one['all']:,.0f}", f"**{one['all']:.2f}**", f"{one['copy']:.2f}"]
        lines.append(cells + [f"{before[count]['all']:.1f}"] * bool(before) if before else cells)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    seen = "two images of 64 by 64 pixels and 16 numbers" if config.images else "16 numbers"
    return f"## Rows that show {seen}\n\n{table}\n"


def main() -> None:
    import tyro

    config = tyro.cli(RunnerBenchmark)
    if config.once:
        (count,) = config.rows
        print(json.dumps({"all": decision_us(count, config), "copy": copy_us(count, config)}))
        return
    parts = [page(one, measured(one)) for one in (replace(config, images=False), config)]
    text = (
        "# What the runner costs\n\nDecisions per second with a simulator and a policy that do nothing, in one "
        "process: schedule, queues, books and what episodes keep are on, the policy's call is not counted. A decision "
        f"is a chunk of {CHUNK} actions, an episode has {LENGTH}; medians of {config.rounds} rounds. Made with "
        "`python benchmarks/runner.py`, which says more.\n\n" + "\n".join(parts)
    )
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "runner.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
