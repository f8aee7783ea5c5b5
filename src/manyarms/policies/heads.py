"""Heads: from features to a distribution over chunks of actions in -1..1, number by number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BINS = 256


@dataclass(frozen=True)
class Evaluation:
    """What a policy thinks now of actions it took then."""

    log_probs: Tensor  # [rows, K, A], one a number of the action
    entropy: Tensor  # [rows, K, A]
    values: Tensor | None  # [rows], or [rows, K] where every action has its own


class GaussianHead(nn.Module):
    """A normal distribution a number, with a spread that does not depend on the observation."""

    kind = "normal"
    """The noise that `sample` takes."""

    def __init__(self, features: int, chunk: int, width: int, log_std: float = -1.0) -> None:
        super().__init__()
        self.shape = (chunk, width)
        self.mean = nn.Linear(features, chunk * width)
        self.log_std = nn.Parameter(torch.full((width,), log_std))
        nn.init.orthogonal_(self.mean.weight, 0.01)
        nn.init.zeros_(self.mean.bias)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return self.shape

    def sample(self, features: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities; no noise: the most likely ones."""
        mean = self._mean(features)
        actions = mean if noise is None else mean + self.log_std.exp() * noise
        return actions, self._log_prob(mean, actions)

    def evaluate(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of actions taken before."""
        mean = self._mean(features)
        # H = ½ log(2πe σ²)
        entropy = (self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).expand_as(mean)
        return self._log_prob(mean, actions), entropy

    def decode(self, actions: Tensor) -> Tensor:
        """Return what the simulator is given: actions in -1..1."""
        return actions.clamp(-1.0, 1.0)

    def encode(self, actions: Tensor) -> Tensor:
        """Return actions in -1..1 as `evaluate` takes them."""
        return actions

    def _mean(self, features: Tensor) -> Tensor:
        return self.mean(features).view(-1, *self.shape)

    def _log_prob(self, mean: Tensor, actions: Tensor) -> Tensor:
        # log N(a; μ, σ) = -½ ((a - μ) / σ)² - log σ - ½ log 2π
        z = (actions - mean) / self.log_std.exp()
        return -0.5 * z.square() - self.log_std - 0.5 * math.log(2.0 * math.pi)


class TokenHead(nn.Module):
    """256 bins a number, as OpenVLA's action tokens; actions are the bins' centres."""

    kind = "uniform"

    def __init__(self, features: int, chunk: int, width: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.shape = (chunk, width)
        self.temperature = temperature
        self.logits = nn.Linear(features, chunk * width * BINS)
        nn.init.orthogonal_(self.logits.weight, 0.01)
        nn.init.zeros_(self.logits.bias)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (*self.shape, BINS)

    def sample(self, features: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        log_probs = self._log_probs(features)
        if noise is None:
            tokens = log_probs.argmax(-1)
        else:
            # Gumbel: argmax(log p - log(-log u)) is a draw from p.
            tokens = (log_probs - (-noise.clamp(1e-7, 1.0 - 1e-7).log()).log()).argmax(-1)
        return tokens, log_probs.gather(-1, tokens[..., None])[..., 0]

    def evaluate(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = self._log_probs(features)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(-1, actions.long()[..., None])[..., 0], entropy

    def decode(self, actions: Tensor) -> Tensor:
        return (actions + 0.5) * (2.0 / BINS) - 1.0

    def encode(self, actions: Tensor) -> Tensor:
        return ((actions.clamp(-1.0, 1.0) + 1.0) * (BINS / 2.0)).long().clamp(0, BINS - 1)

    def _log_probs(self, features: Tensor) -> Tensor:
        logits = self.logits(features).view(-1, *self.shape, BINS) / self.temperature
        return logits.log_softmax(-1)


HEADS = {"gaussian": GaussianHead, "tokens": TokenHead}
