"""Playing episodes to count successes: the same for `manyarms eval` and inside training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from manyarms.policies.base import Policy
from manyarms.reporting.results import EpisodeResult
from manyarms.rollout import Runner, RunnerConfig, Sink, starts
from manyarms.vector import EpisodeId, VectorEnv


def held_out(tasks: Sequence[str | None], episodes: int, seed: int, init_states: int | None = None) -> list[EpisodeId]:
    """Return so many episodes a task, tasks in turn, so that an evaluation cut short knows something of each."""
    return list(itertools.islice(starts(tasks, seed, init_states=init_states), episodes * len(tasks)))


def tasks_of(envs: VectorEnv) -> list[str | None]:
    """Return the tasks that rows can play; [None] where the simulator has only itself."""
    return list(dict.fromkeys(name for row in envs.row_tasks for name in row)) or [None]


def results_of(
    envs: VectorEnv,
    policy: Policy,
    episodes: Sequence[tuple[int, EpisodeId]],
    config: RunnerConfig,
    sinks: Sequence[Sink] = (),
) -> Iterator[EpisodeResult]:
    """Play episodes, each with its position among all; yield what came of them, in their order."""
    if not episodes:
        return
    runner = Runner(envs, policy, config, sinks=sinks)
    for (position, _), episode in zip(episodes, runner.play([episode for _, episode in episodes]), strict=True):
        yield EpisodeResult.of(position, episode)
