"""What an update learns from: decided by the places in the schedule alone, whoever plays and however fast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from manyarms.algorithms.base import Algorithm, Group
from manyarms.errors import ConfigError
from manyarms.rollout import Episode

Payload = TypeVar("Payload")  # an Episode where it was played, a reference to it on Ray


@dataclass(frozen=True)
class EpisodeSummary:
    """How an episode went: what travels of it to whoever does not learn from it."""

    task: str
    success: bool
    total_reward: float
    length: int

    @classmethod
    def of(cls, episode: Episode) -> EpisodeSummary:
        return cls(episode.id.task or "", episode.success, episode.total_reward, episode.length)


@dataclass
class Batch(Generic[Payload]):
    """Groups of an update. `take` says which starts to play next, `add` what came of an episode."""

    algorithm: Algorithm
    update: int
    version: int
    """Of the weights that play it."""
    first_start: int
    """Its first start in the schedule of the run."""
    target: int
    """Groups to learn from; without groups, episodes."""
    taken: int = 0
    """Groups handed out."""
    decided: int = 0
    """Groups decided upon, and all before them too."""
    kept: list[int] = field(default_factory=list)
    """Groups to learn from."""
    summaries: dict[int, EpisodeSummary] = field(default_factory=dict)
    """By place: group times group_size, plus index."""
    payloads: dict[int, Payload] = field(default_factory=dict)
    """By place; those of rejected groups are dropped."""
    filler: Payload | None = None
    """An episode of a rejected group: a rank with nothing to learn from takes it along without effect."""

    @property
    def most(self) -> int:
        """Groups that may be played at most."""
        return self.target + self.algorithm.max_rejected

    @property
    def complete(self) -> bool:
        return len(self.kept) >= self.target or self.decided >= self.most

    @property
    def missing(self) -> int:
        """Groups to hand out so that it may become complete; 0 while some are being played."""
        if self.complete or self.decided < self.taken:
            return 0
        return min(self.target - len(self.kept), self.most - self.taken)

    @property
    def rejected(self) -> int:
        return self.decided - len(self.kept)

    @property
    def env_steps(self) -> int:
        """Steps of all environments, those of rejected groups included."""
        return sum(summary.length for summary in self.summaries.values())

    def take(self, count: int) -> range:
        """Hand out the next groups of the schedule."""
        groups = range(self.taken, self.taken + count)
        self.taken += count
        return groups

    def places(self, group: int) -> range:
        """Return the places of a group's episodes."""
        size = self.algorithm.group_size
        return range(group * size, (group + 1) * size)

    def add(self, place: int, summary: EpisodeSummary, payload: Payload | None = None) -> bool:
        """Take an episode in, in any order, and decide on groups in schedule order; return whether it is complete.

        On several ranks, whoever did not play an episode adds it without its payload.
        """
        self.summaries[place] = summary
        if payload is not None:
            self.payloads[place] = payload
        while not self.complete and self.decided < self.taken:
            places = self.places(self.decided)
            if any(one not in self.summaries for one in places):
                break
            self._decide(places)
        return self.complete

    def _decide(self, places: range) -> None:
        """Keep or reject the next group."""
        found = [self.summaries[one] for one in places]
        group = Group(
            np.array([one.total_reward for one in found]),
            np.array([one.success for one in found]),
            np.array([one.length for one in found]),
        )
        if self.algorithm.keeps(group):
            self.kept.append(self.decided)
        else:
            for payload in [self.payloads.pop(one) for one in places if one in self.payloads]:
                self.filler = payload
        self.decided += 1

    def kept_places(self) -> Iterator[int]:
        """Yield the places of what is learnt from, in schedule order."""
        return (place for group in self.kept for place in self.places(group))

    def check(self) -> None:
        """Refuse to learn from nothing."""
        if not self.kept:
            raise ConfigError(
                f"{self.decided} groups were played and all were rejected: there is nothing to learn from",
                why="in a group whose episodes all have the same return, none is better than another",
                do="begin with a policy that succeeds now and then (cloning), raise group_size, or shape the reward",
            )


__all__ = ["Batch", "EpisodeSummary"]
