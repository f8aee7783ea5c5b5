"""How much of the time simulators and policy really overlap, against what arithmetic allows and against the usual way.

    python benchmarks/rollout.py                     # writes docs/benchmarks/rollout.md

Simulators and policy sleep instead of working, so that the loop is what is measured: a chunk takes a simulator 20 ms, a
batch takes the policy 20 ms times its share of all rows. With S stages a row's cycle is its own 20 ms and the 20/S ms
of its batch, so N rows can do at best N chunks every 20 + 20/S ms.

The usual way waits until every row needs actions, asks the policy for all of them, and lets rows whose episode is over
wait for the others. Both play the same episodes; their lengths are uniform from 4 to 40 chunks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import manyarms
from manyarms import EpisodeId, VectorEnv
from manyarms.policies import ActionChunk, Observations
from manyarms.rollout import Runner, RunnerConfig
from manyarms.simulators.base import ChunkResult, Field, Simulator, Spec, StepResult

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
SHORTEST, LONGEST = 4, 40


@dataclass(frozen=True)
class RolloutBenchmark:
    """What to measure."""

    num_envs: int = 16
    chunk: int = 4
    env_ms: float = 20.0
    """What a chunk takes a simulator."""
    policy_ms: float = 20.0
    """What a batch of all rows takes the policy."""
    stages: tuple[int, ...] = (1, 2, 4)
    episodes: int = 128
    rounds: int = 5
    out: Path = DOCS


class Sleeping(Simulator):
    """Sleeps through every chunk; an episode ends after a number of chunks that its seed draws."""

    def __init__(self, seconds: float, chunk: int) -> None:
        self.seconds, self.chunk = seconds, chunk
        self.steps = self.length = 0
        self.spec = Spec({"": Field((8,))}, {"": Field((7,), "float32", -1.0, 1.0)})

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        self.steps, self.length = 0, length_of(seed or 0) * self.chunk

    def step(self, action: Any) -> StepResult:
        raise TypeError("only chunks are timed")

    def step_chunk(self, actions: Sequence[Any]) -> ChunkResult:
        time.sleep(self.seconds)
        self.steps += len(actions)
        return [0.0] * len(actions), False, self.steps >= self.length, False

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        out[""][0] = self.steps


class SleepingPolicy:
    """Takes time in proportion to the rows it is asked for."""

    def __init__(self, seconds_per_row: float, chunk: int) -> None:
        self.seconds_per_row, self.chunk = seconds_per_row, chunk
        self.rows = 0

    def act(self, observations: Observations) -> ActionChunk:
        time.sleep(self.seconds_per_row * len(observations))
        self.rows += len(observations)
        return ActionChunk.of(np.zeros((len(observations), self.chunk, 7), np.float32))


def length_of(seed: int) -> int:
    """Return how many chunks an episode has."""
    return int(np.random.default_rng(seed).integers(SHORTEST, LONGEST + 1))


def steady(envs: VectorEnv, config: RolloutBenchmark, stages: int) -> float:
    """Return chunks per second while all rows play, of what arithmetic allows."""
    policy = SleepingPolicy(config.policy_ms / 1e3 / config.num_envs, config.chunk)
    runner = Runner(envs, policy, RunnerConfig(pipeline_stage_num=stages, keep=()))
    endless = (EpisodeId(seed=seed) for seed, _ in enumerate(iter(int, 1)))
    seconds, began, counted = 1.5, time.perf_counter(), 0
    rate = 0.0
    for _ in runner.play(endless):
        now = time.perf_counter()
        if not counted and now - began > 0.5:
            began, counted = now, policy.rows
        elif counted and now - began > seconds:
            rate = (policy.rows - counted) / (now - began)
            break
    cycle = (config.env_ms + max(config.policy_ms / stages, config.policy_ms - config.env_ms)) / 1e3
    return rate / (config.num_envs / cycle)


def ours(envs: VectorEnv, config: RolloutBenchmark) -> float:
    """Return the seconds that all episodes take."""
    policy = SleepingPolicy(config.policy_ms / 1e3 / config.num_envs, config.chunk)
    runner = Runner(envs, policy, RunnerConfig(pipeline_stage_num=max(config.stages), keep=()))
    began = time.perf_counter()
    played = list(runner.play(EpisodeId(seed=seed) for seed in range(config.episodes)))
    assert len(played) == config.episodes
    return time.perf_counter() - began


def usual(envs: VectorEnv, config: RolloutBenchmark) -> float:
    """Return the seconds they take when rows wait for each other."""
    policy = SleepingPolicy(config.policy_ms / 1e3 / config.num_envs, config.chunk)
    began = time.perf_counter()
    for everyone, episodes in _batches(config):
        rows = everyone
        envs.begin(rows, episodes)
        envs.recv(min_rows=len(rows))
        while len(rows):
            fields = {"": envs.observations[rows]}
            observations = Observations(fields, [""] * len(rows), [EpisodeId()] * len(rows), np.zeros(len(rows)))
            envs.send(rows, policy.act(observations).actions[""])
            ready = envs.recv(min_rows=len(rows))
            rows = ready.rows[~ready.ended]
    return time.perf_counter() - began


def _batches(config: RolloutBenchmark) -> Iterator[tuple[np.ndarray, list[EpisodeId]]]:
    for start in range(0, config.episodes, config.num_envs):
        seeds = range(start, min(start + config.num_envs, config.episodes))
        yield np.arange(len(seeds)), [EpisodeId(seed=seed) for seed in seeds]


def main() -> None:
    import tyro

    config = tyro.cli(RolloutBenchmark)
    shares: dict[int, list[float]] = {stages: [] for stages in config.stages}
    times: dict[str, list[float]] = {"ours": [], "usual": []}
    options = {"seconds": config.env_ms / 1e3, "chunk": config.chunk, "max_chunk": config.chunk}
    with manyarms.make_vec(Sleeping, config.num_envs, **options) as envs:
        for i in range(config.rounds):
            for stages in config.stages:
                shares[stages].append(steady(envs, config, stages))
            times["ours"].append(ours(envs, config))
            times["usual"].append(usual(envs, config))
            print(f"{i + 1}/{config.rounds}", {s: round(v[-1], 3) for s, v in shares.items()}, flush=True)
            print({name: round(found[-1], 2) for name, found in times.items()}, flush=True)
    ratio = statistics.median(u / o for u, o in zip(times["usual"], times["ours"], strict=True))
    lines = ["| stages | at best, ms a cycle | reached |", "|---:|---:|---:|"]
    for stages, found in shares.items():
        cycle = config.env_ms + max(config.policy_ms / stages, config.policy_ms - config.env_ms)
        lines.append(f"| {stages} | {cycle:g} | {100 * statistics.median(found):.1f} % |")
    text = (
        "# Rollouts: simulation and inference side by side\n\n"
        f"{config.num_envs} simulators that sleep {config.env_ms:g} ms a chunk of {config.chunk} actions, a policy "
        f"that sleeps {config.policy_ms:g} ms a full batch; medians of {config.rounds} rounds. Made with "
        "`python benchmarks/rollout.py`, which also says how the bound is computed.\n\n"
        + "\n".join(lines)
        + f"\n\n{config.episodes} episodes of {SHORTEST} to {LONGEST} chunks (uniform): "
        f"{statistics.median(times['ours']):.2f} s with {max(config.stages)} stages, against "
        f"{statistics.median(times['usual']):.2f} s for a runner that asks the policy only when every row needs "
        "actions and lets rows whose episode is over wait for the others: "
        f"**{ratio:.2f} ×**.\n"
    )
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "rollout.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
