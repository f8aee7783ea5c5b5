"""How much better an action was than expected. Each formula stands above the line that computes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from manyarms.errors import ConfigError

_EPSILON = 1e-6


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    final_value: float,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and returns [T] of one episode, by generalised advantage estimation.

    `final_value` is what the state after the last step is worth: 0 when the episode was terminated, the critic's
    estimate when it was truncated by a clock (the world would have gone on).
    """
    following = np.append(values[1:], final_value)
    # δ_t = r_t + γ V(s_{t+1}) - V(s_t)
    deltas = rewards + gamma * following - values
    advantages = np.zeros(len(rewards))
    running = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        # A_t = δ_t + γ λ A_{t+1}
        running = deltas[t] + gamma * gae_lambda * running
        advantages[t] = running
    # R_t = A_t + V(s_t)
    return advantages, advantages + values


def group_relative(returns: np.ndarray, normalise: bool = True) -> np.ndarray:
    """Return the advantage of each episode of a group that began alike, as GRPO has it."""
    _check_group(returns)
    # A_i = (r_i - mean(r)) / (std(r) + 1e-6)
    centred = returns - returns.mean()
    return centred / (returns.std(ddof=1) + _EPSILON) if normalise else centred


def leave_one_out(returns: np.ndarray) -> np.ndarray:
    """Return each episode's return less the mean of the others in its group, as RLOO has it."""
    _check_group(returns)
    # A_i = r_i - mean_{j≠i} r_j
    return returns - (returns.sum() - returns) / (len(returns) - 1)


def is_uniform(returns: np.ndarray) -> bool:
    """Tell whether all episodes of a group earned the same: there is nothing to prefer."""
    return bool(np.all(returns == returns[0]))


def normalised(parts: Sequence[np.ndarray], moments: tuple[float, float, float] | None = None) -> list[np.ndarray]:
    """Return arrays shifted and scaled to mean 0 and deviation 1, taken together.

    `moments` are count, sum and sum of squares over all ranks; default: of these arrays.
    """
    count, total, squares = moments_of(parts) if moments is None else moments
    if count == 0:
        return list(parts)
    mean = total / count
    deviation = float(np.sqrt(max(squares / count - mean * mean, 0.0)))
    return [(part - mean) / (deviation + _EPSILON) for part in parts]


def moments_of(parts: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Return count, sum and sum of squares: what ranks add up before they normalise."""
    return (
        float(sum(part.size for part in parts)),
        float(sum(part.sum() for part in parts)),
        float(sum(np.square(part).sum() for part in parts)),
    )


def explained_variance(returns: Sequence[float], missed: Sequence[float]) -> float:
    """Return how much of the returns' variance the critic foresaw: 1 all, 0 none, below 0 worse than a constant.

    Both are moments (count, sum, sum of squares): of the returns, and of returns less values.
    """
    variance, left = (squares / count - (total / count) ** 2 for count, total, squares in (returns, missed))
    return 1.0 - left / variance if variance > 0 else 0.0


def _check_group(returns: np.ndarray) -> None:
    if len(returns) < 2:
        raise ConfigError(
            f"a group of {len(returns)} has nothing to be compared with", do="group_size must be at least 2"
        )
