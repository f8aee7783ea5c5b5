"""Decisions of many episodes in one batch, ready to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from manyarms.errors import ConfigError
from manyarms.policies.base import Observations
from manyarms.rollout import Episode


@dataclass(frozen=True)
class Samples:
    """N decisions: what was seen, what was chosen, and how good it was."""

    observations: Observations
    chosen: np.ndarray  # [N, K, …]
    log_probs: np.ndarray  # [N, K, A], of the policy that chose
    mask: np.ndarray  # [N, K], which actions were taken
    advantages: np.ndarray  # [N], or [N, K] where every action has its own
    places: np.ndarray  # [N], where each stands among the decisions of all ranks; [0]: none of these counts
    returns: np.ndarray | None = None  # like advantages
    values: np.ndarray | None = None  # like advantages, of the critic that judged then
    proximal: np.ndarray | None = None  # like log_probs, of the policy that an update begins with; None: the same one

    def __len__(self) -> int:
        return len(self.chosen)

    def pick(self, index: np.ndarray) -> Samples:
        """Return some of them."""
        return Samples(
            self.observations.rows(index),
            self.chosen[index],
            self.log_probs[index],
            self.mask[index],
            self.advantages[index],
            self.places[index] if len(self.places) else self.places,
            None if self.returns is None else self.returns[index],
            None if self.values is None else self.values[index],
            None if self.proximal is None else self.proximal[index],
        )

    def without_effect(self) -> Samples:
        """Return the same decisions as if nothing had been done: their loss and its gradient are 0."""
        return replace(self, mask=np.zeros_like(self.mask))


def observations_of(episodes: Sequence[Episode]) -> Observations:
    """Return what was seen before every decision of some episodes, one after the other."""
    steps = [np.cumsum(episode.num_steps) - episode.num_steps for episode in episodes]
    return Observations(
        {name: np.concatenate([e.observations[name] for e in episodes]) for name in episodes[0].observations},
        [episode.text for episode in episodes for _ in episode.num_steps],
        [episode.id for episode in episodes for _ in episode.num_steps],
        np.concatenate(steps),
    )


def final_observations_of(episodes: Sequence[Episode]) -> Observations:
    """Return what was seen after the last action of each episode."""
    return Observations(
        {name: np.stack([e.final_observation[name] for e in episodes]) for name in episodes[0].final_observation},
        [episode.text for episode in episodes],
        [episode.id for episode in episodes],
        np.array([episode.length for episode in episodes]),
    )


def gathered(
    episodes: Sequence[Episode],
    advantages: Sequence[np.ndarray],
    returns: Sequence[np.ndarray] | None = None,
    places: np.ndarray | None = None,
) -> Samples:
    """Put episodes and the advantages of their decisions into one batch; `places` default to the order they are in."""
    missing = [name for name in ("chosen", "log_probs") if name not in episodes[0].extras]
    if missing:
        raise ConfigError(
            f"these episodes have no {missing[0]}",
            why="their policy cannot be trained",
            do="use mlp, pixel, pi0 or openvla_oft",
        )
    has_values = "values" in episodes[0].extras
    return Samples(
        observations=observations_of(episodes),
        chosen=np.concatenate([episode.extras["chosen"] for episode in episodes]),
        log_probs=np.concatenate([episode.extras["log_probs"] for episode in episodes]),
        mask=np.concatenate([episode.mask for episode in episodes]).astype(np.float32),
        advantages=np.concatenate(advantages).astype(np.float32),
        places=np.arange(sum(len(episode.num_steps) for episode in episodes)) if places is None else places,
        returns=None if returns is None else np.concatenate(returns).astype(np.float32),
        values=np.concatenate([episode.extras["values"] for episode in episodes]) if has_values else None,
    )


def shuffled(count: int, size: int, seed: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield minibatches of indices in an order that follows from `seed`; the last may be smaller."""
    order = np.random.default_rng(list(seed)).permutation(count)
    for start in range(0, count, size):
        yield order[start : start + size]
