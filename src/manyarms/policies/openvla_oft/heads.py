"""Heads of OpenVLA-OFT: from the hidden states of actions to chunks in -1..1, with log-probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class _ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(x)


class ResidualMlp(nn.Module):
    """Norm, layer, residual blocks, norm, layer."""

    def __init__(self, inputs: int, hidden: int, outputs: int, blocks: int = 2) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, hidden)
        self.mlp_resnet_blocks = nn.ModuleList([_ResidualBlock(hidden) for _ in range(blocks)])
        self.layer_norm2 = nn.LayerNorm(hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))


class StateProjector(nn.Module):
    """From proprioception to one token."""

    def __init__(self, state: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, state: Tensor) -> Tensor:  # [rows, state] -> [rows, 1, width]
        return self.fc2(functional.gelu(self.fc1(state)))[:, None]


class L1Head(nn.Module):
    """OFT's regression, and around it a Laplace distribution, whose most likely action is the regression's.

    The spread is a layer of our own: its weights begin at nothing, its bias at `log_scale`.
    """

    kind = "uniform"
    """The noise that `sample` takes."""

    def __init__(self, width: int, chunk: int, action: int, hidden: int, log_scale: float) -> None:
        super().__init__()
        self.shape = (chunk, action)
        self.model = ResidualMlp(width * action, hidden, action)
        self.log_scale = nn.Linear(width * action, action)
        nn.init.zeros_(self.log_scale.weight)
        nn.init.constant_(self.log_scale.bias, log_scale)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return self.shape

    def sample(self, features: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities; no noise: the most likely ones."""
        mean, log_scale = self._distribution(features)
        actions = mean
        if noise is not None:
            # a = μ - b sign(u - ½) log(1 - 2 |u - ½|)
            centred = noise.clamp(1e-7, 1.0 - 1e-7) - 0.5
            actions = mean - log_scale.exp() * centred.sign() * torch.log1p(-2.0 * centred.abs())
        return actions, _laplace(mean, log_scale, actions)

    def evaluate(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of actions taken before."""
        mean, log_scale = self._distribution(features)
        # H = 1 + log 2b
        return _laplace(mean, log_scale, actions), log_scale + 1.0 + math.log(2.0)

    def decode(self, actions: Tensor) -> Tensor:
        """Return actions as statistics were taken of them; OFT does not clip either."""
        return actions

    def encode(self, actions: Tensor) -> Tensor:
        """Return actions in -1..1 as `evaluate` takes them."""
        return actions

    def _distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        states = features.float().reshape(len(features), self.shape[0], -1)
        return self.model(states), self.log_scale(self.model.layer_norm1(states))


def _laplace(mean: Tensor, log_scale: Tensor, actions: Tensor) -> Tensor:
    # log p = -|a - μ| / b - log 2b
    return -(actions - mean).abs() * (-log_scale).exp() - log_scale - math.log(2.0)


class TokenHead(nn.Module):
    """The last ids of the vocabulary as bins, one distribution a number; weights are the language model's own."""

    kind = "uniform"

    def __init__(self, output: nn.Module, first: int, bins: int, shape: tuple[int, int], temperature: float) -> None:
        """`output` gives logits of the vocabulary; ids `first` to `first + bins - 1` stand for actions."""
        super().__init__()
        self.shape, self.temperature = shape, temperature
        self._first, self._bins = first, bins
        self._output = (output,)  # not a part of this module: its weights belong to the language model
        edges = np.linspace(-1.0, 1.0, bins)
        self.edges: Tensor
        self.centres: Tensor
        self.register_buffer("edges", torch.from_numpy(edges), persistent=False)
        self.register_buffer("centres", torch.from_numpy((edges[:-1] + edges[1:]) / 2.0), persistent=False)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (*self.shape, self._bins)

    def sample(self, features: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return bins and their log-probabilities; no noise: the most likely of all tokens, as OFT, cut to the bins."""
        log_probs = self._log_probs(features)
        if noise is None:
            best = self._shaped(functional.linear(features, self._weight)).argmax(-1)
            # Ids beyond either end are read as the last bin there; the first bin of all is no centre of its own.
            bins = (best - self._first).clamp(1, self._bins - 1)
        else:
            # Gumbel: argmax(log p - log(-log u)) is a draw from p.
            bins = (log_probs - (-noise.clamp(1e-7, 1.0 - 1e-7).log()).log()).argmax(-1)
        return bins, log_probs.gather(-1, bins[..., None])[..., 0]

    def evaluate(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = self._log_probs(features)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(-1, actions.long()[..., None])[..., 0], entropy

    def decode(self, actions: Tensor) -> Tensor:
        """Return the centres of bins: ids count down from 1 to -1, and there is one centre less than ids."""
        return self.centres[(self._bins - 1 - actions).clamp(0, self._bins - 2)]

    def encode(self, actions: Tensor) -> Tensor:
        """Return bins of actions in -1..1."""
        found = torch.bucketize(actions.double().clamp(-1.0, 1.0), self.edges, right=True)
        return self._bins - found.clamp(1, self._bins)

    @property
    def _weight(self) -> Tensor:
        output: Any = self._output[0]
        return output.weight

    def _log_probs(self, features: Tensor) -> Tensor:
        weight = self._weight[self._first : self._first + self._bins]
        return (self._shaped(functional.linear(features, weight)) / self.temperature).log_softmax(-1)

    def _shaped(self, logits: Tensor) -> Tensor:
        return logits.float().reshape(len(logits), *self.shape, -1)
