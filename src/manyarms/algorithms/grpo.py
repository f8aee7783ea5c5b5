"""GRPO: every episode against the mean of its group, in units of the group's spread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from manyarms.algorithms.advantages import group_relative
from manyarms.algorithms.groups import in_groups, over_decisions
from manyarms.rollout import Episode


def targets(episodes: Sequence[Episode], group_size: int, normalise: bool = True) -> list[np.ndarray]:
    """Return the advantage [T] of each episode's decisions; groups lie one after the other."""
    return over_decisions(episodes, in_groups(episodes, group_size, partial(group_relative, normalise=normalise)))
