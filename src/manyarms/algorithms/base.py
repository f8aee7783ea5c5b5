"""What an algorithm is: settings, targets from whole episodes, a loss for a minibatch; and the terms of losses.

An algorithm knows neither ranks nor micro-batches. `targets` sees the numbers of every episode of an update, on every
rank alike; `loss` sees a part of a minibatch, and `Minibatch.mean` returns that part's share of the whole mean.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from manyarms.errors import ConfigError

#: What a value, a probability ratio or an entropy is of: a number of an action, an action, a whole chunk of actions.
LEVELS = ("token_level", "action_level", "chunk_level")

#: Settings that do nothing for an algorithm without log-probabilities.
OF_LOG_PROBS = ("target_kl", "logprob_type", "entropy_type", "entropy_bonus", "kl_beta")


# -- what an algorithm is given and gives -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Episodes:
    """The numbers of E episodes in schedule order (a group's are neighbours), padded to T decisions of K actions."""

    rewards: np.ndarray  # [E, T, K] float64; 0 where no action was executed
    mask: np.ndarray  # [E, T, K] bool: which actions were executed
    terminated: np.ndarray  # [E] bool: ended by the task; else a time limit cut it short
    success: np.ndarray  # [E] bool
    max_steps: np.ndarray  # [E] actions after which an episode is cut short; inf: none
    values: np.ndarray | None = None  # [E, T], or [E, T, K] if `critic` is "action_level": estimates when it acted
    final_values: np.ndarray | None = None  # [E]: estimate of the state after the last action

    @property
    def returns(self) -> np.ndarray:  # [E]
        return self.rewards.sum((1, 2))

    @property
    def lengths(self) -> np.ndarray:  # [E] actions executed
        return self.mask.sum((1, 2))

    @property
    def decisions(self) -> np.ndarray:  # [E, T] bool: which decisions were made
        return np.asarray(self.mask.any(2))

    def steps(self, level: str) -> tuple[np.ndarray, np.ndarray]:
        """Return rewards and mask [E, S] of steps: decisions (chunk_level) or actions (action_level)."""
        if level == "chunk_level":
            return self.rewards.sum(2), self.decisions
        return self.rewards.reshape(len(self.rewards), -1), self.mask.reshape(len(self.mask), -1)


class Group(NamedTuple):
    """How the episodes of one start went."""

    returns: np.ndarray  # [group_size]
    success: np.ndarray  # [group_size] bool
    lengths: np.ndarray  # [group_size] actions executed


@dataclass(frozen=True)
class Targets:
    """What the policy and the critic learn from."""

    advantages: np.ndarray  # [E] per episode, [E, T] per decision, or [E, T, K] per action
    returns: np.ndarray | None = None  # like Episodes.values: what the critic learns


@dataclass(frozen=True)
class Minibatch:
    """B decisions. Log-probabilities and advantages have the shape of `logprob_type`: [B, K, A], [B, K] or [B].

    With `needs_log_probs = False` log-probabilities and entropies are None, and advantages are per decision or action.
    """

    advantages: Tensor
    log_probs: Tensor | None  # of the policy as it is, with gradients
    old_log_probs: Tensor | None  # of the policy that the update began with
    behavior_log_probs: Tensor | None  # of the older policy that acted (max_staleness); None: old_log_probs
    reference_log_probs: Tensor | None  # of the policy that training began with (kl_beta)
    entropy: Tensor | None  # shape of `entropy_type`, with gradients
    values: Tensor | None  # [B] or [B, K] as `critic` says, with gradients
    old_values: Tensor | None
    returns: Tensor | None
    mask: Tensor  # [B, K]: 1 where an action was executed
    counts: tuple[float, float, float]  # decisions, actions, numbers executed in the whole minibatch, over all ranks
    own_loss: Tensor | None = None  # [B], the policy's own for what it chose (`needs_own_loss`), with gradients

    def mean(self, x: Tensor) -> Tensor:
        """Return this part's share of the minibatch's mean of x ([B], [B, K] or [B, K, A]) over what was executed."""
        mask = (self.mask.any(-1).to(x.dtype), self.mask, self.mask[..., None])[x.dim() - 1]
        return (x * mask).sum() / self.counts[x.dim() - 1]


@dataclass(frozen=True)
class Loss:
    """A term of the loss, and what is logged of it. Both are shares of a mean: they add up over parts and ranks."""

    value: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.value + other.value, {**self.metrics, **other.metrics})

    def __sub__(self, other: Loss) -> Loss:
        return Loss(self.value - other.value, {**self.metrics, **other.metrics})

    def __rmul__(self, weight: float) -> Loss:
        return Loss(weight * self.value, self.metrics)


# -- what an algorithm is ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Settings of every algorithm; the fields of its class are the keys of `algorithm:` in YAML."""

    adv_type: str = ""
    """gae (PPO), grpo, rloo, …: `manyarms list algorithms`; a plug-in's name, or package.module:Class."""
    episodes_per_step: int | None = None
    """Episodes per update; default: env.train.total_num_envs times env.train.rollout_epoch."""
    update_epoch: int = 4
    """Passes over the episodes of an update."""
    target_kl: float | None = None
    """End the passes of an update when `actor/approx_kl` is above."""
    logprob_type: str = "chunk_level"
    """What a probability ratio is of: token_level (one number), action_level or chunk_level."""
    entropy_type: str = "token_level"
    """What an entropy is of."""
    entropy_bonus: float = 0.0
    """Weight of the entropy in the loss."""
    kl_beta: float = 0.0
    """Weight of the distance to the policy that training began with."""
    max_staleness: int = 0
    """Updates by which the weights that act are behind those that learn: with 1 or more, both work at once."""

    group_size: ClassVar[int] = 1
    max_rejected: ClassVar[int] = 0
    off_policy: ClassVar[bool] = False
    """Whether `loss` corrects for episodes of older weights; if not, max_staleness must be 0."""
    needs_log_probs: ClassVar[bool] = True
    """Whether `loss` looks at log-probabilities; if not, none are computed."""
    needs_own_loss: ClassVar[bool] = False
    """Whether `loss` is given the policy's own loss for what it chose: `TrainablePolicy.imitation_loss`."""

    def __post_init__(self) -> None:
        for name in ("logprob_type", "entropy_type"):
            check_level(name, getattr(self, name))
        if self.update_epoch < 1:
            raise ConfigError(f"update_epoch must be at least 1, got {self.update_epoch}")
        if self.episodes_per_step is not None and self.episodes_per_step < 1:
            raise ConfigError(f"episodes_per_step must be at least 1, got {self.episodes_per_step}")
        if self.max_staleness < 0:
            raise ConfigError(f"max_staleness must be 0 or more, got {self.max_staleness}")
        if self.max_staleness and not self.off_policy:
            raise ConfigError(f"{self.adv_type} does not correct for older weights", do="max_staleness: 0")
        given = [entry.name for entry in fields(Algorithm) if getattr(self, entry.name) != entry.default]
        useless = [] if self.needs_log_probs else [name for name in given if name in OF_LOG_PROBS]
        if useless:
            raise ConfigError(
                f"{useless[0]} would do nothing: {self.adv_type} looks at no log-probabilities", do="leave it out"
            )

    @property
    def critic(self) -> str | None:
        """The level at which the policy must estimate values; None: it needs no value head."""
        return None

    @property
    def needs_evaluation(self) -> bool:
        """Whether learning asks the policy to `evaluate` what it chose: for log-probabilities or values."""
        return self.needs_log_probs or self.critic is not None

    def keeps(self, group: Group) -> bool:
        """Return whether a group is worth learning from; another is played in place of one that is not."""
        return True

    @abstractmethod
    def targets(self, episodes: Episodes) -> Targets:
        """Return advantages, and returns for a critic."""

    @abstractmethod
    def loss(self, batch: Minibatch) -> Loss:
        """Return what is minimised."""


@dataclass(frozen=True, kw_only=True)
class Clipped(Algorithm):
    """PPO's loss of the policy: L = L_clip - β_H H + β_KL KL."""

    clip_ratio_low: float = 0.2
    """How far a ratio may fall below 1 before it counts no more."""
    clip_ratio_high: float = 0.2
    """How far a ratio may rise above 1 before it counts no more."""
    clip_ratio_c: float | None = None
    """Dual clip: bound on the loss of actions that turned out badly."""
    behave_weight_threshold: float | None = None
    """max_staleness: the most that an action counts for having become likelier since it was chosen; default 2."""
    off_policy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.behave_weight_threshold is not None and not self.max_staleness:
            raise ConfigError("behave_weight_threshold would do nothing: max_staleness is 0", do="leave it out")
        if self.behave_weight_threshold is not None and self.behave_weight_threshold < 1:
            raise ConfigError(
                f"behave_weight_threshold must be at least 1, got {self.behave_weight_threshold}",
                why="an action that is as likely as it was counts 1",
            )

    def loss(self, batch: Minibatch) -> Loss:
        cap = 2.0 if self.behave_weight_threshold is None else self.behave_weight_threshold
        policy = clipped_policy_loss(batch, self.clip_ratio_low, self.clip_ratio_high, self.clip_ratio_c, cap)
        return policy - self.entropy_bonus * entropy(batch) + self.kl_beta * kl_to_reference(batch)


@dataclass(frozen=True, kw_only=True)
class Grouped(Algorithm):
    """Compares episodes of one start."""

    group_size: int = 8  # type: ignore[misc]
    """Episodes of each start, which are compared with each other."""
    dynamic_sampling: bool = True
    """Replace groups whose episodes all have the same return: they teach nothing. False: keep them."""
    filter_rewards: bool = False
    """Keep only groups whose mean return lies within the bounds."""
    rewards_lower_bound: float | None = None
    """filter_rewards: the lowest mean return of a group that is kept."""
    rewards_upper_bound: float | None = None
    """filter_rewards: the highest."""
    max_rejected: int = 64  # type: ignore[misc]
    """Groups that may be rejected per update before it makes do with those it has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 2:
            raise ConfigError(
                f"{self.adv_type} compares episodes of a group, but group_size is {self.group_size}",
                do="group_size must be at least 2",
            )
        if self.max_rejected < 0:
            raise ConfigError(f"max_rejected must be 0 or more, got {self.max_rejected}")
        if self.filter_rewards and not self.dynamic_sampling:
            raise ConfigError(
                f"dynamic_sampling: false keeps every group of {self.adv_type}, but filter_rewards drops some",
                do="leave one of them out",
            )
        bounded = self.rewards_lower_bound is not None or self.rewards_upper_bound is not None
        if bounded != self.filter_rewards:
            raise ConfigError(
                "filter_rewards and its bounds, rewards_lower_bound and rewards_upper_bound, only work together"
            )

    def keeps(self, group: Group) -> bool:
        if not self.dynamic_sampling:
            return True
        if np.all(group.returns == group.returns[0]):
            return False
        low = -math.inf if self.rewards_lower_bound is None else self.rewards_lower_bound
        high = math.inf if self.rewards_upper_bound is None else self.rewards_upper_bound
        return not self.filter_rewards or low <= group.returns.mean() <= high


def check_level(name: str, level: str) -> None:
    """Refuse a setting that is not a level."""
    if level not in LEVELS:
        raise ConfigError(f"{name} is {level!r}", do=f"choose from {', '.join(LEVELS)}")


# -- terms; each formula stands above the line that computes it -------------------------------------------------------


def normalised(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return x shifted and scaled to mean 0 and deviation 1 over `mask`."""
    return (x - x[mask].mean()) / (x[mask].std() + 1e-6)


def returns_from(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Return what follows from each step on, [E, S], of rewards [E, S] that are 0 after an episode's end."""
    returns = rewards.copy()
    for t in reversed(range(rewards.shape[1] - 1)):
        # R_t = r_t + γ R_{t+1}
        returns[:, t] += gamma * returns[:, t + 1]
    return returns


def at_level(values: Tensor, mask: Tensor, level: str) -> Tensor:
    """Sum log-probabilities or entropies [B, K, A] over what was executed (`mask` [B, K]), up to a level."""
    if level == "token_level":
        return values
    summed = values.sum(-1)
    return summed if level == "action_level" else (summed * mask).sum(-1)


def clipped_policy_loss(
    batch: Minibatch, low: float, high: float, dual: float | None = None, behavior_cap: float = 2.0
) -> Loss:
    """Return PPO's loss, with a bound of its own on either side, the dual clip, and a correction for stale episodes."""
    assert batch.log_probs is not None
    assert batch.old_log_probs is not None
    advantages, metrics = batch.advantages, {}
    if batch.behavior_log_probs is not None:
        # Decoupled PPO: w = min(π_old(a) / π_behavior(a), c), and A becomes w A
        weight = (batch.old_log_probs - batch.behavior_log_probs).exp().clamp(max=behavior_cap).detach()
        advantages, metrics["actor/behave_weight"] = advantages * weight, batch.mean(weight)
    log_ratio = batch.log_probs - batch.old_log_probs
    # ρ = π(a) / π_old(a)
    ratio = log_ratio.exp()
    # L = max(-A ρ, -A clip(ρ, 1 - ε_low, 1 + ε_high))
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    loss = torch.maximum(plain, clipped)
    if dual is not None:
        # Dual clip, where A < 0: L = min(L, -A c)
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual), loss)
    loss = batch.mean(loss)
    with torch.no_grad():
        metrics["actor/policy_loss"] = loss.detach()
        # KL(π_old, π) ≈ mean((ρ - 1) - log ρ), which is never negative
        metrics["actor/approx_kl"] = batch.mean((ratio - 1.0) - log_ratio)
        metrics["actor/pg_clipfrac"] = batch.mean((clipped > plain).to(ratio.dtype))
        metrics["actor/ratio"] = batch.mean(ratio)
    return Loss(loss, metrics)


def value_loss(batch: Minibatch, value_clip: float | None, huber_delta: float) -> Loss:
    """Return the critic's Huber loss; with `value_clip`, the worse of it and of a value that moved no further."""
    assert batch.values is not None
    assert batch.old_values is not None
    assert batch.returns is not None
    plain = huber_loss(batch.values, batch.returns, reduction="none", delta=huber_delta)
    if value_clip is None:
        loss, share = batch.mean(plain), torch.zeros((), device=plain.device)
    else:
        # V_clip = V_old + clip(V - V_old, -ε, ε)
        held = batch.old_values + (batch.values - batch.old_values).clamp(-value_clip, value_clip)
        clipped = huber_loss(held, batch.returns, reduction="none", delta=huber_delta)
        loss, share = batch.mean(torch.maximum(plain, clipped)), batch.mean((clipped > plain).to(plain.dtype)).detach()
    return Loss(loss, {"actor/value_loss": loss.detach(), "actor/value_clip_ratio": share})


def entropy(batch: Minibatch) -> Loss:
    """Return the policy's mean entropy."""
    assert batch.entropy is not None
    mean = batch.mean(batch.entropy)
    return Loss(mean, {"actor/entropy_loss": mean.detach()})


def kl_to_reference(batch: Minibatch) -> Loss:
    """Return the distance to the policy that training began with; 0 where there is no reference."""
    if batch.reference_log_probs is None:
        return Loss(torch.zeros((), device=batch.mask.device))
    assert batch.log_probs is not None
    # KL ≈ exp(log π_ref - log π) - (log π_ref - log π) - 1
    away = batch.reference_log_probs - batch.log_probs
    distance = batch.mean(away.exp() - away - 1.0)
    return Loss(distance, {"actor/kl_loss": distance.detach()})
