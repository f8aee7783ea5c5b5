"""A policy around a PyTorch network: batches, noise, heads and values; what it sees is up to its torso."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyarms.errors import ConfigError
from manyarms.policies import noise
from manyarms.policies.base import ActionChunk, Observations
from manyarms.policies.heads import HEADS, Evaluation
from manyarms.policies.trainable import CRITICS, TrainablePolicy, check_bounds, check_device, seeded
from manyarms.simulators.base import Field, Spec

_NOISE = {"normal": noise.normal, "uniform": noise.uniform}

#: What options may be, those of subclasses included: a network beyond takes more memory than any machine has.
_BOUNDS = {
    "chunk": (1, 1024),
    "hidden": (1, 8192),
    "layers": (1, 32),
    "words": (0, 65_536),
    "image_side": (17, 512),
    "log_std": (-20, 20),
    "seed": (0, 2**63 - 1),
}


@dataclass(frozen=True)
class NetworkConfig:
    """What all network policies have in common."""

    chunk: int = 8
    """Actions a decision."""
    head: str = "gaussian"
    """gaussian, or tokens (256 bins a number)."""
    critic: str | None = None
    """Also estimate values, for PPO: chunk_level (one per chunk) or action_level (one for each of its actions)."""
    separate_critic: bool = False
    """Values come from a torso of their own instead of the actor's."""
    precision: str = "fp32"
    """fp32, or bf16: the torso computes in bfloat16, the heads and the weights stay in float32."""
    seed: int = 0
    """Of the first weights and of the noise."""
    device: str = "cpu"
    hidden: int = 256
    log_std: float = -1.0
    """First spread of the gaussian head."""
    temperature: float = 1.0
    """Of the token head."""

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise ConfigError(f"head is {self.head!r}", do=f"choose from {', '.join(HEADS)}")
        check_bounds(self, _BOUNDS)
        if not self.temperature > 0:
            raise ConfigError(f"temperature is {self.temperature}; it must be above 0")
        check_device(self.device)
        for name, choices in (("precision", ("fp32", "bf16")), ("critic", CRITICS)):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}", do=f"choose {' or '.join(filter(None, choices))}"
                )
        if self.separate_critic and self.critic is None:
            raise ConfigError("separate_critic without a critic would do nothing", do="critic: chunk_level")


class NetworkPolicy(TrainablePolicy):
    """Features from a torso, a head for actions, and one for values where they are wanted.

    Subclasses give a torso (inputs -> [rows, hidden]) and say in `inputs` what it is fed of an observation, in `reads`
    of which fields.
    """

    critic_parts = ("value", "critic_torso")

    def __init__(self, spec: Spec, config: NetworkConfig, torso: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.chunk, self.critic = config.chunk, config.critic
        action = spec.actions.get("")
        if action is None or np.dtype(action.dtype).kind != "f":
            raise ConfigError("network policies need one array of real numbers as action", do="wrap the simulator")
        width = int(np.prod(action.shape))
        offset, scale = _to_unit(action)
        self.offset: Tensor
        self.scale: Tensor
        self.register_buffer("offset", torch.from_numpy(offset))
        self.register_buffer("scale", torch.from_numpy(scale))
        self._action = action
        hidden = config.hidden
        extra = {"log_std": config.log_std} if config.head == "gaussian" else {"temperature": config.temperature}
        with seeded(config.seed):
            self.torso = torso()
            self.head: Any = HEADS[config.head](hidden, config.chunk, width, **extra)
            self.critic_torso = torso() if config.separate_critic else None
            self.value = _value_head(config) if config.critic else None
        self.to(config.device)

    def inputs(self, observations: Observations) -> dict[str, Tensor]:
        """Return what the torso is fed."""
        raise TypeError(f"{type(self).__name__} does not say what it sees")

    @property
    def device(self) -> torch.device:
        return self.offset.device

    def _features(self, torso: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        if self.config.precision == "fp32":
            return torso(**inputs)
        with torch.autocast(self.offset.device.type, torch.bfloat16):
            return torso(**inputs).float()

    def _values(self, features: Tensor, inputs: dict[str, Tensor]) -> Tensor | None:
        """Return [rows], or [rows, K] with a value for every action; None without a critic."""
        if self.value is None:
            return None
        values = self.value(features if self.critic_torso is None else self._features(self.critic_torso, inputs))
        return values if self.critic == "action_level" else values[:, 0]

    # -- acting -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, observations: Observations, explore: bool = True) -> ActionChunk:
        inputs = self.inputs(observations)
        features = self._features(self.torso, inputs)
        drawn = None
        if explore:
            array = _NOISE[self.head.kind](self.config.seed, observations, self.head.noise_shape)
            drawn = torch.from_numpy(array).to(self.offset.device)
        chosen, log_probs = self.head.sample(features, drawn)
        extras = {"chosen": chosen, "log_probs": log_probs}
        values = self._values(features, inputs)
        if values is not None:
            extras["values"] = values
        actions = observations.like_these(self.to_simulator(self.head.decode(chosen)))
        return ActionChunk.of(actions, **{name: observations.like_these(t) for name, t in extras.items()})

    # -- learning -----------------------------------------------------------------------------------------------------

    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        """Return log-probabilities, entropies and values of what was chosen (the extra `chosen` of an episode)."""
        inputs = self.inputs(observations)
        features = self._features(self.torso, inputs)
        taken = torch.as_tensor(chosen, device=self.offset.device)
        log_probs, entropy = self.head.evaluate(features, taken)
        return Evaluation(log_probs, entropy, self._values(features, inputs))

    def values(self, observations: Observations) -> Tensor:
        inputs = self.inputs(observations)
        features = self._features(self.torso, inputs) if self.critic_torso is None else torch.empty(0)
        values = self._values(features, inputs)
        if values is None:
            raise ConfigError("this policy has no critic", do="critic: chunk_level")
        return values

    def encode_actions(self, observations: Observations, actions: np.ndarray) -> Tensor:
        unit = (torch.as_tensor(actions, dtype=torch.float32).to(self.offset.device) - self.offset) / self.scale
        return self.head.encode(unit)

    def to_simulator(self, unit: Tensor) -> np.ndarray:
        """Turn actions in -1..1 into the simulator's, within its bounds."""
        actions = (unit * self.scale + self.offset).cpu().numpy().astype(self._action.dtype)
        if self._action.low is not None or self._action.high is not None:
            actions = np.clip(actions, self._action.low, self._action.high).astype(self._action.dtype)
        return actions.reshape(*actions.shape[:2], *self._action.shape)


def _value_head(config: NetworkConfig) -> nn.Sequential:
    """Return what turns features into values: one layer more where the torso is the actor's as well."""
    width, values = config.hidden, config.chunk if config.critic == "action_level" else 1
    own = [] if config.separate_critic else [nn.Linear(width, width), nn.Tanh()]
    last = nn.Linear(width, values)
    nn.init.orthogonal_(last.weight, 1.0)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*own, last)


def _to_unit(field: Field) -> tuple[np.ndarray, np.ndarray]:
    """Return offset and scale that bring -1..1 to an action's bounds; numbers without bounds stay as they are."""
    shape = (int(np.prod(field.shape)),)
    if field.low is None or field.high is None:
        return np.zeros(shape, np.float32), np.ones(shape, np.float32)
    low = np.broadcast_to(np.asarray(field.low, np.float64), field.shape).reshape(-1)
    high = np.broadcast_to(np.asarray(field.high, np.float64), field.shape).reshape(-1)
    return ((low + high) / 2.0).astype(np.float32), np.maximum((high - low) / 2.0, 1e-6).astype(np.float32)


def state_names(spec: Spec, wanted: Sequence[str] = (), width: int | None = None) -> list[str]:
    """Return the fields that are numbers: those asked for, else all that are no images and no answers.

    Where all together are not `width` numbers but those of a field named ``state`` are, it is that field alone.
    """
    if wanted:
        missing = [name for name in wanted if name not in spec.observations]
        if missing:
            raise ConfigError(
                f"there is no observation {missing[0]!r}", do=f"choose from {', '.join(spec.observations)}"
            )
        return list(wanted)
    names = [
        name
        for name, field in spec.observations.items()
        if not field.camera and name != "expert_action" and np.dtype(field.dtype).kind in "biuf"
    ]
    sizes = {name: int(np.prod(spec.observations[name].shape)) for name in names}
    alone = width is not None and sum(sizes.values()) != width == sizes.get("state")
    return ["state"] if alone else names


def image_names(spec: Spec) -> list[str]:
    """Return the fields that are colour images."""
    return [n for n, f in spec.observations.items() if f.camera and f.dtype == "u1" and len(f.shape) == 3]


__all__ = ["Evaluation", "NetworkConfig", "NetworkPolicy", "image_names", "state_names"]
