"""What training asks of a policy beyond acting: to judge what was chosen, to value what is seen, to be saved."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from manyarms.decoding import refuse_unfilled
from manyarms.errors import ConfigError, did_you_mean
from manyarms.policies.base import ActionChunk, Observations, joined
from manyarms.policies.heads import Evaluation
from manyarms.simulators.base import Spec

Config = TypeVar("Config")


class TrainablePolicy(nn.Module):
    """A policy with weights. Subclasses choose in `_act`, and judge in `evaluate` what was chosen."""

    config: Any
    """Has at least `batch_size`, `deterministic` and `value_type`."""
    chunk: int
    cameras: tuple[str, ...]
    reads: tuple[str, ...] = ()
    """Observation fields it looks at; episodes need keep no others."""
    value: nn.Module | None
    """The critic's head; None: there is no critic."""

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def action_width(self) -> int:
        """How many numbers an action has."""
        raise TypeError(f"{type(self).__name__} does not say how wide its actions are")

    @property
    def explores(self) -> bool:
        """Whether it draws actions whose probabilities it can tell: without, there is nothing to reinforce."""
        return True

    @property
    def cloned_chunk(self) -> int:
        """How many actions an example to imitate has."""
        return self.chunk

    @property
    def saved_names(self) -> frozenset[str] | None:
        """Names in `state_dict` that a checkpoint has to hold, the others being known otherwise; None: all."""
        return None

    def saved_state(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold."""
        names = self.saved_names
        return {name: tensor for name, tensor in self.state_dict().items() if names is None or name in names}

    def twin(self, spec: Spec, options: Mapping[str, Any]) -> TrainablePolicy | None:
        """Return a policy with other options that shares these weights; None: a copy has to be made."""
        return None

    # -- acting -------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def act(self, observations: Observations) -> ActionChunk:
        """Choose a chunk for every row, a few rows at a time."""
        return joined([self._act(part, count) for part, count in self._parts(observations)])

    def _parts(self, observations: Observations) -> Iterator[tuple[Observations, int]]:
        """Yield batches, and how many rows of each are asked for; the others only fill it up."""
        size = self.config.batch_size or len(observations)
        for start in range(0, len(observations), size):
            index = np.arange(start, min(start + size, len(observations)))
            part = observations if len(index) == len(observations) else observations.rows(index)
            yield part.padded(size) if self.config.deterministic else part, len(index)

    def _act(self, observations: Observations, count: int) -> ActionChunk:
        """Choose for the first `count` of some rows."""
        raise TypeError(f"{type(self).__name__} does not say how it acts")

    # -- learning -----------------------------------------------------------------------------------------------------

    def prepare_to_learn(self) -> None:
        """Hear that weights are going to change."""

    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        """Return log-probabilities, entropies and values of what was chosen (the extra `chosen` of an episode)."""
        raise TypeError(f"{type(self).__name__} cannot judge what it chose")

    def values_of(self, observations: Observations) -> np.ndarray:
        """Return what the critic makes of observations: [rows], or [rows, K]."""
        raise TypeError(f"{type(self).__name__} has no critic")

    def critic_parameters(self) -> list[nn.Parameter]:
        """Return the weights that only values depend on."""
        return [] if self.value is None else list(self.value.parameters())

    def choice_of(self, actions: np.ndarray) -> Tensor:
        """Return what it would have had to choose for a simulator's actions [rows, K, A]: for cloning."""
        raise TypeError(f"{type(self).__name__} cannot imitate by likelihood")

    def imitation_loss(self, observations: Observations, actions: np.ndarray, mask: np.ndarray) -> Tensor | None:
        """Return a loss of its own for actions [rows, K, A] to imitate; None: their likelihood will do."""
        return None

    def normalise_by(self, observations: Observations) -> None:
        """Scale numbers by what they are in these; a policy that sees none has nothing to do."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make new weights depend on `seed` only, and leave PyTorch's own randomness as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def placed(device: str | None, precision: str | None) -> tuple[str, str]:
    """Return where a large model lies and in what precision, where options leave it open: a GPU's, in bf16."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return device, precision or ("bf16" if device.startswith("cuda") else "fp32")


def configured(kind: type[Config], options: Mapping[str, Any], policy: str) -> Config:
    """Make a config of options as the command line and YAML give them; `policy` is whose they are, in words."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ConfigError(f"{policy} has no option {unknown[0]!r}", do=did_you_mean(unknown[0], known))
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    hints = get_type_hints(kind)
    for name, value in given.items():
        refuse_unfilled(value, name, "--policy-options")
        if not _fits(value, hints[name]):
            words = getattr(hints[name], "__name__", "") if isinstance(hints[name], type) else str(hints[name])
            raise ConfigError(f"{policy} cannot have {name} {value!r}", do=f"{name} is of type {words}")
    return kind(**given)


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is what an annotation says; numbers are finite."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, parts[0]) for item in value)
    if hint is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str | os.PathLike)
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    return hint is Any or isinstance(value, origin or hint)


__all__ = ["TrainablePolicy", "configured", "placed", "seeded"]
