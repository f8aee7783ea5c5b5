"""What clients send, held against what the policy needs to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyarms.errors import ConfigError
from manyarms.simulators.base import Field, Spec, flatten
from manyarms.vector import EpisodeId
from manyarms.vector.chunk import is_count
from manyarms.workers.wire import decode

#: Words of the protocol, which no observation field can be called.
RESERVED = ("batch", "episode", "extras", "prompt", "step")

#: Characters of an instruction.
_LONGEST_PROMPT = 100_000


@dataclass
class Client:
    """Whoever is at the other end of a connection."""

    number: int
    requests: int = 0
    """Counts the steps of clients that do not."""


@dataclass(frozen=True)
class Row:
    """One observation of one client."""

    fields: Mapping[str, np.ndarray]
    text: str
    episode: EpisodeId
    step: int


class Reader:
    """Turns requests into rows, held against what the policy needs to see."""

    def __init__(self, spec: Spec, cameras: Sequence[str] | None) -> None:
        seen = spec.cameras if cameras is None else cameras
        self.fields = {name: f for name, f in spec.layout().items() if f.camera is None or f.camera in seen}
        taken = [name for name in self.fields if name.split("/")[0] in RESERVED]
        if taken:
            raise ConfigError(f"observation field {taken[0]!r} is called like a word of the protocol", do="rename it")

    def rows(self, request: Any, client: Client) -> list[Row]:
        """Return the rows of a request."""
        if not isinstance(request, dict):
            raise ConfigError(f"a request is a dict of fields, this is a {type(request).__name__}")
        client.requests += 1
        if "batch" not in request:
            return [self._row(request, client, 0)]
        batch = request["batch"]
        if not isinstance(batch, list) or not batch or not all(isinstance(one, dict) for one in batch):
            raise ConfigError("'batch' must be a list of at least one observation")
        return [self._row(observation, client, i) for i, observation in enumerate(batch)]

    def _row(self, observation: dict[Any, Any], client: Client, index: int) -> Row:
        given = {str(name): value for name, value in observation.items()}
        text = given.get("prompt", "")
        if not isinstance(text, str):
            raise ConfigError(f"'prompt' must be text, this is {type(text).__name__}")
        if len(text) > _LONGEST_PROMPT:
            raise ConfigError(f"'prompt' must not be longer than {_LONGEST_PROMPT} characters")
        step = given.get("step", client.requests - 1)
        if not is_count(step) or step > np.iinfo(np.int64).max:
            raise ConfigError(f"'step' must be a number of actions below 2^63, this is {step!r:.100}")
        episode = _episode(given["episode"]) if "episode" in given else EpisodeId(seed=client.number, index=index)
        arrays = flatten({name: value for name, value in given.items() if name not in RESERVED})
        return Row({name: _field(name, f, arrays) for name, f in self.fields.items()}, text, episode, int(step))


def _field(name: str, wanted: Field, given: Mapping[str, Any]) -> np.ndarray:
    """Return a field of an observation, or say what is wrong with it."""
    label = f"observation field {name!r}"
    if name not in given:
        raise ConfigError(
            f"{label} is missing", why=f"the observation has {', '.join(map(repr, given)) or 'no fields'}"
        )
    value, dtype = given[name], np.dtype(wanted.dtype)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        fits = array.dtype == dtype
    elif _has_shape(value, wanted.shape):
        array = np.asarray(value)
        fits = np.can_cast(array.dtype, dtype, "same_kind")  # plain numbers have no dtype of their own
    else:
        raise ConfigError(f"{label} is no {wanted.shape} array of {dtype}, but a {type(value).__name__}")
    if array.shape != wanted.shape or not fits:
        raise ConfigError(f"{label} is {array.shape} {array.dtype}, but the policy expects {wanted.shape} {dtype}")
    if not np.isfinite(array).all():
        raise ConfigError(f"{label} has values that are not finite", why="no policy can make anything of NaN")
    return array.astype(dtype, copy=False)


def _has_shape(value: Any, shape: Sequence[int]) -> bool:
    """Return whether lists in lists of numbers are an array of a shape, before NumPy claims memory for one."""
    if not shape:
        return isinstance(value, bool | int | float)
    return isinstance(value, list) and len(value) == shape[0] and all(_has_shape(part, shape[1:]) for part in value)


def _episode(value: Any) -> EpisodeId:
    """Read an episode's identity: a dict, or such a dict in the form that keys are made of."""
    if isinstance(value, bytes):
        try:
            value = decode(value)
        except ValueError as error:
            raise ConfigError("'episode' cannot be read", why=str(error)) from None
    try:
        return EpisodeId.of(value)
    except ValueError as error:
        raise ConfigError(f"'episode' {error}") from None
