"""The loop of training: play episodes, see what was better than expected, learn, and again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from manyarms.algorithms.groups import DynamicSampling
from manyarms.errors import ConfigError
from manyarms.learning.course import Course, TrainerConfig
from manyarms.learning.judging import Outcome, Placed, Played
from manyarms.learning.learner import Learner
from manyarms.rollout import Episode, Runner, repetitions, starts
from manyarms.vector import EpisodeId


class Trainer(Course):
    """Trains a policy on tasks, one update at a time; on several ranks, each with environments of its own.

    Which episodes are played, which are kept and what is learnt from them does not depend on the number of ranks.
    """

    def __init__(self, runner: Runner, learner: Learner, tasks: Sequence[str | None], config: TrainerConfig) -> None:
        super().__init__(learner, tasks, config)
        self.runner = runner

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
        sampling: DynamicSampling[Episode] = DynamicSampling(
            wanted,
            algorithm.group_size,
            bounds=algorithm.reward_bounds,
            most=len(share),
            keep_all=not algorithm.dynamic_sampling,
        )
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


@dataclass(frozen=True)
class _Round:
    episodes: list[Placed]
    good: int
    starts: int
    outcomes: list[Outcome]
    spare: Episode | None


__all__ = ["Trainer", "TrainerConfig"]
