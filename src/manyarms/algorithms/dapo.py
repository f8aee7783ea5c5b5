"""DAPO (Yu et al. 2025): GRPO with clip-higher, dynamic sampling, a token-level loss and overlong shaping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyarms.algorithms.base import Clipped, Episodes, Group, Grouped, Targets
from manyarms.algorithms.grpo import group_relative
from manyarms.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DAPO(Grouped, Clipped):
    """For sparse success; episodes that come near the time limit pay for it."""

    adv_type: str = "dapo"
    logprob_type: str = "token_level"
    """Every number of every action counts the same in a minibatch, however long its episode."""
    clip_ratio_high: float = 0.28
    """Clip-higher: what is unlikely may become likelier by more than the likely may become unlikelier."""
    overlong_buffer: int = 0
    """Actions before the time limit over which the penalty grows; 0: none."""
    overlong_penalty: float = 1.0
    """What an episode pays that reaches the time limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlong_buffer < 0:
            raise ConfigError(f"overlong_buffer must be 0 or more, got {self.overlong_buffer}")

    def keeps(self, group: Group) -> bool:
        # 0 < |{successes}| < G
        mixed = group.success.any() and not group.success.all()
        return super().keeps(group) and bool(mixed or not self.dynamic_sampling)

    def targets(self, episodes: Episodes) -> Targets:
        groups = (episodes.returns - self._overlong(episodes)).reshape(-1, self.group_size)
        return Targets(group_relative(groups).reshape(-1))

    def _overlong(self, episodes: Episodes) -> np.ndarray:
        if not self.overlong_buffer:
            return np.zeros(len(episodes.rewards))
        # p = P clip((|τ| - (L_max - L_buffer)) / L_buffer, 0, 1)
        over = episodes.lengths - (episodes.max_steps - self.overlong_buffer)
        return self.overlong_penalty * np.clip(over / self.overlong_buffer, 0.0, 1.0)
