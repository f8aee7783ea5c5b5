"""RLOO: each episode against the mean of the others in its group (Ahmadian et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyarms.algorithms.base import Clipped, Episodes, Grouped, Targets, normalised


@dataclass(frozen=True, kw_only=True)
class RLOO(Grouped, Clipped):
    """No critic: the other episodes of the group are the baseline."""

    adv_type: str = "rloo"
    normalize_advantages: bool = True
    """Scale advantages by their spread over all decisions of the update."""

    def targets(self, episodes: Episodes) -> Targets:
        advantages = leave_one_out(episodes.returns.reshape(-1, self.group_size)).reshape(-1, 1)
        per_decision = np.broadcast_to(advantages, episodes.decisions.shape)
        return Targets(normalised(per_decision, episodes.decisions) if self.normalize_advantages else per_decision)


def leave_one_out(returns: np.ndarray) -> np.ndarray:
    """Return the advantage of each episode of groups [G, group_size]."""
    # A_i = r_i - mean_{j≠i} r_j
    return returns - (returns.sum(1, keepdims=True) - returns) / (returns.shape[1] - 1)
