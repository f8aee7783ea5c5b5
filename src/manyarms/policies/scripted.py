"""Policies without a network: random, the simulator's own expert, and actions played back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from manyarms.errors import ConfigError, RolloutError
from manyarms.policies.base import ActionChunk, Observations
from manyarms.policies.noise import generators
from manyarms.simulators.base import Field, Spec

_EXPERT_FIELD = "expert_action"


class RandomPolicy:
    """Draws uniformly within the action bounds (from a standard normal where there are none)."""

    cameras = ()

    def __init__(self, spec: Spec, *, seed: int = 0, chunk: int = 1) -> None:
        if chunk < 1:
            raise ConfigError(f"chunk is {chunk}; a policy gives at least one action")
        self.chunk = chunk
        self._actions, self._seed = spec.actions, seed

    def act(self, observations: Observations) -> ActionChunk:
        rows = [
            {name: _draw(rng, field, self.chunk) for name, field in self._actions.items()}
            for rng in generators(self._seed, observations)
        ]
        return ActionChunk({name: np.stack([row[name] for row in rows]) for name in self._actions})


def _draw(rng: np.random.Generator, field: Field, count: int) -> np.ndarray:
    shape = (count, *field.shape)
    dtype = np.dtype(field.dtype)
    if field.low is None or field.high is None:
        return rng.standard_normal(shape).astype(dtype)
    low, high = np.broadcast_to(field.low, field.shape), np.broadcast_to(field.high, field.shape)
    if dtype.kind in "iub":
        return rng.integers(low, high + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


class ExpertPolicy:
    """Does what the simulator's scripted expert says; asked after every action."""

    needs: ClassVar[dict[str, Any]] = {"expert": True}
    cameras = ()
    chunk = 1

    def __init__(self, spec: Spec) -> None:
        if _EXPERT_FIELD not in spec.observations:
            raise ConfigError(
                "this simulator has no expert",
                why=f"its observations have no {_EXPERT_FIELD!r}",
                do="use policy expert with tabletop, or give the simulator expert=True",
            )

    def act(self, observations: Observations) -> ActionChunk:
        return ActionChunk.of(observations.fields[_EXPERT_FIELD][:, None].astype(np.float32))


class ReplayPolicy:
    """Plays back the actions of recorded episodes, by their identity."""

    cameras = ()

    def __init__(self, spec: Spec, actions: Mapping[bytes, Mapping[str, np.ndarray]], *, chunk: int = 1) -> None:
        """`actions` maps an episode's key to its actions, arrays [length, …] by flat name."""
        self.chunk = chunk
        self._actions = actions

    def act(self, observations: Observations) -> ActionChunk:
        rows = []
        for episode, step in zip(observations.episodes, observations.steps.tolist(), strict=True):
            recorded = self._actions.get(episode.key)
            if recorded is None:
                raise RolloutError(f"there is no recording of {episode}")
            length = len(next(iter(recorded.values())))
            if step >= length:
                raise RolloutError(
                    f"the recording of {episode} ends after {length} actions, but the episode goes on",
                    why="it was recorded with another simulator version, other options or a shorter time limit",
                )
            index = np.minimum(np.arange(step, step + self.chunk), length - 1)
            rows.append({name: array[index] for name, array in recorded.items()})
        return ActionChunk({name: np.stack([row[name] for row in rows]) for name in rows[0]})
