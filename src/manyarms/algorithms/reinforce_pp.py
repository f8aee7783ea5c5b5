"""REINFORCE++ (Hu et al. 2025): returns from each decision on, normalised over the update; no critic, no groups."""

from __future__ import annotations

from dataclasses import dataclass

from manyarms.algorithms.base import Clipped, Episodes, Targets, normalised, returns_from
from manyarms.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Clipped):
    """PPO's clipped loss on normalised returns."""

    adv_type: str = "reinforce_pp"
    gamma: float = 1.0
    """Discount per decision."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma must be from 0 to 1, got {self.gamma}")

    def targets(self, episodes: Episodes) -> Targets:
        rewards, decisions = episodes.steps("chunk_level")
        # A_t = (R_t - mean(R)) / std(R), over all decisions of the update
        return Targets(normalised(returns_from(rewards, self.gamma), decisions))
