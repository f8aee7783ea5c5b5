"""Reward-weighted flow matching: imitate one's own episodes, the better ones more (Pfrommer et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from manyarms.algorithms.base import Algorithm, Episodes, Loss, Minibatch, Targets, normalised, returns_from
from manyarms.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RWFM(Algorithm):
    """The policy's own loss for what it chose, weighted by exp(advantage): no critic, no groups, no log-probabilities.

    For a flow the own loss is that of flow matching, for other policies how unlikely a choice is, which makes this
    reward-weighted regression (Peters and Schaal 2007) with the bounded weights of AWR (Peng et al. 2019). Nothing is
    pushed away: what went badly is only imitated less.
    """

    adv_type: str = "rwfm"
    gamma: float = 0.95
    """Discount per decision."""
    temperature: float = 0.3
    """How many deviations of the returns make a decision count e times as much: lower is greedier."""
    max_weight: float = 20.0
    """The most that a decision may count."""
    needs_log_probs = False
    needs_own_loss = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma must be from 0 to 1, got {self.gamma}")
        for name in ("temperature", "max_weight"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")

    def targets(self, episodes: Episodes) -> Targets:
        rewards, decisions = episodes.steps("chunk_level")
        # A_t = (R_t - mean(R)) / std(R), over all decisions of the update
        return Targets(normalised(returns_from(rewards, self.gamma), decisions))

    def loss(self, batch: Minibatch) -> Loss:
        assert batch.own_loss is not None
        # w = min(exp(A / β), w_max)
        weight = (batch.advantages / self.temperature).exp().clamp(max=self.max_weight)
        # L = mean(w L_own)
        loss = batch.mean(weight * batch.own_loss)
        metrics = {
            "actor/policy_loss": loss.detach(),
            "actor/own_loss": batch.mean(batch.own_loss).detach(),
            "actor/weight": batch.mean(weight),
        }
        return Loss(loss, metrics)
