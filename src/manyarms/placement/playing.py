"""The schedule in the driver's hands: which process plays which part of it, and which episodes an update learns from.

What comes of it depends on the schedule alone: not on how many processes play, on how fast they are or on who dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from manyarms.algorithms.groups import DynamicSampling
from manyarms.errors import ConfigError
from manyarms.learning.assembly import trainer_config
from manyarms.learning.config import TrainConfig
from manyarms.learning.judging import Outcome
from manyarms.placement.faults import lost_on_its_way, signs_of_loss, unwrapped
from manyarms.placement.learners import Share, Standing, shares_of
from manyarms.placement.roles import Report
from manyarms.placement.rollouts import Rollouts
from manyarms.rollout import repetitions, starts
from manyarms.vector import EpisodeId


@dataclass
class Part:
    """Neighbouring episodes that one process plays."""

    batch: Batch
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


@dataclass(frozen=True)
class _Told:
    place: int
    outcome: Outcome

    @property
    def total_reward(self) -> float:
        return self.outcome.earned


@dataclass
class Batch:
    """What one update is made from."""

    update: int
    version: int
    first: int
    """Its place in the schedule of the run, in starts."""
    wanted: int
    """Starts, or groups, to learn from."""
    group_size: int
    sampling: DynamicSampling[_Told] | None
    """None: everything is learnt from."""
    asked: int = 0
    """Starts that were handed out."""
    parts: list[Part] = field(default_factory=list)
    waiting: int = 0
    """Parts that are being played."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    refs: dict[int, Any] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    used: int = 0
    """Starts that were judged."""
    complete: bool = False

    @property
    def ready(self) -> bool:
        return self.complete and not self.waiting

    @property
    def env_steps(self) -> int:
        return sum(outcome.length for outcome in self.outcomes.values())

    @property
    def kept(self) -> list[int]:
        """Places of the episodes that are learnt from."""
        if self.sampling is None:
            return sorted(self.refs)
        return [told.place for _, told in self.sampling.kept]

    @property
    def rejected(self) -> int:
        return 0 if self.sampling is None else self.sampling.rejected

    def judge(self, most: int) -> int:
        """Judge what has come in; return how many more starts are wanted."""
        for place in range(self.used * self.group_size, self.asked * self.group_size):
            if self.sampling is not None:
                self.sampling(_Told(place, self.outcomes[place]))
        self.used = self.asked
        good = self.used if self.sampling is None else self.sampling.groups
        missing = max(0, min(self.wanted - good, most - self.used))
        self.complete = not missing
        if self.complete and not good:
            raise ConfigError(
                f"in each of {self.used} groups all episodes earned the same: there is nothing to learn from",
                do="begin with a policy that succeeds now and then (cloning), raise group_size, or shape the reward",
            )
        return missing

    def shares(self, world: int) -> list[Share]:
        """Deal the episodes to learners, by their places alone."""
        kept = self.kept
        outcomes = [self.outcomes[place] for place in sorted(self.outcomes)]
        return [
            Share(
                [kept[i] for i in part],
                [self.refs[kept[i]] for i in part],
                self.used,
                outcomes,
                self.rejected,
                self.update - self.version,
                [] if part else [self.refs[kept[0]]],
            )
            for part in shares_of(kept, world, self.group_size)
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
        self._batches: dict[int, Batch] = {}
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

    def batch(self, update: int) -> Batch:
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
            wanted = self._config.episodes_per_step // algorithm.group_size
            sampling = None
            if algorithm.grouped:
                sampling = DynamicSampling[_Told](
                    wanted,
                    algorithm.group_size,
                    bounds=algorithm.reward_bounds,
                    keep_all=not algorithm.dynamic_sampling,
                )
            batch = Batch(self._next_update, version, self._next_start, wanted, algorithm.group_size, sampling)
            self._batches[batch.update] = batch
            self._next_update += 1
            self._next_start += wanted
            self._hand_out(batch, wanted)

    def _may_open(self) -> bool:
        ahead = self._next_update - self._newest
        if ahead > self._config.algorithm.max_staleness or self._next_update >= self._config.runner.updates:
            return False
        # Where groups are played in vain, nobody knows beforehand where the next update's begin.
        return not self._config.algorithm.grouped or all(batch.complete for batch in self._batches.values())

    def _hand_out(self, batch: Batch, count: int) -> None:
        """Have the next starts of a batch played, each process its share."""
        config, group_size = trainer_config(self._config), batch.group_size
        source = starts(self._tasks, config.seed, first=batch.first + batch.asked, init_states=config.init_states)
        begun = list(itertools.islice(source, count))
        world = len(self._rollouts)
        for rank in range(world):
            own = range(count * rank // world, count * (rank + 1) // world)
            episodes = [e for i in own for e in (repetitions(begun[i], group_size) if batch.sampling else [begun[i]])]
            if episodes:
                film = batch.update + 1 if rank == 0 and not batch.asked else None
                part = Part(batch, (batch.asked + own.start) * group_size, episodes, rank, film)
                batch.parts.append(part)
                self._play(part)
        batch.asked += count

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
        for i, outcome in enumerate(report.outcomes):
            batch.outcomes[part.first + i] = outcome
            batch.refs[part.first + i] = part.refs[1 + i]
        if not batch.waiting and not batch.complete:
            missing = batch.judge(self._most(batch))
            if missing:
                self._hand_out(batch, missing)
            else:
                self._next_start = max(self._next_start, batch.first + batch.used)
                self._open()

    def _most(self, batch: Batch) -> int:
        return batch.wanted + (self._config.algorithm.max_rejected if batch.sampling is not None else 0)

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

    def replay_lost(self, batch: Batch) -> bool:
        """Play again what processes that are gone had played; False: there is none, so that cannot be the reason."""
        lost = [part for part in batch.parts if part.life != self._rollouts.lives[part.rank]]
        for part in lost:
            self._play_again(part)
        return bool(lost)
