"""From what was played to what can be learnt from: advantages, over all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from manyarms.algorithms import grpo, ppo, rloo
from manyarms.algorithms.advantages import moments_of, normalised
from manyarms.learning.learner import Learner
from manyarms.learning.ranks import Ranks
from manyarms.learning.samples import Samples, final_observations_of, gathered
from manyarms.rollout import Episode

#: An episode and where it stands in the schedule of all ranks.
Placed = tuple[int, Episode]


@dataclass(frozen=True)
class Outcome:
    """How an episode ended."""

    task: str
    success: bool
    earned: float
    length: int

    @classmethod
    def of(cls, episode: Episode) -> Outcome:
        return cls(episode.id.task or "", episode.success, episode.total_reward, episode.length)


@dataclass(frozen=True)
class Played:
    """What an update is made from."""

    episodes: list[Placed]
    """This rank's, in the order of the schedule."""
    starts: int
    """Starts of the schedule that all ranks used up."""
    outcomes: list[Outcome] = field(default_factory=list)
    """What came of all episodes of all ranks, those of groups played in vain included."""
    rejected: int = 0
    """Groups that were played in vain."""
    spare: Episode | None = None
    """One that this rank played: where none of its groups was kept, it keeps step with the others."""
    staleness: int = 0
    """Updates since the weights that they were played with."""

    @property
    def env_steps(self) -> int:
        """Steps of all ranks' environments."""
        return sum(outcome.length for outcome in self.outcomes)


def samples_from(played: Played, learner: Learner) -> Samples:
    """Judge episodes; every rank has to ask."""
    episodes = [episode for _, episode in played.episodes]
    advantages, returns = _targets(episodes, learner)
    algorithm = learner.algorithm
    if algorithm.normalize_advantages and algorithm.adv_type != "grpo":  # grpo: by the spread of each group
        taken = [a if a.ndim == 1 else a[episode.mask] for a, episode in zip(advantages, episodes, strict=True)]
        count, total, squares = learner.ranks.add_up(moments_of(taken))
        advantages = normalised(advantages, (count, total, squares))
    places = _places(played.episodes, learner.ranks)
    if not episodes and played.spare is not None:
        return gathered([played.spare], [np.zeros(len(played.spare.num_steps))], None, places)
    return gathered(episodes, advantages, returns, places)


def _targets(episodes: Sequence[Episode], learner: Learner) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    algorithm = learner.algorithm
    if algorithm.adv_type == "grpo":
        return grpo.targets(episodes, algorithm.group_size, algorithm.normalize_advantages), None
    if algorithm.adv_type == "rloo":
        return rloo.targets(episodes, algorithm.group_size), None
    with learner.parallel.whole():
        values = learner.policy.values_of(final_observations_of(episodes))
    # At action level, what follows the last frame is worth what its first action would be.
    return ppo.targets(episodes, values if values.ndim == 1 else values[:, 0], algorithm)


def _places(episodes: Sequence[Placed], ranks: Ranks) -> np.ndarray:
    """Return where this rank's decisions lie when those of all ranks follow each other in the schedule's order."""
    mine = [(place, len(episode.num_steps)) for place, episode in episodes]
    everyone = sorted(itertools.chain.from_iterable(ranks.gather(mine)))
    first = itertools.accumulate((count for _, count in everyone), initial=0)
    starts = {place: start for (place, _), start in zip(everyone, first, strict=False)}
    parts = [np.arange(starts[place], starts[place] + count) for place, count in mine]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
