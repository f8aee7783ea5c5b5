"""PPO: each step against what the critic expected of it (Schulman et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyarms.algorithms.base import Clipped, Episodes, Loss, Minibatch, Targets, check_level, normalised, value_loss
from manyarms.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PPO(Clipped):
    """A critic, generalised advantage estimation, a clipped ratio."""

    adv_type: str = "gae"
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """How far ahead rewards are counted before the critic is believed: 0 one step, 1 to the end."""
    reward_type: str = "chunk_level"
    """What a step is: a chunk, with one value and the sum of its rewards (chunk_level), or an action (action_level)."""
    normalize_advantages: bool = True
    """Scale advantages by their spread over the update."""
    value_clip: float | None = None
    """How far a value may move from what it was before its loss is held back."""
    huber_delta: float = 10.0
    """Where the critic's loss goes from quadratic to linear."""
    value_coef: float = 0.5
    """Weight of the critic's loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_level("reward_type", self.reward_type)
        if self.reward_type == "token_level":
            raise ConfigError("no simulator rewards single numbers of an action", do="reward_type: action_level")
        if self.reward_type == "action_level" and self.logprob_type == "chunk_level":
            raise ConfigError(
                "advantages of single actions cannot weigh the ratio of a chunk",
                do="logprob_type: action_level or token_level",
            )
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be from 0 to 1, got {getattr(self, name)}")

    @property
    def critic(self) -> str:
        return self.reward_type

    def targets(self, episodes: Episodes) -> Targets:
        assert episodes.values is not None
        assert episodes.final_values is not None
        rewards, mask = episodes.steps(self.reward_type)
        values = episodes.values.reshape(mask.shape).astype(np.float64)
        # Only what a time limit cut short is worth anything afterwards.
        final = np.where(episodes.terminated, 0.0, episodes.final_values)
        advantages, returns = gae(rewards, mask, values, final, self.gamma, self.gae_lambda)
        if self.normalize_advantages:
            advantages = normalised(advantages, mask)
        return Targets(advantages.reshape(episodes.values.shape), returns.reshape(episodes.values.shape))

    def loss(self, batch: Minibatch) -> Loss:
        # L = L_clip - β_H H + β_KL KL + c_V L_V
        return super().loss(batch) + self.value_coef * value_loss(batch, self.value_clip, self.huber_delta)


def gae(
    rewards: np.ndarray, mask: np.ndarray, values: np.ndarray, final: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and returns [E, S]; steps outside `mask` are skipped, `final` [E] is what follows the last."""
    advantages, running, following = np.zeros(rewards.shape), np.zeros(len(rewards)), final.astype(np.float64)
    for t in reversed(range(rewards.shape[1])):
        # δ_t = r_t + γ V(s_{t+1}) - V(s_t)
        delta = rewards[:, t] + gamma * following - values[:, t]
        # A_t = δ_t + γ λ A_{t+1}
        running = np.where(mask[:, t], delta + gamma * lam * running, running)
        following = np.where(mask[:, t], values[:, t], following)
        advantages[:, t] = running
    # R_t = A_t + V(s_t)
    return np.where(mask, advantages, 0.0), np.where(mask, advantages + values, 0.0)
