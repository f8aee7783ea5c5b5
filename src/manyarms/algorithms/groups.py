"""Episodes that began alike: their advantages, and which groups are worth learning from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from manyarms.algorithms.advantages import is_uniform
from manyarms.errors import ConfigError
from manyarms.rollout import Episode


class Rewarded(Protocol):
    """An episode, or what is told of it elsewhere."""

    @property
    def total_reward(self) -> float:
        """What it earned in all."""
        ...


One = TypeVar("One", bound=Rewarded)


def returns_of(episodes: Sequence[Rewarded]) -> np.ndarray:
    """Return what each episode earned in all."""
    return np.array([episode.total_reward for episode in episodes])


def in_groups(
    episodes: Sequence[Episode], group_size: int, advantage: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return an advantage an episode, each group by itself."""
    if len(episodes) % group_size:
        raise ConfigError(f"{len(episodes)} episodes are no whole number of groups of {group_size}")
    returns = returns_of(episodes).reshape(-1, group_size)
    return np.concatenate([advantage(group) for group in returns]) if len(returns) else np.zeros(0)


def over_decisions(episodes: Sequence[Episode], advantages: np.ndarray) -> list[np.ndarray]:
    """Give every decision its episode's advantage."""
    return [np.full(len(episode.num_steps), a) for episode, a in zip(episodes, advantages, strict=True)]


class DynamicSampling(Generic[One]):
    """Keeps groups until there are enough: those whose episodes all earned the same teach nothing and are replaced.

    To be given to a runner as `enough`: it hears of episodes in the order of the schedule, so which groups are kept
    does not depend on how fast they ran.
    """

    def __init__(
        self,
        wanted: int,
        group_size: int,
        *,
        bounds: tuple[float, float] | None = None,
        most: int | None = None,
        keep_all: bool = False,
    ) -> None:
        """Keep `wanted` groups of `most` that are played; with `bounds`, only those whose mean return lies within.

        With `keep_all` nothing is replaced.
        """
        self.kept: list[tuple[int, One]] = []
        """Episodes, each with its place among all that were heard of."""
        self.rejected = 0
        """Groups that were dropped."""
        self.last: One | None = None
        """The last one heard of, kept or not."""
        self._wanted, self._group_size, self._bounds, self._most = wanted, group_size, bounds, most
        self._keep_all = keep_all
        self._group: list[One] = []

    @property
    def groups(self) -> int:
        """Groups that were kept."""
        return len(self.kept) // self._group_size

    def __call__(self, episode: One) -> bool:
        """Take the next episode in; True when there are enough groups, or no more are to be played."""
        self._group.append(episode)
        self.last = episode
        if len(self._group) == self._group_size:
            if self._is_worth_learning_from(returns_of(self._group)):
                first = (self.groups + self.rejected) * self._group_size
                self.kept += [(first + i, one) for i, one in enumerate(self._group)]
            else:
                self.rejected += 1
            self._group = []
        return self.groups >= self._wanted or (self._most is not None and self.groups + self.rejected >= self._most)

    def _is_worth_learning_from(self, returns: np.ndarray) -> bool:
        if self._keep_all:
            return True
        if is_uniform(returns):
            return False
        return self._bounds is None or self._bounds[0] <= returns.mean() <= self._bounds[1]
