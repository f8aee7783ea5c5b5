"""A policy that learns: two methods, defaults for the rest, and how it is asked batch by batch."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from manyarms.decoding import refuse_unfilled
from manyarms.errors import ConfigError, did_you_mean
from manyarms.policies.base import ActionChunk, Observations, joined
from manyarms.policies.heads import Evaluation

Config = TypeVar("Config")

#: A batch beyond takes more memory than any machine has.
_MOST_ROWS = 65_536

#: What a critic may estimate values of.
CRITICS = (None, "chunk_level", "action_level")


class TrainablePolicy(nn.Module):
    """A policy with weights: `act` chooses, `evaluate` tells how likely that choice is now. The rest has defaults."""

    chunk: int
    """Actions per decision."""
    cameras: tuple[str, ...] | None = None
    """Those it looks through; None: all."""
    reads: tuple[str, ...] | None = None
    """Observation fields it looks at; episodes keep no others. None: all."""
    critic: str | None = None
    """What a value is of: chunk_level, action_level (one per action); None: it estimates none."""
    critic_parts: tuple[str, ...] = ("value",)
    """Names of the modules that only values depend on."""
    is_trainable: ClassVar[bool] = True
    explores: bool = True
    """Whether `act` can draw actions and report their log-probabilities: without, there is nothing to reinforce."""
    has_own_loss: bool = True
    """Whether `imitation_loss` can be asked about the `chosen` that `act` gives."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    # -- the two methods that a policy has to have --------------------------------------------------------------------

    def act(self, observations: Observations, explore: bool = True) -> ActionChunk:
        """Choose a chunk for every row: drawn, or (without `explore`) what it finds best, always the same.

        With `explore` the chunk's extras hold ``chosen`` [R, …], what `evaluate` is given later, ``log_probs``
        [R, K, A], and with a critic ``values``.
        """
        raise TypeError(f"{type(self).__name__} does not say how it acts")

    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        """Return log-probabilities, entropies and values of what was chosen, with gradients."""
        raise TypeError(f"{type(self).__name__} does not say how likely a choice is")

    # -- what it may do besides ---------------------------------------------------------------------------------------

    def values(self, observations: Observations) -> Tensor:
        """Return what the critic makes of observations: [R], or [R, K]."""
        return torch.as_tensor(self.act(observations, explore=False).extras["values"])

    @property
    def imitation_horizon(self) -> int:
        """How many actions an example to imitate has."""
        return self.chunk

    def imitation_loss(
        self, observations: Observations, chosen: np.ndarray | Tensor, draw: Sequence[int] = ()
    ) -> Tensor:
        """Return a loss for every number of what was chosen, [R, K, A], that falls as the policy learns to do the same.

        By default it is how unlikely each number is. A policy may have another that needs no log-probabilities; what
        it draws for that belongs to the episode, its step and `draw`, so that training repeats.
        """
        return -self.evaluate(observations, chosen).log_probs

    def encode_actions(self, observations: Observations, actions: np.ndarray) -> Tensor:
        """Return the `chosen` that leads to a simulator's actions [R, K, A], for imitation."""
        raise TypeError(f"{type(self).__name__} does not say which choice leads to an action: it cannot imitate")

    def fit_normalisation(self, observations: Observations) -> None:
        """Scale numbers by what they are in these; a policy that sees none has nothing to do."""

    def prepare_to_learn(self) -> None:
        """Get ready for weights that change."""

    def trainable_state(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold; the rest must be known from the policy's options."""
        return self.state_dict()

    def shards(self) -> Sequence[nn.Module]:
        """Return the modules whose weights FSDP gathers one at a time; they must be called as modules."""
        return ()

    def critic_parameters(self) -> list[nn.Parameter]:
        """Return the weights that only values depend on."""
        named = list(self.named_parameters())
        return [p for part in self.critic_parts for name, p in named if name.partition(".")[0] == part]


class Batched:
    """A policy that learns, as runners, evaluations and servers ask it: a few rows at a time, exploring or not."""

    def __init__(
        self, policy: TrainablePolicy, size: int = 32, *, pad: bool = False, explore: bool | None = None
    ) -> None:
        """Ask `policy` for at most `size` rows at once (0: as many as come).

        `pad` fills every batch up to `size`, so that what a row gets does not depend on how many are asked for.
        `explore` is what `act` is told; None: what the policy does by itself.
        """
        for name, given in (("deterministic", pad), ("sample", explore)):
            if not isinstance(given, bool | None):
                raise ConfigError(f"{name} is {given!r}", do="choose true or false")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MOST_ROWS:
            raise ConfigError(f"batch_size is {size!r}; it must be from 0 to {_MOST_ROWS}")
        if pad and not size:
            raise ConfigError("deterministic pads batches, but batch_size is 0", do="give batch_size a number")
        self.policy, self._size, self._pad = policy, size, pad
        self._unless_told = {} if explore is None else {"explore": explore}
        self.chunk, self.cameras, self.reads = policy.chunk, policy.cameras, policy.reads

    def for_evaluation(self) -> Batched:
        """Return the same policy as it is evaluated: what it finds best, whatever else is in a batch."""
        return Batched(self.policy, self._size or 32, pad=True, explore=False)

    @torch.inference_mode()
    def act(self, observations: Observations) -> ActionChunk:
        """Choose a chunk for every row."""
        return joined(
            [self.policy.act(part, **self._unless_told).rows(rows) for part, rows in self._parts(observations)]
        )

    @torch.inference_mode()
    def values(self, observations: Observations) -> np.ndarray:
        """Return what the critic makes of observations: [R], or [R, K]."""
        parts = [self.policy.values(part)[rows] for part, rows in self._parts(observations)]
        return torch.cat(parts).float().cpu().numpy()

    def _parts(self, observations: Observations) -> Iterator[tuple[Observations, slice]]:
        """Yield batches, and which rows of each are asked for; the others only fill it up."""
        size = self._size or len(observations)
        for start in range(0, len(observations), size):
            index = np.arange(start, min(start + size, len(observations)))
            part = observations if len(index) == len(observations) else observations.rows(index)
            yield part.padded(size) if self._pad else part, slice(len(index))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make new weights depend on `seed` only, and leave PyTorch's own randomness as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_device(name: str) -> None:
    """Refuse what is no device of this machine's."""
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ConfigError(f"device is {name!r}", do="choose cpu, cuda or one GPU of several, such as cuda:1")
    if kind == "cuda" and not int(index or 0) < torch.cuda.device_count():
        raise ConfigError(f"device is {name!r}, but there is no such GPU here", do="device=cpu")


def placed(device: str | None, precision: str | None) -> tuple[str, str]:
    """Return where a large model lies and in what precision, where options leave it open: a GPU's, in bf16."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
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


def check_bounds(config: Any, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Refuse numbers of a config that are too small or too large; None: it is left open."""
    for name, (least, most) in bounds.items():
        value = getattr(config, name, None)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{name} is {value}; it must be from {least} to {most}")


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


__all__ = [
    "ActionChunk",
    "Batched",
    "Evaluation",
    "Observations",
    "TrainablePolicy",
    "check_bounds",
    "check_device",
    "configured",
    "placed",
    "seeded",
]
