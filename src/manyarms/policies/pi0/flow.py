"""The maths of flow matching: from noise (t = 1) to actions (t = 0) along a velocity, with or without exploring.

Actions are points x [..., H, D]; a transition leads from time t to t' < t, Δ = t - t'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: How a chain is drawn: along the flow alone, or with noise at every step, at one of them, or as much as a head says.
NOISES = ("none", "flow_sde", "flow_sde_one", "flow_noise")


def times_of(steps: int) -> Tensor:
    """Return the grid [steps + 1] from 1 to 0."""
    return torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64).float()


@dataclass(frozen=True)
class Coefficients:
    """A transition that is linear in the point and its velocity."""

    # x' = α x + β v + γ ε

    alpha: Tensor
    beta: Tensor
    gamma: Tensor


def euler(t: Tensor, after: Tensor) -> Coefficients:
    """Return the step along the flow, as π0 itself takes it."""
    # x' = x - Δ v
    return Coefficients(torch.ones_like(t), after - t, torch.zeros_like(t))


def flow_sde(t: Tensor, after: Tensor, level: float) -> Coefficients:
    """Return the step with noise that leaves the distribution of every x_t as the flow has it (πRL's Flow-SDE)."""
    delta = t - after
    # σ = a √(s / (1 - s)), s = t, at t = 1 the next point of the grid
    s = torch.minimum(t, 1.0 - delta)
    sigma2 = level**2 * s / (1.0 - s)
    # x0 = x - v t, x1 = x + v (1 - t); μ = x0 (1 - t') + x1 (t' - σ² Δ / 2t)
    of_x0, of_x1 = 1.0 - after, after - sigma2 * delta / (2.0 * t)
    return Coefficients(of_x0 + of_x1, of_x1 * (1.0 - t) - of_x0 * t, (sigma2 * delta).sqrt())


def chosen_where(mask: Tensor, noisy: Coefficients, plain: Coefficients) -> Coefficients:
    """Return the noisy transition where the mask says so, and the plain one elsewhere."""
    return Coefficients(
        torch.where(mask, noisy.alpha, plain.alpha),
        torch.where(mask, noisy.beta, plain.beta),
        torch.where(mask, noisy.gamma, plain.gamma),
    )


def log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the log-density of a normal distribution, number by number."""
    # log N(x; μ, σ) = -½ ((x - μ) / σ)² - log σ - ½ log 2π
    return -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * math.log(2.0 * math.pi)


def entropy(std: Tensor) -> Tensor:
    # H = ½ log(2πe σ²)
    return std.log() + 0.5 * math.log(2.0 * math.pi * math.e)


def noised(actions: Tensor, noise: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the point at time t between actions and noise, and the velocity there that is to be learnt."""
    # x_t = t ε + (1 - t) a, u = ε - a
    return t * noise + (1.0 - t) * actions, noise - actions


def packed(points: Tensor, times: Tensor) -> Tensor:
    """Put a chain's points [R, P, H, D] and their times [R, P] into one array [R, P, 1 + H D]."""
    return torch.cat([times[..., None], points.flatten(2)], -1)


def unpacked(chain: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Undo `packed`."""
    return chain[..., 1:].unflatten(-1, shape), chain[..., 0]
