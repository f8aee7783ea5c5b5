"""Where training stands, and how it goes on from what was played, whoever played it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manyarms.algorithms.advantages import explained_variance, moments_of
from manyarms.errors import ConfigError
from manyarms.learning.judging import Outcome, Played, samples_from
from manyarms.learning.learner import Learner
from manyarms.learning.samples import Samples


@dataclass(frozen=True)
class TrainerConfig:
    """How much is played before each update."""

    max_steps: int = 100
    """Updates."""
    episodes_per_step: int = 64
    """Episodes an update is made from; with groups, a multiple of group_size."""
    seed: int = 0
    """Of the first episode; the others count up."""
    init_states: int | None = None
    """Fixed states of each task that episodes begin from in turn; default: wherever the seed says."""

    def __post_init__(self) -> None:
        if self.max_steps < 1 or self.episodes_per_step < 1:
            raise ConfigError("max_steps and episodes_per_step must be at least 1")


class Course:
    """Learns from one update's episodes after the other; on several ranks, each with its share of them."""

    def __init__(self, learner: Learner, tasks: Sequence[str | None], config: TrainerConfig) -> None:
        group = learner.algorithm.group_size
        if config.episodes_per_step % group:
            raise ConfigError(f"episodes_per_step is {config.episodes_per_step}, no multiple of group_size {group}")
        if config.episodes_per_step // group < learner.ranks.world:
            raise ConfigError(
                f"{learner.ranks.world} ranks have too little to play in an update", do="play more episodes"
            )
        self.learner, self.config = learner, config
        self._ranks = learner.ranks
        self._tasks = list(tasks)
        self.iteration = 0
        self.position = 0
        """Starts that have been handed out so far; with `iteration`, all there is to remember of the schedule."""
        self.env_steps = 0
        """Steps of all environments so far, those of groups played in vain included."""

    def learn(self, played: Played) -> dict[str, float]:
        """Make an update of what was played."""
        samples = samples_from(played, self.learner)
        if played.staleness:
            samples = self.learner.judge_anew(samples)
        metrics = self.learner.update(samples, self.iteration, self.iteration / self.config.max_steps)
        self.iteration += 1
        self.position += played.starts
        self.env_steps += played.env_steps
        return {
            **metrics,
            **self._seen(played.outcomes),
            **self._judged(samples),
            "rollout/rejected_groups": float(played.rejected),
            "throughput/env_steps_total": float(self.env_steps),
        }

    # -- what people watch --------------------------------------------------------------------------------------------

    def _judged(self, samples: Samples) -> dict[str, float]:
        taken = samples.mask > 0 if samples.advantages.ndim == 2 else slice(len(samples.places))
        count, total, _ = self._ranks.add_up(moments_of([samples.advantages[taken]]))
        metrics = {"rollout/advantages_mean": total / count}
        if samples.returns is not None and samples.values is not None:
            returns, values = samples.returns[taken].astype(np.float64), samples.values[taken]
            counts = self._ranks.add_up([*moments_of([returns]), *moments_of([returns - values])])
            metrics["rollout/returns_mean"] = counts[1] / counts[0]
            metrics["critic/explained_variance"] = explained_variance(counts[:3], counts[3:])
        return metrics

    def _seen(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Return the means over all episodes that were played, and success task by task."""
        count = len(outcomes)
        earned = sum(outcome.earned for outcome in outcomes) / count
        metrics = {
            "rollout/rewards": earned,
            "rollout/returns_mean": earned,  # without a critic; with one, `_judged` has what the critic learns
            "env/success_once": sum(outcome.success for outcome in outcomes) / count,
            "env/return": earned,
            "env/episode_len": sum(outcome.length for outcome in outcomes) / count,
            "env/num_trajectories": float(count),
        }
        if len(self._tasks) > 1:
            for task in self._tasks:
                wins = [outcome.success for outcome in outcomes if outcome.task == (task or "")]
                if wins:
                    metrics[f"env/success_once/{task}"] = sum(wins) / len(wins)
        return metrics
