"""GRPO: each episode against the mean of its group, in units of the group's spread (Shao et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyarms.algorithms.base import Clipped, Episodes, Grouped, Targets


@dataclass(frozen=True, kw_only=True)
class GRPO(Grouped, Clipped):
    """No critic: the group is the baseline."""

    adv_type: str = "grpo"
    normalize_advantages: bool = True
    """Divide by the spread of the group."""

    def targets(self, episodes: Episodes) -> Targets:
        groups = episodes.returns.reshape(-1, self.group_size)
        return Targets(group_relative(groups, self.normalize_advantages).reshape(-1))


def group_relative(returns: np.ndarray, normalise: bool = True) -> np.ndarray:
    """Return the advantage of each episode of groups [G, group_size]."""
    # A_i = (r_i - mean(r)) / (std(r) + 1e-6)
    centred = returns - returns.mean(1, keepdims=True)
    return centred / (returns.std(1, ddof=1, keepdims=True) + 1e-6) if normalise else centred
