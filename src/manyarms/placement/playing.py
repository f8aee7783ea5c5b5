"""The schedule in the driver's hands: which process plays which part of it, and which episodes an update learns from.

What comes of it depends on the schedule alone: not on how many processes play, on how fast they are or on who dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from manyarms.learning.assembly import trainer_config
from manyarms.learning.batch import Batch
from manyarms.learning.config import TrainConfig
from manyarms.placement.faults import lost_on_its_way, signs_of_loss, unwrapped
from manyarms.placement.learners import Share, Standing, shares_of
from manyarms.placement.roles import Report
from manyarms.placement.rollouts import Rollouts
from manyarms.rollout import repetitions, starts
from manyarms.vector import EpisodeId


@dataclass
class Part:
    """Neighbouring episodes that one process plays."""

    batch: PlayedBatch
    first: int
    """The place of the first of them in the update's schedule."""
    episodes: list[EpisodeId]
    rank: int
    film: int | None = None
    life: int = 0
    """Of the process that played it."""
    weights: Sequence[Any] = ()
    """What it was given to find them."""
    refs: list[Any] = field(default_factory=list)


@dataclass
class PlayedBatch(Batch[Any]):
    """A batch that rollout processes play; its payloads are references to episodes."""

    parts: list[Part] = field(default_factory=list)
    waiting: int = 0
    """Parts that are being played."""
    reports: list[Report] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return self.complete and not self.waiting

    def shares(self, world: int) -> list[Share]:
        """Deal the episodes to learners, by their places alone."""
        kept = list(self.kept_places())
        summaries = [self.summaries[place] for place in sorted(self.summaries)]
        return [
            Share(
                [kept[i] for i in part],
                [self.payloads[kept[i]] for i in part],
                self.decided,
                summaries,
                self.rejected,
                self.update - self.version,
                [] if part else [self.payloads[kept[0]]],
            )
            for part in shares_of(kept, world, self.algorithm.group_size)
        ]


class Fetch(Protocol):
    """Gets weights for who was not there when they were broadcast, or could not find them."""

    def __call__(self, version: int, lost: Sequence[Any] | None = None) -> Sequence[Any]:
        """Return a reference to a version, other than the one that is `lost`."""
        ...


class Playing:
    """Hands out the schedule, at most `max_staleness` updates ahead of what is learnt."""

    def __init__(
        self,
        rollouts: Rollouts,
        config: TrainConfig,
        tasks: Sequence[str | None],
        standing: Standing,
        fetch: Fetch,
    ) -> None:
        """Play on from where training stands."""
        self._rollouts, self._config, self._tasks, self._fetch = rollouts, config, list(tasks), fetch
        self._first_version = self._newest = standing.iteration
        self._next_update, self._next_start = standing.iteration, standing.position
        self._weights: dict[int, Sequence[Any]] = {}
        self._batches: dict[int, PlayedBatch] = {}
        self._parts: dict[Any, Part] = {}
        """Those that are being played, by the reference to their report."""

    @property
    def pending(self) -> list[Any]:
        return list(self._parts)

    def allow(self, version: int, weights: Sequence[Any]) -> None:
        """Hear of new weights: a reference to them, or none where they were broadcast."""
        self._weights[version], self._newest = weights, version
        oldest = version - self._config.algorithm.max_staleness
        self._weights = {kept: held for kept, held in self._weights.items() if kept >= oldest}
        self._open()

    def batch(self, update: int) -> PlayedBatch:
        return self._batches[update]

    def learnt(self, update: int) -> None:
        """Forget an update's episodes."""
        del self._batches[update]

    # -- handing out --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Begin as many updates as may be played now, each with the version that is its own."""
        algorithm = self._config.algorithm
        while self._may_open():
            # Always as far behind as is allowed, never fresher by chance: so a run repeats, however fast who is.
            version = max(self._first_version, self._next_update - algorithm.max_staleness)
            target = self._config.episodes_per_step // algorithm.group_size
            batch = PlayedBatch(algorithm, self._next_update, version, self._next_start, target)
            self._batches[batch.update] = batch
            self._next_update += 1
            self._next_start += target
            self._hand_out(batch)

    def _may_open(self) -> bool:
        ahead = self._next_update - self._newest
        if ahead > self._config.algorithm.max_staleness or self._next_update >= self._config.runner.updates:
            return False
        # Where groups may be rejected, nobody knows beforehand where the next update's begin.
        return not self._config.algorithm.max_rejected or all(batch.complete for batch in self._batches.values())

    def _hand_out(self, batch: PlayedBatch) -> None:
        """Have the groups played that a batch misses, each process its share."""
        config, group_size = trainer_config(self._config), batch.algorithm.group_size
        groups = batch.take(batch.missing)
        source = starts(
            self._tasks, config.seed, first=batch.first_start + groups.start, init_states=config.init_states
        )
        begun = list(itertools.islice(source, len(groups)))
        world = len(self._rollouts)
        for rank in range(world):
            own = range(len(groups) * rank // world, len(groups) * (rank + 1) // world)
            episodes = [episode for i in own for episode in repetitions(begun[i], group_size)]
            if episodes:
                film = batch.update + 1 if rank == 0 and not groups.start else None
                part = Part(batch, (groups.start + own.start) * group_size, episodes, rank, film)
                batch.parts.append(part)
                self._play(part)

    def _play(self, part: Part) -> None:
        version = part.batch.version
        part.weights = self._weights[version]
        part.refs = self._rollouts.play(part.rank, version, part.weights, part.episodes, part.film)
        part.life = self._rollouts.lives[part.rank]
        part.batch.waiting += 1
        self._parts[part.refs[0]] = part

    def _play_again(self, part: Part) -> None:
        """Have a part played by a process that was not there when weights were broadcast."""
        version = part.batch.version
        self._weights[version] = self._weights[version] or self._fetch(version)
        self._play(part)

    # -- hearing ------------------------------------------------------------------------------------------------------

    def heard(self, ref: Any) -> None:
        """Take in what a process has played; one that died is replaced, and plays it again."""
        import ray
        from ray.exceptions import RayTaskError

        part = self._parts.pop(ref)
        part.batch.waiting -= 1
        try:
            report: Any = ray.get(ref)
        except RayTaskError as error:
            if not lost_on_its_way(error):
                raise unwrapped(error, f"rollout {part.rank}") from None
            self._find_weights(part)
            self._play(part)
            return
        except signs_of_loss() as error:
            self.replace(part.rank, part.life, error, [part])
            return
        batch = part.batch
        batch.reports.append(report)
        for i, summary in enumerate(report.summaries):
            batch.add(part.first + i, summary, part.refs[1 + i])
        if batch.waiting:
            return
        if batch.missing:
            self._hand_out(batch)
        elif batch.complete:
            batch.check()
            self._next_start = max(self._next_start, batch.first_start + batch.decided)
            self._open()

    def _find_weights(self, part: Part) -> None:
        """Get weights anew that a process did not find; those of another part of the batch may be here already."""
        version = part.batch.version
        if self._weights[version] is part.weights:
            self._weights[version] = self._fetch(version, part.weights)

    def replace(self, rank: int, life: int, error: BaseException, parts: Sequence[Part] = ()) -> None:
        """Replace a process that died in a `life` of it, and give the new one all that the old one had to do.

        One death is heard of by all who had asked it something: after the first of them there is another process.
        """
        own = [part for part in self._parts.values() if (part.rank, part.life) == (rank, life)]
        for part in own:
            # Before anything is waited for: the death would be heard of again.
            del self._parts[part.refs[0]]
            part.batch.waiting -= 1
        if self._rollouts.lives[rank] == life:
            self._rollouts.restart(rank, error)
        for part in [*parts, *own]:
            self._play_again(part)

    def replay_lost(self, batch: PlayedBatch) -> bool:
        """Play again what processes that are gone had played; False: there is none, so that cannot be the reason."""
        lost = [part for part in batch.parts if part.life != self._rollouts.lives[part.rank]]
        for part in lost:
            self._play_again(part)
        return bool(lost)
