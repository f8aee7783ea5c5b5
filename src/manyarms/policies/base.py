"""What a policy is: many rows' observations in, a chunk of actions for each out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from manyarms.arrays import Array, concatenate, to_numpy, to_tensor
from manyarms.vector import EpisodeId


@dataclass(frozen=True)
class Observations:
    """What a policy sees of some rows, each somewhere in an episode."""

    fields: Mapping[str, Array]
    """Arrays [rows, …] by flat name (``robot/joints``); the only field of an unnamed observation is ``""``.

    NumPy's, or tensors on the device of a simulator that computes there.
    """
    texts: Sequence[str]
    """What each row is told to do."""
    episodes: Sequence[EpisodeId]
    steps: np.ndarray  # [rows]
    """How many actions each episode has taken."""
    fixed_shapes: bool = False
    """Whether a policy must pad whatever varies among rows, so that what a row gets does not depend on the others."""

    def __len__(self) -> int:
        return len(self.episodes)

    def rows(self, index: Sequence[int] | np.ndarray) -> Observations:
        """Return some of the rows."""
        places = np.asarray(index, np.int64)
        listed: list[int] = places.tolist()
        return Observations(
            {name: array[places] for name, array in self.fields.items()},
            [self.texts[i] for i in listed],
            [self.episodes[i] for i in listed],
            self.steps[places],
            self.fixed_shapes,
        )

    def padded(self, size: int) -> Observations:
        """Return at least `size` rows, the last one repeated, in fixed shapes."""
        index = np.minimum(np.arange(max(size, len(self))), len(self) - 1)
        return replace(self if len(self) >= size else self.rows(index), fixed_shapes=True)

    def with_fields(self, **fields: Array) -> Observations:
        """Return the same rows with fields replaced or added."""
        return replace(self, fields={**self.fields, **fields})

    def like_these(self, array: Array) -> Array:
        """Return an array of NumPy or a tensor as these rows are: a tensor on their device, or an array of NumPy."""
        tensors = [field for field in self.fields.values() if not isinstance(field, np.ndarray)]
        return to_tensor(array, tensors[0].device) if tensors else to_numpy(array)


@dataclass(frozen=True)
class ActionChunk:
    """K actions for each of R rows, and what learning needs to know about how they were chosen."""

    actions: Mapping[str, Array]
    """Arrays [R, K, …] by flat name; a single array of actions is named ``""``."""
    extras: Mapping[str, Array] = field(default_factory=dict)
    """Arrays [R, …] kept with the episode: ``log_probs`` [R, K, …], ``values`` [R], tokens, …"""

    @classmethod
    def of(cls, actions: Array | Mapping[str, Array], **extras: Array) -> ActionChunk:
        """Make a chunk of a plain array or of named ones."""
        return cls(dict(actions) if isinstance(actions, Mapping) else {"": actions}, extras)

    @property
    def length(self) -> int:
        """K."""
        return next(iter(self.actions.values())).shape[1]

    def __len__(self) -> int:
        return len(next(iter(self.actions.values())))

    def rows(self, index: Any) -> ActionChunk:
        """Return some of the rows."""
        return ActionChunk(
            {name: array[index] for name, array in self.actions.items()},
            {name: array[index] for name, array in self.extras.items()},
        )


def joined(chunks: Sequence[ActionChunk]) -> ActionChunk:
    """Put chunks of the same length under each other."""
    first = chunks[0]
    return ActionChunk(
        {name: concatenate([chunk.actions[name] for chunk in chunks]) for name in first.actions},
        {name: concatenate([chunk.extras[name] for chunk in chunks]) for name in first.extras},
    )


@runtime_checkable
class Policy(Protocol):
    """Anything that chooses actions for many rows at once.

    What it returns for a row may depend on that row's observation, text and episode only, never on its neighbours: then
    a run is the same for any number of environments. A policy with a list `cameras` looks through those only (none are
    rendered for an empty one), one with a number `chunk` says how many actions it gives at a time, and one with a dict
    `needs` cannot do without these options of the simulator.
    """

    def act(self, observations: Observations) -> ActionChunk:
        """Choose the next chunk of every row."""
        ...


def needs_of(policy: object) -> dict[str, Any]:
    """Return the simulator options that a policy, or what makes one, cannot do without."""
    return dict(getattr(policy, "needs", {}))
