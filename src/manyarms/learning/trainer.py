"""The loop of training: play episodes, see what was better than expected, learn, and again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from manyarms.algorithms.advantages import explained_variance, moments_of
from manyarms.algorithms.groups import DynamicSampling
from manyarms.errors import ConfigError
from manyarms.learning.judging import Outcome, Placed, Played, samples_from
from manyarms.learning.learner import Learner
from manyarms.learning.samples import Samples
from manyarms.rollout import Episode, Runner, repetitions, starts
from manyarms.vector import EpisodeId


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


class Trainer:
    """Trains a policy on tasks, one update at a time; on several ranks, each with environments of its own.

    Which episodes are played, which are kept and what is learnt from them does not depend on the number of ranks.
    """

    def __init__(self, runner: Runner, learner: Learner, tasks: Sequence[str | None], config: TrainerConfig) -> None:
        group = learner.algorithm.group_size
        if config.episodes_per_step % group:
            raise ConfigError(f"episodes_per_step is {config.episodes_per_step}, no multiple of group_size {group}")
        if config.episodes_per_step // group < learner.ranks.world:
            raise ConfigError(
                f"{learner.ranks.world} ranks have too little to play in an update", do="play more episodes"
            )
        self.runner, self.learner, self.config = runner, learner, config
        self._ranks = learner.ranks
        self._tasks = list(tasks)
        self.iteration = 0
        self.position = 0
        """Starts that have been handed out so far; with `iteration`, all there is to remember of the schedule."""
        self.env_steps = 0
        """Steps of all environments so far, those of groups played in vain included."""

    def step(self) -> dict[str, float]:
        """Play, learn, return what people watch."""
        began = time.perf_counter()
        played = self.play()
        between = time.perf_counter()
        metrics = self.learn(played)
        ended = time.perf_counter()
        return {
            **metrics,
            "time/rollout": between - began,
            "time/actor": ended - between,
            "throughput/env_steps_per_s": played.env_steps / (ended - began),
        }

    # -- playing ------------------------------------------------------------------------------------------------------

    def play(self) -> Played:
        """Play the episodes of an update. Nothing of the trainer changes before it is done."""
        self.learner.policy.eval()
        with self.learner.parallel.whole():
            return self._groups() if self.learner.algorithm.grouped else self._episodes()

    def _episodes(self) -> Played:
        count = self.config.episodes_per_step
        share = self._ranks.share(count)
        begun = itertools.islice(self._starts(self.position), share.start, share.stop)
        episodes = list(zip(share, self.runner.play(begun), strict=True))
        return Played(episodes, count, self._told([Outcome.of(episode) for _, episode in episodes]))

    def _told(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Return what came of the episodes of all ranks."""
        return list(itertools.chain.from_iterable(self._ranks.gather(outcomes)))

    def _groups(self) -> Played:
        """Play until enough groups are worth learning from, or too many were not.

        Ranks play in rounds of as many groups as are missing: the groups kept are the first good ones of the schedule,
        whichever rank played them.
        """
        algorithm = self.learner.algorithm
        wanted = self.config.episodes_per_step // algorithm.group_size
        most = wanted + algorithm.max_rejected
        kept: list[Placed] = []
        spare: Episode | None = None
        outcomes: list[Outcome] = []
        good = used = 0
        while good < wanted and used < most:
            found = self._round(used, wanted - good, most - used)
            kept += found.episodes
            outcomes += found.outcomes
            spare = spare or found.spare
            good, used = good + found.good, used + found.starts
        if not good:
            raise ConfigError(
                f"in each of {used} groups all episodes earned the same: there is nothing to learn from",
                do="begin with a policy that succeeds now and then (cloning), raise group_size, or shape the reward",
            )
        return Played(kept, used, outcomes, used - good, spare)

    def _round(self, first: int, missing: int, most: int) -> _Round:
        """Play groups from a place of this update's schedule on: one round, or, alone, until none is missing."""
        algorithm = self.learner.algorithm
        share = range(most) if self._ranks.world == 1 else self._ranks.share(min(missing, most))
        wanted = min(missing, len(share))
        sampling = DynamicSampling(wanted, algorithm.group_size, bounds=algorithm.reward_bounds, most=len(share))
        heard: list[Outcome] = []

        def enough(episode: Episode) -> bool:
            heard.append(Outcome.of(episode))
            return sampling(episode)

        begun = itertools.islice(self._starts(self.position + first), share.start, share.stop)
        if share:
            for _ in self.runner.play((e for s in begun for e in repetitions(s, algorithm.group_size)), enough):
                pass
        before = (first + share.start) * algorithm.group_size
        placed = [(before + place, episode) for place, episode in sampling.kept]
        good, starts_used = self._ranks.add_up([sampling.groups, sampling.groups + sampling.rejected])
        return _Round(placed, int(good), int(starts_used), self._told(heard), sampling.last)

    def _starts(self, first: int) -> Iterator[EpisodeId]:
        """Yield how episodes begin, from a place in the schedule on."""
        config = self.config
        return starts(self._tasks, config.seed, first=first, init_states=config.init_states)

    # -- learning -----------------------------------------------------------------------------------------------------

    def learn(self, played: Played) -> dict[str, float]:
        """Make an update of what was played."""
        samples = samples_from(played, self.learner)
        metrics = self.learner.update(samples, self.iteration, self.iteration / self.config.max_steps)
        self.iteration += 1
        self.position += played.starts
        self.env_steps += played.env_steps
        return {
            **metrics,
            **self._judged(samples),
            **self._seen(played.outcomes),
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


@dataclass(frozen=True)
class _Round:
    episodes: list[Placed]
    good: int
    starts: int
    outcomes: list[Outcome]
    spare: Episode | None
