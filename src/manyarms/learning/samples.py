"""Decisions of many episodes, ready to learn from, and where they lie among those of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyarms.algorithms.base import Episodes, Targets
from manyarms.arrays import Array, stack, to_numpy, to_tensor
from manyarms.errors import ConfigError
from manyarms.learning.ranks import Ranks
from manyarms.policies.base import Observations
from manyarms.rollout import Episode
from manyarms.rollout.episode import Column


@dataclass(frozen=True)
class Layout:
    """Where the decisions of all ranks lie, in schedule order: minibatches are drawn from all of them together.

    Nothing has to be moved: each rank computes its own part of every minibatch. So what is learnt does not depend on
    how many ranks there are.
    """

    owner: np.ndarray  # [N] rank that holds a decision
    actions: np.ndarray  # [N] actions executed
    ranks: Ranks

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def is_own(self) -> np.ndarray:  # [N]
        return self.owner == self.ranks.rank

    @cached_property
    def _row(self) -> np.ndarray:  # [N] of a decision of this rank, its row in this rank's samples
        return np.cumsum(self.is_own) - 1

    def micro_batches(self, index: np.ndarray, size: int | None) -> list[tuple[np.ndarray, bool]]:
        """Return this rank's rows of a minibatch of decisions in parts, as many on every rank.

        True: a filler without effect, because DDP and FSDP need every rank in every pass.
        """
        owner = self.owner[index]
        most = int(np.bincount(owner, minlength=self.ranks.world).max())
        size = size or most
        rows = self._row[index[owner == self.ranks.rank]]
        parts = [(rows[start : start + size], False) for start in range(0, len(rows), size)]
        return parts + [(np.zeros(1, np.int64), True)] * (-(-most // size) - len(parts))


@dataclass(frozen=True)
class Samples:
    """N decisions of this rank: what was seen, what was chosen, and how good it was.

    What episodes hold stays where it is: arrays are `Column`s, put together row by row as a minibatch asks for them.
    """

    observations: Observations
    chosen: Array  # [N, K, …]
    log_probs: Array | None  # [N, K, A], of the policy that acted; None: it gave none
    mask: np.ndarray  # [N, K], 1 where an action was executed
    advantages: np.ndarray  # [N], or [N, K] where every action has its own
    returns: np.ndarray | None = None  # like values
    values: Array | None = None  # [N] or [N, K], estimates when it acted
    old_log_probs: np.ndarray | None = None  # like log_probs, of the policy that the update begins with; None: the same

    def __len__(self) -> int:
        return len(self.chosen)

    def rows(self, index: np.ndarray) -> Samples:
        """Return some of them."""
        return Samples(
            self.observations.rows(index),
            self.chosen[index],
            None if self.log_probs is None else self.log_probs[index],
            self.mask[index],
            self.advantages[index],
            None if self.returns is None else self.returns[index],
            None if self.values is None else self.values[index],
            None if self.old_log_probs is None else self.old_log_probs[index],
        )

    def tensors(self, device: torch.device) -> dict[str, Tensor]:
        """Return what a loss needs of them, on a device."""
        names = ("mask", "advantages", "log_probs", "old_log_probs", "values", "returns")
        arrays = {name: getattr(self, name) for name in names}
        return {name: to_tensor(array, device) for name, array in arrays.items() if array is not None}

    def without_effect(self) -> Samples:
        """Return the same decisions as if no action had been executed: their loss and its gradient are 0."""
        return replace(self, mask=np.zeros_like(self.mask))

    def layout(self, ranks: Ranks | None = None) -> Layout:
        """Return the layout of an update in which nobody else has any."""
        ranks = ranks or Ranks()
        return Layout(np.full(len(self), ranks.rank), self.mask.sum(1), ranks)


def observations_of(episodes: Sequence[Episode], fields: Mapping[str, Array] | None = None) -> Observations:
    """Return what was seen before every decision of some episodes, one after the other."""
    steps = [np.cumsum(episode.num_steps) - episode.num_steps for episode in episodes]
    return Observations(
        Column.of(episodes)[0] if fields is None else fields,
        [episode.text for episode in episodes for _ in episode.num_steps],
        [episode.id for episode in episodes for _ in episode.num_steps],
        np.concatenate(steps),
    )


def final_observations_of(episodes: Sequence[Episode]) -> Observations:
    """Return what was seen after the last action of each episode."""
    return Observations(
        {name: stack([e.final_observation[name] for e in episodes]) for name in episodes[0].final_observation},
        [episode.text for episode in episodes],
        [episode.id for episode in episodes],
        np.array([episode.length for episode in episodes]),
    )


# -- the numbers of all ranks -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathered:
    """The numbers of all ranks' episodes in schedule order: the same on every rank."""

    episodes: Episodes
    owner: np.ndarray  # [E] rank that holds an episode
    decisions: np.ndarray  # [E] decisions of each
    ranks: Ranks

    @cached_property
    def index(self) -> tuple[np.ndarray, np.ndarray]:
        """Episode and place in it of every decision: [N], [N]."""
        episode = np.repeat(np.arange(len(self.decisions)), self.decisions)
        first = np.repeat(np.cumsum(self.decisions) - self.decisions, self.decisions)
        return episode, np.arange(len(episode)) - first

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.owner[self.index[0]], self.mask.sum(1), self.ranks)

    @property
    def mask(self) -> np.ndarray:  # [N, K]
        return self.per_decision(self.episodes.mask)

    def per_decision(self, x: np.ndarray) -> np.ndarray:
        """Return [N] or [N, K] of x, which is per episode [E], per decision [E, T] or per action [E, T, K]."""
        episode, place = self.index
        return x[episode] if x.ndim == 1 else x[episode, place]


def gather(
    own: Sequence[tuple[int, Episode]], final_values: np.ndarray | None, max_steps: float, ranks: Ranks
) -> Gathered:
    """Exchange rewards, masks, values and endings of all ranks' episodes; `own` have their places in the schedule."""
    finals = [None] * len(own) if final_values is None else final_values.tolist()
    mine = [
        (place, e.rewards, e.num_steps, _values_of(e), final, e.terminated, e.success)
        for (place, e), final in zip(own, finals, strict=True)
    ]
    found = [(one, rank) for rank, part in enumerate(ranks.gather(mine)) for one in part]
    found.sort(key=lambda pair: pair[0][0])
    _, rewards, steps, values, final, terminated, success = zip(*(one for one, _ in found), strict=True)
    longest, width = max(map(len, steps)), max(part.shape[1] for part in rewards)
    episodes = Episodes(
        _padded(rewards, (longest, width)),
        _padded([np.arange(width) < part[:, None] for part in steps], (longest, width)),
        np.array(terminated),
        np.array(success),
        np.full(len(found), max_steps),
        None if values[0] is None else _padded(values, (longest, *values[0].shape[1:])),
        None if final[0] is None else np.array(final),
    )
    return Gathered(episodes, np.array([rank for _, rank in found]), np.array([len(part) for part in steps]), ranks)


def _values_of(episode: Episode) -> np.ndarray | None:
    return to_numpy(episode.extras["values"]) if "values" in episode.extras else None


def _padded(parts: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Stack arrays of up to `shape`, with zeros (False) where they are smaller."""
    whole = np.zeros((len(parts), *shape), parts[0].dtype)
    for i, part in enumerate(parts):
        whole[(i, *map(slice, part.shape))] = part
    return whole


def samples_from(
    gathered: Gathered,
    targets: Targets,
    own: Sequence[Episode],
    filler: Episode | None,
    needed: Sequence[str] = ("chosen", "log_probs"),
) -> Samples:
    """Put this rank's episodes and what they are to teach into one batch; without any, those of `filler`."""
    episodes = list(own) or ([] if filler is None else [filler])
    missing = [name for name in needed if name not in episodes[0].extras]
    if missing:
        raise ConfigError(
            f"these episodes have no {missing[0]}",
            why="their policy cannot be trained",
            do="use mlp, pixel, pi0 or openvla_oft",
        )

    fields, extras = Column.of(episodes)

    def taught(x: np.ndarray) -> np.ndarray:
        mine = gathered.per_decision(x)[gathered.layout.is_own] if own else np.zeros((len(mask), *x.shape[2:]))
        return mine.astype(np.float32)

    mask = np.concatenate([episode.mask for episode in episodes]).astype(np.float32)
    return Samples(
        observations=observations_of(episodes, fields),
        chosen=extras["chosen"],
        log_probs=extras["log_probs"] if "log_probs" in needed else None,
        mask=mask,
        advantages=taught(targets.advantages),
        returns=None if targets.returns is None else taught(targets.returns),
        values=extras.get("values"),
    )


def shuffled(count: int, size: int, seed: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield minibatches of indices in an order that follows from `seed`; the last may be smaller."""
    order = np.random.default_rng(list(seed)).permutation(count)
    for start in range(0, count, size):
        yield order[start : start + size]
