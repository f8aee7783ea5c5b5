"""Two small networks that train in minutes on a laptop: one for states, one for pixels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from manyarms.arrays import to_tensor
from manyarms.errors import ConfigError
from manyarms.policies.base import Observations
from manyarms.policies.network import NetworkConfig, NetworkPolicy, image_names, state_names
from manyarms.policies.trainable import configured
from manyarms.simulators.base import Spec

#: Numbers of an observation whose spread is below are not scaled up any further.
_LEAST_SPREAD = 0.02


@dataclass(frozen=True)
class SmallConfig(NetworkConfig):
    """A network for states."""

    fields: tuple[str, ...] = ()
    """Observation fields it reads; default: all that are numbers."""
    layers: int = 2
    words: int = 0
    """Width of the vector that words are hashed into; 0: it is not told what to do."""


@dataclass(frozen=True)
class PixelConfig(SmallConfig):
    """A network for images, states and words."""

    images: tuple[str, ...] = ()
    """Image fields it looks at; default: all of uint8."""
    image_side: int = 64
    """Images are scaled to this."""
    words: int = 64


class _StateTorso(nn.Module):
    """Numbers, normalised by statistics that are part of the weights, through a few layers."""

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))
        sizes = [width, *[hidden] * layers]
        linear = [nn.Linear(sizes[i], sizes[i + 1]) for i in range(layers)]
        for layer in linear:
            nn.init.orthogonal_(layer.weight, 2.0**0.5)
            nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(*(part for layer in linear for part in (layer, nn.Tanh())))

    @torch.no_grad()
    def normalise_by(self, state: Tensor) -> None:
        """Scale by mean and spread of some states; numbers that hardly change are not blown up."""
        self.mean.copy_(state.mean(0))
        self.std.copy_(state.std(0, correction=0).clamp(min=_LEAST_SPREAD))

    def forward(self, state: Tensor) -> Tensor:
        return self.layers((state - self.mean) / self.std)


class _PixelTorso(nn.Module):
    """A small convolutional network a camera, the state and hashed words, joined."""

    def __init__(self, cameras: int, state: int, config: PixelConfig) -> None:
        super().__init__()
        self.state = _StateTorso(state, config.hidden, 1) if state else None
        self.eyes = nn.Sequential(
            *(nn.Conv2d(3 * cameras, 32, 5, stride=2), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, stride=2), nn.ReLU()),
            nn.Flatten(),
        )
        with torch.no_grad():
            seen = self.eyes(torch.zeros(1, 3 * cameras, config.image_side, config.image_side)).shape[1]
        self.words = nn.Linear(config.words, config.hidden)
        width = seen + config.hidden + (config.hidden if state else 0)
        self.join = nn.Sequential(nn.Linear(width, config.hidden), nn.Tanh())

    def forward(self, images: Tensor, words: Tensor, state: Tensor) -> Tensor:
        parts = [self.eyes(images), self.words(words)]
        if self.state is not None:
            parts.append(self.state(state))
        return self.join(torch.cat(parts, 1))


class MlpPolicy(NetworkPolicy):
    """Sees numbers, and hears what it is told where it has `words`."""

    cameras = ()

    def __init__(self, spec: Spec, **options: Any) -> None:
        config = configured(SmallConfig, options, "this policy")
        self.names = state_names(spec, config.fields)
        if not self.names:
            raise ConfigError("mlp reads numbers, but the simulator shows images only", do="use policy pixel")
        width = sum(int(np.prod(spec.observations[name].shape)) for name in self.names)
        width += config.words
        super().__init__(spec, config, lambda: _StateTorso(width, config.hidden, config.layers))
        self.reads = tuple(self.names)
        self._words = config.words

    def inputs(self, observations: Observations) -> dict[str, Tensor]:
        return {"state": self._state(observations)}

    def fit_normalisation(self, observations: Observations) -> None:
        _normalise([self.torso, self.critic_torso], self._state(observations))

    def _state(self, observations: Observations) -> Tensor:
        device = self.offset.device
        state = _numbers(observations, self.names, device)
        if not self._words:
            return state
        # Scaled so that each number is about 1, as the others are once they are normalised.
        words = np.stack([hashed(text, self._words) for text in observations.texts]) * np.sqrt(self._words)
        return torch.cat([state, to_tensor(words.astype(np.float32), device)], 1)


class PixelPolicy(NetworkPolicy):
    """Sees cameras, numbers and what it is told."""

    def __init__(self, spec: Spec, **options: Any) -> None:
        config = configured(PixelConfig, options, "this policy")
        images = image_names(spec)
        self.images = list(config.images) or images
        if not self.images or any(name not in images for name in self.images):
            raise ConfigError(f"pixel looks at {self.images or 'images'}, but there is {images or 'none'}")
        self.cameras = tuple(str(spec.observations[name].camera) for name in self.images)
        self.names = state_names(spec, config.fields)
        width = sum(int(np.prod(spec.observations[name].shape)) for name in self.names)
        super().__init__(spec, config, lambda: _PixelTorso(len(self.images), width, config))
        self.reads = (*self.images, *self.names)
        self._side, self._words = config.image_side, config.words

    def inputs(self, observations: Observations) -> dict[str, Tensor]:
        device = self.offset.device
        images = []
        for name in self.images:
            image = to_tensor(observations.fields[name], device).permute(0, 3, 1, 2).float().div_(255.0)
            images.append(functional.interpolate(image, (self._side, self._side), mode="area"))
        words = np.stack([hashed(text, self._words) for text in observations.texts])
        return {
            "images": torch.cat(images, 1) - 0.5,
            "words": to_tensor(words, device),
            "state": _numbers(observations, self.names, device),
        }

    def fit_normalisation(self, observations: Observations) -> None:
        torsos = [torso for torso in (self.torso, self.critic_torso) if torso is not None]
        _normalise([torso.state for torso in torsos], _numbers(observations, self.names, self.offset.device))


def _normalise(torsos: Sequence[Any], state: Tensor) -> None:
    for torso in torsos:
        if torso is not None:
            torso.normalise_by(state.to(torso.mean.device))


def _numbers(observations: Observations, names: Sequence[str], device: torch.device) -> Tensor:
    """Return fields side by side: [rows, width]."""
    count = len(observations)
    parts = [to_tensor(observations.fields[name], device).float().reshape(count, -1) for name in names]
    return torch.cat(parts, 1) if parts else torch.zeros((count, 0), device=device)


@lru_cache(maxsize=4096)
def hashed(text: str, width: int) -> np.ndarray:
    """Return a sentence as the sum of its words, each a vector of ±1 drawn by its hash, scaled to length one."""
    total = np.zeros(width, np.float32)
    for word in re.findall(r"[a-z0-9]+", text.lower()):
        blocks = (hashlib.blake2b(f"{i}/{word}".encode()).digest() for i in range(-(-width // 512)))
        bits = np.unpackbits(np.frombuffer(b"".join(blocks), np.uint8))[:width]
        total += bits.astype(np.float32) * 2.0 - 1.0
    length = float(np.linalg.norm(total))
    return total / length if length else total
