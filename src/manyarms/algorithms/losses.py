"""What is minimised. Masks say which numbers are real; everything else is padding and must not count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyarms.algorithms.levels import LEVELS
from manyarms.errors import ConfigError


def masked_mean(values: Tensor, mask: Tensor, total: float | None = None) -> Tensor:
    """Return the mean of what the mask keeps; 0 where it keeps nothing.

    `total` is how many it keeps in the whole of which these are a part: the means of all parts then add up.
    """
    return (values * mask).sum() / (mask.sum().clamp(min=1) if total is None else total)


def at_level(values: Tensor, mask: Tensor, level: str) -> tuple[Tensor, Tensor]:
    """Sum log-probabilities or entropies [B, K, A] up to a level; return them and the mask of that level.

    `mask` [B, K] says which actions were taken. Token: [B, K, A]; action: summed over A, [B, K]; chunk: also over K.
    """
    if level not in LEVELS:
        raise ConfigError(f"{level!r} is no level", do=f"choose from {', '.join(LEVELS)}")
    if level == "token_level":
        return values, mask[..., None].expand_as(values)
    summed = values.sum(-1)
    if level == "action_level":
        return summed, mask
    return (summed * mask).sum(-1), mask.any(-1).to(mask.dtype)


def spread(advantages: Tensor, like: Tensor) -> Tensor:
    """Give advantages [B] or [B, K] the shape of what they weigh."""
    while advantages.dim() < like.dim():
        advantages = advantages[..., None]
    return advantages.expand_as(like)


@dataclass(frozen=True)
class PolicyLoss:
    """The loss, and what people watch while it falls."""

    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    ratio: Tensor


def clipped_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_c: float | None = None,
    total: float | None = None,
) -> PolicyLoss:
    """Return PPO's loss, with bounds of its own on either side and, where wanted, the dual clip."""
    log_ratio = log_probs - old_log_probs
    # ρ = π(a) / π_old(a)
    ratio = log_ratio.exp()
    # L = max(-A ρ, -A clip(ρ, 1 - ε_low, 1 + ε_high))
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(plain, clipped)
    if clip_c is not None:
        # Dual clip, where A < 0: L = min(L, -A c)
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * clip_c), loss)
    with torch.no_grad():
        # KL(π_old, π) ≈ mean((ρ - 1) - log ρ), which is never negative
        approx_kl = masked_mean((ratio - 1.0) - log_ratio, mask, total)
        fraction = masked_mean((clipped > plain).to(ratio.dtype), mask, total)
        mean_ratio = masked_mean(ratio, mask, total)
    return PolicyLoss(masked_mean(loss, mask, total), approx_kl, fraction, mean_ratio)


def behaviour_weight(proximal: Tensor, behaviour: Tensor, most: float) -> Tensor:
    """Return how much likelier actions had become when an update began than when they were chosen, at most `most`.

    Decoupled PPO: the ratio that is clipped is the one to the policy that the update began with, and advantages are
    weighed by how far that one was from the policy that played. Where both are the same, it is PPO.
    """
    # w = min(π_prox(a) / π_behav(a), c)
    return (proximal - behaviour).exp().clamp(max=most).detach()


@dataclass(frozen=True)
class ValueLoss:
    """The critic's loss, and how often it was held back."""

    loss: Tensor
    clip_ratio: Tensor


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    value_clip: float | None,
    huber_delta: float,
    total: float | None = None,
) -> ValueLoss:
    """Return the critic's Huber loss; with `value_clip`, the worse of it and of a value that moved no further."""
    plain = torch.nn.functional.huber_loss(values, returns, reduction="none", delta=huber_delta)
    if value_clip is None:
        return ValueLoss(masked_mean(plain, mask, total), torch.zeros((), device=values.device))
    # V_clip = V_old + clip(V - V_old, -ε, ε)
    held = old_values + (values - old_values).clamp(-value_clip, value_clip)
    clipped = torch.nn.functional.huber_loss(held, returns, reduction="none", delta=huber_delta)
    with torch.no_grad():
        share = masked_mean((clipped > plain).to(values.dtype), mask, total)
    return ValueLoss(masked_mean(torch.maximum(plain, clipped), mask, total), share)


def kl_to_reference(log_probs: Tensor, reference: Tensor, mask: Tensor, total: float | None = None) -> Tensor:
    """Return how far the policy is from a reference, by an estimate that is never negative."""
    # KL ≈ exp(log π_ref - log π) - (log π_ref - log π) - 1
    away = reference - log_probs
    return masked_mean(away.exp() - away - 1.0, mask, total)
