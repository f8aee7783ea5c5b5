"""An episode as the policy lived it: what it saw, what it chose, what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from manyarms.arrays import Array, concatenate, empty, padded, put, take, to_numpy
from manyarms.vector import EpisodeId


@dataclass
class Segment:
    """Room for neighbouring decisions, filled in the order in which they are made."""

    first: int
    """Number of its first decision."""
    room: int
    used: int = 0
    observations: dict[str, Array] = field(default_factory=dict)  # [room, …]
    actions: dict[str, Array] = field(default_factory=dict)  # [room, K, …]
    extras: dict[str, Array] = field(default_factory=dict)  # [room, …]


Parts: TypeAlias = tuple[tuple[Segment, np.ndarray], ...]
"""Where the decisions of an episode lie: segments, and the places in them."""


class Picked(Mapping[str, Array]):
    """Arrays [T, …] by name, of decisions that lie in segments: each is put together when it is asked for.

    Where the chunks of an episode differ in length, the shorter are padded with zeros.
    """

    __slots__ = ("kind", "parts")

    def __init__(self, parts: Parts, kind: str) -> None:
        """Pick the observations, actions or extras of some decisions."""
        self.parts, self.kind = parts, kind

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        found = [take(getattr(segment, self.kind)[name], places) for segment, places in self.parts]
        if any(array.shape[1:] != found[0].shape[1:] for array in found):
            longest = max(array.shape[1] for array in found)
            found = [padded(array, longest) for array in found]
        return concatenate(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def _names(self) -> Mapping[str, Array]:
        return getattr(self.parts[0][0], self.kind) if self.parts else {}

    @property
    def nbytes(self) -> int:
        """The memory that these rows take."""
        return sum(
            len(places) * array[:1].nbytes
            for segment, places in self.parts
            for array in getattr(segment, self.kind).values()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Only these rows travel to another process.
        return dict, ({name: to_numpy(array) for name, array in self.items()},)


class Row(Mapping[str, Array]):
    """One row of arrays [R, …] by name."""

    __slots__ = ("arrays", "index")

    def __init__(self, arrays: Mapping[str, Array], index: int) -> None:
        self.arrays, self.index = arrays, index

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name][self.index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ({name: np.array(to_numpy(array)) for name, array in self.items()},)


@dataclass(frozen=True)
class Episode:
    """One episode of T decisions, each a chunk of K actions of which some were taken.

    ``observations[name][t]`` is what the policy saw before it chose ``actions[name][t]``. Of an episode that was played
    here, these arrays are views of what a runner keeps, put together when they are asked for.
    """

    id: EpisodeId
    text: str
    observations: Mapping[str, Array]  # [T, …]
    final_observation: Mapping[str, Array]  # […]
    actions: Mapping[str, Array]  # [T, K, …]
    rewards: np.ndarray  # [T, K], 0 where not taken
    num_steps: np.ndarray  # [T], how many actions of each chunk were taken
    extras: Mapping[str, Array]  # [T, …]: log_probs, values and whatever else the policy gave
    success: bool
    terminated: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)
    """What the simulator said at the start: variation, initial state, …"""
    last_info: dict[str, Any] = field(default_factory=dict)
    attempts: int = 1

    @property
    def mask(self) -> np.ndarray:
        """[T, K]: which actions were taken."""
        return np.arange(self.rewards.shape[1]) < self.num_steps[:, None]

    @property
    def length(self) -> int:
        """Actions taken."""
        return int(self.num_steps.sum())

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum())

    def taken_actions(self) -> dict[str, np.ndarray]:
        """Return the actions that were taken, one after the other: arrays [length, …]."""
        mask = self.mask
        return {name: to_numpy(array)[mask] for name, array in self.actions.items()}

    @property
    def num_bytes(self) -> int:
        """The memory its arrays take."""
        groups = (self.observations, self.final_observation, self.actions, self.extras)
        return sum(map(_num_bytes, groups)) + self.rewards.nbytes


def _num_bytes(arrays: Mapping[str, Array]) -> int:
    return arrays.nbytes if isinstance(arrays, Picked) else sum(array.nbytes for array in arrays.values())


class Column:
    """One array over the decisions of many episodes: ``column[index]`` puts rows [N, …] together, wherever they lie."""

    def __init__(self, arrays: Sequence[Array], which: np.ndarray, places: np.ndarray) -> None:
        """Decision i is the row `places[i]` of ``arrays[which[i]]``."""
        self._arrays, self._which, self._places = arrays, which, places

    def __getitem__(self, index: Any) -> Array:
        which, places = self._which[index], self._places[index]
        used = np.unique(which).tolist()
        if len(used) == 1:
            return take(self._arrays[used[0]], places)
        found = empty(self._arrays[0], len(places))
        for i in used:
            here = np.flatnonzero(which == i)
            put(found, here, take(self._arrays[i], places[here]))
        return found

    def __len__(self) -> int:
        return len(self._places)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self._arrays[0].shape[1:])

    @staticmethod
    def of(episodes: Sequence[Episode]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return observations and extras of every decision of some episodes, one after the other.

        Nothing is copied of episodes that were played here; what has come from elsewhere is joined.
        """
        picked = [episode.observations for episode in episodes if isinstance(episode.observations, Picked)]
        if len(picked) < len(episodes):
            return _joined([e.observations for e in episodes]), _joined([e.extras for e in episodes])
        parts = [part for one in picked for part in one.parts]
        segments = list({id(segment): segment for segment, _ in parts}.values())
        number = {id(segment): i for i, segment in enumerate(segments)}
        which = np.repeat([number[id(segment)] for segment, _ in parts], [len(places) for _, places in parts])
        places = np.concatenate([places for _, places in parts])

        def columns(kind: str) -> dict[str, Any]:
            names = getattr(segments[0], kind)
            return {name: Column([getattr(one, kind)[name] for one in segments], which, places) for name in names}

        return columns("observations"), columns("extras")


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True)
class Steps:
    """What a row brought back from some actions: for sinks that film or count."""

    observation: Mapping[str, np.ndarray]
    """After the last action."""
    frames: Mapping[str, np.ndarray]
    """With `render_every`: arrays [F, H, W, C] of the steps before it."""
    actions: Mapping[str, np.ndarray]  # [n, …]
    rewards: np.ndarray  # [n]
    success: bool
    ended: bool
