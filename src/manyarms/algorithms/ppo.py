"""PPO: every decision against what the critic expected of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from manyarms.algorithms.advantages import gae
from manyarms.algorithms.config import AlgorithmConfig
from manyarms.rollout import Episode


def targets(
    episodes: Sequence[Episode], final_values: np.ndarray, config: AlgorithmConfig
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return advantages and returns [T] of each episode; `final_values` [episodes] are the critic's of the last frames.

    A decision is a step: its reward is what its whole chunk earned. Only an episode that a clock cut short is worth
    anything after its end.
    """
    pairs = [
        gae(
            episode.rewards.sum(1),
            episode.extras["values"].astype(np.float64),
            0.0 if episode.terminated else float(final_value),
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        for episode, final_value in zip(episodes, final_values, strict=True)
    ]
    return [advantages for advantages, _ in pairs], [returns for _, returns in pairs]
