"""RLOO: every episode against the mean of the others in its group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from manyarms.algorithms.advantages import leave_one_out
from manyarms.algorithms.groups import in_groups, over_decisions
from manyarms.rollout import Episode


def targets(episodes: Sequence[Episode], group_size: int) -> list[np.ndarray]:
    """Return the advantage [T] of each episode's decisions; groups lie one after the other."""
    return over_decisions(episodes, in_groups(episodes, group_size, leave_one_out))
