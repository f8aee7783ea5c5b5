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
    """Return advantages and returns of each episode; `final_values` [episodes] are the critic's of the last frames.

    At chunk level a decision is a step, its reward what its whole chunk earned: arrays [T]. At action level every
    action is one: arrays [T, K], 0 where none was taken. Only an episode that a clock cut short is worth anything
    after its end.
    """
    judge = _by_action if config.reward_type == "action_level" else _by_chunk
    pairs = [
        judge(episode, 0.0 if episode.terminated else float(final_value), config)
        for episode, final_value in zip(episodes, final_values, strict=True)
    ]
    return [advantages for advantages, _ in pairs], [returns for _, returns in pairs]


def _by_chunk(episode: Episode, final_value: float, config: AlgorithmConfig) -> tuple[np.ndarray, np.ndarray]:
    values = episode.extras["values"].astype(np.float64)
    return gae(episode.rewards.sum(1), values, final_value, gamma=config.gamma, gae_lambda=config.gae_lambda)


def _by_action(episode: Episode, final_value: float, config: AlgorithmConfig) -> tuple[np.ndarray, np.ndarray]:
    taken = episode.mask
    values = episode.extras["values"][taken].astype(np.float64)
    found = gae(episode.rewards[taken], values, final_value, gamma=config.gamma, gae_lambda=config.gae_lambda)
    placed = [np.zeros(taken.shape) for _ in found]
    for place, one in zip(placed, found, strict=True):
        place[taken] = one
    return placed[0], placed[1]
