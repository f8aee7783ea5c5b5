"""Episodes that began alike: their advantages, and which groups are worth learning from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from manyarms.algorithms.advantages import is_uniform
from manyarms.errors import ConfigError
from manyarms.rollout import Episode


def returns_of(episodes: Sequence[Episode]) -> np.ndarray:
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


class DynamicSampling:
    """Keeps groups until there are enough: those whose episodes all earned the same teach nothing and are replaced.

    To be given to a runner as `enough`: it hears of episodes in the order of the schedule, so which groups are kept
    does not depend on how fast they ran.
    """

    def __init__(self, wanted: int, group_size: int, *, bounds: tuple[float, float] | None = None) -> None:
        """Keep `wanted` groups; with `bounds`, only those whose mean return lies within."""
        self.kept: list[Episode] = []
        self.rejected = 0
        """Groups that were dropped."""
        self._wanted, self._group_size, self._bounds = wanted, group_size, bounds
        self._group: list[Episode] = []

    def __call__(self, episode: Episode) -> bool:
        """Take the next episode in; True when there are enough groups."""
        self._group.append(episode)
        if len(self._group) == self._group_size:
            if self._is_worth_learning_from(returns_of(self._group)):
                self.kept += self._group
            else:
                self.rejected += 1
            self._group = []
        return len(self.kept) >= self._wanted * self._group_size

    def _is_worth_learning_from(self, returns: np.ndarray) -> bool:
        if is_uniform(returns):
            return False
        return self._bounds is None or self._bounds[0] <= returns.mean() <= self._bounds[1]
