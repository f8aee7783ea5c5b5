"""An episode as the policy lived it: what it saw, what it chose, what came of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from manyarms.policies.base import ActionChunk
from manyarms.vector import EpisodeId


@dataclass(frozen=True)
class Episode:
    """One episode of T decisions, each a chunk of K actions of which some were taken.

    ``observations[name][t]`` is what the policy saw before it chose ``actions[name][t]``.
    """

    id: EpisodeId
    text: str
    observations: dict[str, np.ndarray]  # [T, …]
    final_observation: dict[str, np.ndarray]  # […]
    actions: dict[str, np.ndarray]  # [T, K, …]
    rewards: np.ndarray  # [T, K], 0 where not taken
    num_steps: np.ndarray  # [T], how many actions of each chunk were taken
    extras: dict[str, np.ndarray]  # [T, …]: log_probs, values and whatever else the policy gave
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
        return {name: array[mask] for name, array in self.actions.items()}

    @property
    def num_bytes(self) -> int:
        """The memory its arrays take."""
        groups = (self.observations, self.final_observation, self.actions, self.extras)
        return sum(array.nbytes for group in groups for array in group.values()) + self.rewards.nbytes


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


class EpisodeBuilder:
    """Gathers an episode while it runs."""

    def __init__(self, episode: EpisodeId, text: str, info: dict[str, Any], keep: Collection[str] | None) -> None:
        self.id, self.text, self.info = episode, text, info
        self.steps = 0
        self._keep = keep
        self._seen: list[dict[str, np.ndarray]] = []
        self._actions: list[dict[str, np.ndarray]] = []
        self._extras: list[dict[str, np.ndarray]] = []
        self._rewards: list[np.ndarray] = []
        self._taken: list[int] = []
        self._success = False

    def decide(self, observation: Mapping[str, np.ndarray], chunk: ActionChunk) -> None:
        """Note what the policy saw and chose; `chunk` has the one row."""
        self._seen.append(self._kept(observation))
        self._actions.append({name: array[0].copy() for name, array in chunk.actions.items()})
        self._extras.append({name: array[0].copy() for name, array in chunk.extras.items()})
        self._rewards.append(np.zeros(chunk.length))
        self._taken.append(0)

    def advance(self, rewards: np.ndarray, success: bool) -> None:
        """Note the next steps of the last decision."""
        taken = self._taken[-1]
        self._rewards[-1][taken : taken + len(rewards)] = rewards
        self._taken[-1] = taken + len(rewards)
        self.steps += len(rewards)
        self._success = self._success or success

    def finish(
        self,
        observation: Mapping[str, np.ndarray],
        terminated: bool,
        truncated: bool,
        last_info: dict[str, Any],
        attempts: int,
    ) -> Episode:
        """Put it all together; chunks of different length are padded with zeros."""
        return Episode(
            id=self.id,
            text=self.text,
            observations=_stacked(self._seen),
            final_observation=self._kept(observation),
            actions=_stacked(self._actions),
            rewards=_stacked([{"": rewards} for rewards in self._rewards]).get("", np.zeros((0, 0))),
            num_steps=np.array(self._taken, np.int64),
            extras=_stacked(self._extras),
            success=self._success,
            terminated=terminated,
            truncated=truncated,
            info=self.info,
            last_info=last_info,
            attempts=attempts,
        )

    def _kept(self, observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in observation.items() if self._keep is None or name in self._keep}


def _stacked(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Stack arrays by name; where first axes differ, the shorter are padded with zeros."""
    stacked: dict[str, np.ndarray] = {}
    for name in parts[0] if parts else ():
        arrays = [part[name] for part in parts]
        longest = max(array.shape[:1] for array in arrays)
        if any(array.shape[:1] != longest for array in arrays):
            arrays = [np.pad(array, [(0, longest[0] - len(array)), *[(0, 0)] * (array.ndim - 1)]) for array in arrays]
        stacked[name] = np.stack(arrays)
    return stacked
