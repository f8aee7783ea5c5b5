"""Statistics of what does not fit into memory: rows of numbers and images, added a part at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

#: Quantiles of more rows than this are those of evenly spaced ones.
_ROWS_KEPT = 1 << 16

#: How much of an episode's images goes into statistics.
_FRAMES_COUNTED, _PIXELS_A_SIDE = 100, 150


class Numbers:
    """Statistics of rows of numbers, which need not be in memory together."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0  # Σ (x - mean)²
        self._low: Any = math.inf
        self._high: Any = -math.inf
        self._kept: list[np.ndarray] = []
        self._stride = 1

    def add(self, rows: np.ndarray) -> None:
        """Count in rows, [T, n] float64."""
        mean = rows.mean(axis=0)
        total, delta = self._count + len(rows), mean - self._mean
        # squares = squares₁ + squares₂ + δ² · n₁ n₂ / n
        self._squares += ((rows - mean) ** 2).sum(axis=0) + delta**2 * (self._count * len(rows) / total)
        self._mean += delta * (len(rows) / total)
        self._low = np.minimum(self._low, rows.min(axis=0))
        self._high = np.maximum(self._high, rows.max(axis=0))
        self._kept.append(rows[-self._count % self._stride :: self._stride])
        self._count = total
        while sum(map(len, self._kept)) > _ROWS_KEPT:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._stride *= 2

    def result(self) -> dict[str, list[Any]]:
        quantiles = np.quantile(np.concatenate(self._kept), list(QUANTILES.values()), axis=0)
        return {
            "min": self._low.tolist(),
            "max": self._high.tolist(),
            "mean": self._mean.tolist(),
            "std": np.sqrt(self._squares / self._count).tolist(),
            "count": [self._count],
            **dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
        }


class Pixels:
    """Statistics of images by channel, from 0 to 1, of shape [3, 1, 1]."""

    def __init__(self) -> None:
        self._count = 0
        self._histogram = np.zeros((3, 256))

    def add(self, frames: np.ndarray) -> None:
        """Count in frames, [T, H, W, 3] uint8."""
        self._count += len(frames)
        for channel in range(3):
            self._histogram[channel] += np.bincount(frames[..., channel].reshape(-1), minlength=256)

    def result(self) -> dict[str, list[Any]]:
        values = np.arange(256) / 255.0
        shares = self._histogram / self._histogram.sum(axis=1, keepdims=True)
        present = self._histogram > 0
        mean = shares @ values
        found = {
            "min": values[present.argmax(axis=1)],
            "max": values[255 - present[:, ::-1].argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt((shares * (values - mean[:, None]) ** 2).sum(axis=1)),
        }
        reached = self._histogram.cumsum(axis=1)
        for name, share in QUANTILES.items():
            found[name] = values[(reached >= share * reached[:, -1:]).argmax(axis=1)]
        return {"count": [self._count], **{name: value.reshape(3, 1, 1).tolist() for name, value in found.items()}}


def sample(frames: np.ndarray) -> np.ndarray:
    """Return evenly spaced frames, and of large ones evenly spaced pixels."""
    some = np.unique(np.linspace(0, len(frames) - 1, _FRAMES_COUNTED).round().astype(int))
    step = max(1, max(frames.shape[1:3]) // _PIXELS_A_SIDE)
    return frames[some, ::step, ::step]
