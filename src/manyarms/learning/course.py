"""Where training stands, and how it goes on from what was played, whoever played it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from manyarms.errors import ConfigError
from manyarms.learning.batch import EpisodeSummary
from manyarms.learning.learner import Learner
from manyarms.rollout import Episode


@dataclass(frozen=True)
class TrainerConfig:
    """How much is played before each update."""

    max_steps: int = 100
    """Updates."""
    episodes_per_step: int = 64
    """Episodes per update; with groups, a multiple of group_size."""
    seed: int = 0
    """Of the first episode; the others count up."""
    init_states: int | None = None
    """Fixed states of each task that episodes begin from in turn; default: wherever the seed says."""

    def __post_init__(self) -> None:
        if self.max_steps < 1 or self.episodes_per_step < 1:
            raise ConfigError("max_steps and episodes_per_step must be at least 1")


@dataclass(frozen=True)
class Shard:
    """What one rank learns an update from, and how all of it went."""

    episodes: list[tuple[int, Episode]]
    """This rank's, each with its place in the schedule of all ranks."""
    starts: int
    """Starts of the schedule that all ranks used up."""
    summaries: list[EpisodeSummary]
    """Of all episodes of all ranks, those of rejected groups included."""
    rejected: int = 0
    """Groups that were rejected."""
    filler: Episode | None = None
    """An episode that this rank takes along without effect where it has none to learn from."""
    staleness: int = 0
    """Updates since the weights that played them."""

    @property
    def env_steps(self) -> int:
        """Steps of all ranks' environments."""
        return sum(summary.length for summary in self.summaries)


class Course:
    """Learns from one update's episodes after the other; on several ranks, each with its share of them."""

    def __init__(
        self, learner: Learner, tasks: Sequence[str | None], config: TrainerConfig, time_limit: float = math.inf
    ) -> None:
        """Learn `tasks`, whose episodes are cut short after `time_limit` actions."""
        group = learner.algorithm.group_size
        if config.episodes_per_step % group:
            raise ConfigError(f"episodes_per_step is {config.episodes_per_step}, no multiple of group_size {group}")
        if config.episodes_per_step // group < learner.ranks.world:
            raise ConfigError(
                f"{learner.ranks.world} ranks have too little to play per update", do="play more episodes"
            )
        self.learner, self.config = learner, config
        self._ranks, self._time_limit = learner.ranks, time_limit
        self._tasks = list(tasks)
        self.iteration = 0
        self.position = 0
        """Starts that have been handed out so far; with `iteration`, all there is to remember of the schedule."""
        self.env_steps = 0
        """Steps of all environments so far, those of rejected groups included."""

    def learn(self, shard: Shard) -> dict[str, float]:
        """Make an update from what was played; every rank has to call this."""
        learner, progress = self.learner, self.iteration / self.config.max_steps
        samples, layout, summary = learner.prepare(
            shard.episodes, self._time_limit, shard.filler, stale=shard.staleness > 0
        )
        metrics = learner.update(samples, self.iteration, progress, layout)
        self.iteration += 1
        self.position += shard.starts
        self.env_steps += shard.env_steps
        return {
            **metrics,
            **self._of_episodes(shard.summaries),
            **summary,
            "rollout/rejected_groups": float(shard.rejected),
            "throughput/env_steps_total": float(self.env_steps),
        }

    def _of_episodes(self, summaries: Sequence[EpisodeSummary]) -> dict[str, float]:
        """Return the means over all episodes that were played, and success task by task."""
        count = len(summaries)
        mean_return = sum(summary.total_reward for summary in summaries) / count
        metrics = {
            "rollout/rewards": mean_return,
            "rollout/returns_mean": mean_return,  # without a critic; with one, what the critic learns
            "env/success_once": sum(summary.success for summary in summaries) / count,
            "env/return": mean_return,
            "env/episode_len": sum(summary.length for summary in summaries) / count,
            "env/num_trajectories": float(count),
        }
        if len(self._tasks) > 1:
            for task in self._tasks:
                wins = [summary.success for summary in summaries if summary.task == (task or "")]
                if wins:
                    metrics[f"env/success_once/{task}"] = sum(wins) / len(wins)
        return metrics
