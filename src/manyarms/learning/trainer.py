"""The loop of training: play episodes, see what was better than expected, learn, and again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from manyarms.learning.batch import Batch, EpisodeSummary
from manyarms.learning.course import Course, Shard, TrainerConfig
from manyarms.learning.learner import Learner
from manyarms.rollout import Episode, Runner, repetitions, starts
from manyarms.vector import EpisodeId


class Trainer(Course):
    """Trains a policy on tasks, one update at a time; on several ranks, each with environments of its own.

    Which episodes are played, which are kept and what is learnt from them does not depend on the number of ranks.
    """

    def __init__(self, runner: Runner, learner: Learner, tasks: Sequence[str | None], config: TrainerConfig) -> None:
        super().__init__(learner, tasks, config, runner.time_limit)
        self.runner = runner

    def step(self) -> dict[str, float]:
        """Play, learn, return what is logged."""
        began = time.perf_counter()
        shard = self.play()
        between = time.perf_counter()
        metrics = self.learn(shard)
        ended = time.perf_counter()
        return {
            **metrics,
            "time/rollout": between - began,
            "time/actor": ended - between,
            "throughput/env_steps_per_s": shard.env_steps / (ended - began),
        }

    def play(self) -> Shard:
        """Play until enough groups are worth learning from, or too many were not. Nothing of the trainer changes.

        Alone, episodes are played in a stream that ends with the last group that is needed. Several ranks go in rounds
        of as many groups as are missing: kept are the first good ones of the schedule, whichever rank played them.
        """
        algorithm = self.learner.algorithm
        target = self.config.episodes_per_step // algorithm.group_size
        batch: Batch[Episode] = Batch(algorithm, self.iteration, self.iteration, self.position, target)
        self.learner.policy.eval()
        with self.learner.parallel.whole():
            while not batch.complete:
                if self._ranks.world == 1:
                    self._stream(batch, batch.take(batch.most))
                else:
                    self._round(batch, batch.take(batch.missing))
        batch.check()
        return Shard(
            [(place, batch.payloads[place]) for place in batch.kept_places() if place in batch.payloads],
            batch.decided,
            [batch.summaries[place] for place in sorted(batch.summaries)],
            batch.rejected,
            batch.filler,
        )

    def _stream(self, batch: Batch[Episode], groups: range) -> None:
        """Play groups until the batch is complete."""
        places = itertools.count(groups.start * batch.algorithm.group_size)
        for _ in self.runner.play(
            self._episodes(batch, groups), lambda one: batch.add(next(places), EpisodeSummary.of(one), one)
        ):
            pass

    def _round(self, batch: Batch[Episode], groups: range) -> None:
        """Play this rank's share of some groups, and hear how those of the others went."""
        share = self._ranks.share(len(groups))
        own = groups[share.start : share.stop]
        found = list(self.runner.play(self._episodes(batch, own))) if own else []
        first = own.start * batch.algorithm.group_size
        played = {first + i: episode for i, episode in enumerate(found)}
        summaries = {place: EpisodeSummary.of(episode) for place, episode in played.items()}
        for place, summary in (item for part in self._ranks.gather(summaries) for item in part.items()):
            batch.add(place, summary, played.get(place))

    def _episodes(self, batch: Batch[Episode], groups: range) -> list[EpisodeId]:
        """Return how the episodes of some groups begin."""
        config = self.config
        source = starts(
            self._tasks, config.seed, first=batch.first_start + groups.start, init_states=config.init_states
        )
        begun = itertools.islice(source, len(groups))
        return [episode for start in begun for episode in repetitions(start, batch.algorithm.group_size)]


__all__ = ["Trainer", "TrainerConfig"]
