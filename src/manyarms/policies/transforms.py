"""Between what a simulator shows and what a model takes: small frozen steps, each with the one that undoes it.

A transform of images changes camera fields [rows, height, width, 3]; one of numbers has `apply` and `undo`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from manyarms.errors import ConfigError
from manyarms.policies.statistics import FieldStatistics

_OPENPI_EPSILON = 1e-6
_OPENVLA_EPSILON = 1e-8


@dataclass(frozen=True, eq=False)
class Relative:
    """Actions that count from the state at a chunk's start, where `mask` [width] says so; openpi's DeltaActions."""

    mask: np.ndarray

    def check(self, width: int) -> None:
        """Refuse a state of too few numbers."""
        needed = int(np.flatnonzero(self.mask)[-1]) + 1 if self.mask.any() else 0
        if needed > width:
            raise ConfigError(
                f"the first {needed} numbers of an action count from the state, which has {width}",
                do="name the fields that are the state, or say which numbers do: relative",
            )

    def apply(self, actions: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Take the state [rows, S] from actions [rows, K, width]."""
        return actions - self._offset(state)

    def undo(self, actions: np.ndarray, state: np.ndarray) -> np.ndarray:
        return actions + self._offset(state)

    def _offset(self, state: np.ndarray) -> np.ndarray:
        offset = np.zeros((len(state), len(self.mask)), np.float32)
        count = min(len(self.mask), state.shape[1])
        offset[:, :count] = state[:, :count]
        return np.where(self.mask, offset, np.float32(0.0))[:, None]


@dataclass(frozen=True)
class ZScore:
    """``(x - mean) / (std + epsilon)``, as openpi; statistics are cut to the width of x."""

    needs: ClassVar = ("mean", "std")
    statistics: FieldStatistics
    epsilon: float = _OPENPI_EPSILON

    def apply(self, x: np.ndarray) -> np.ndarray:
        mean, std = (_cut(array, x) for array in self.statistics.need("mean", "std"))
        return ((x - mean) / (std + self.epsilon)).astype(np.float32)

    def undo(self, x: np.ndarray) -> np.ndarray:
        """Undo `apply`; numbers beyond the statistics' width are left as they are (mean 0, std 1)."""
        mean, std = self.statistics.need("mean", "std")
        width = x.shape[-1]
        mean, std = _extended(mean, width, 0.0), _extended(std, width, 1.0 - self.epsilon)
        return (x * (std + self.epsilon) + mean).astype(np.float32)


@dataclass(frozen=True)
class Quantile:
    """``(x - q01) / (q99 - q01 + epsilon) * 2 - 1``, as openpi."""

    needs: ClassVar = ("q01", "q99")
    statistics: FieldStatistics
    epsilon: float = _OPENPI_EPSILON

    def apply(self, x: np.ndarray) -> np.ndarray:
        low, high = (_cut(array, x) for array in self.statistics.need("q01", "q99"))
        return ((x - low) / (high - low + self.epsilon) * 2.0 - 1.0).astype(np.float32)

    def undo(self, x: np.ndarray) -> np.ndarray:
        low, high = self.statistics.need("q01", "q99")
        width = min(x.shape[-1], len(low))
        low, high = low[:width], high[:width]
        done = (x[..., :width] + 1.0) / 2.0 * (high - low + self.epsilon) + low
        return np.concatenate([done, x[..., width:]], -1).astype(np.float32)


@dataclass(frozen=True)
class MaskedQuantile:
    """OpenVLA's: quantiles to -1..1 where the mask says so, raw elsewhere; `clip` for proprioception."""

    statistics: FieldStatistics
    clip: bool = False
    epsilon: float = _OPENVLA_EPSILON

    def apply(self, x: np.ndarray) -> np.ndarray:
        low, high = (_cut(array, x) for array in self.statistics.need("q01", "q99"))
        scaled = 2.0 * (x - low) / (high - low + self.epsilon) - 1.0
        if self.clip:
            scaled = np.clip(scaled, -1.0, 1.0)
        return np.where(self._mask(x), scaled, x).astype(np.float32)

    def undo(self, x: np.ndarray) -> np.ndarray:
        low, high = (_cut(array, x) for array in self.statistics.need("q01", "q99"))
        return np.where(self._mask(x), 0.5 * (x + 1.0) * (high - low + self.epsilon) + low, x).astype(np.float32)

    def _mask(self, x: np.ndarray) -> np.ndarray:
        mask = self.statistics.mask
        return np.ones(x.shape[-1], bool) if mask is None else mask[: x.shape[-1]]


@dataclass(frozen=True)
class MinMax:
    """Bounds to -1..1, for actions whose limits are known."""

    needs: ClassVar = ("min", "max")
    statistics: FieldStatistics
    epsilon: float = 1e-8

    def apply(self, x: np.ndarray) -> np.ndarray:
        low, high = (_cut(array, x) for array in self.statistics.need("min", "max"))
        return ((x - low) / np.maximum(high - low, self.epsilon) * 2.0 - 1.0).astype(np.float32)

    def undo(self, x: np.ndarray) -> np.ndarray:
        """Undo `apply`; numbers beyond the statistics' width are left as they are."""
        low, high = self.statistics.need("min", "max")
        width = min(x.shape[-1], len(low))
        low, high = low[:width], high[:width]
        done = (x[..., :width] + 1.0) / 2.0 * np.maximum(high - low, self.epsilon) + low
        return np.concatenate([done, x[..., width:]], -1).astype(np.float32)


@dataclass(frozen=True)
class GripperSign:
    """OpenVLA's gripper: 0..1 (1: open) from the model becomes -1 (open) or 1 (closed) for the simulator."""

    def undo(self, x: np.ndarray) -> np.ndarray:
        x = x.copy()
        x[..., -1] = -np.sign(2.0 * x[..., -1] - 1.0)
        return x

    def apply(self, x: np.ndarray) -> np.ndarray:
        x = x.copy()
        x[..., -1] = (1.0 - x[..., -1]) / 2.0
        return x


@dataclass(frozen=True)
class Rotate180:
    """Turn images upside down, channels untouched; undoes itself."""

    def apply(self, images: np.ndarray) -> np.ndarray:
        return images[..., ::-1, ::-1, :]

    undo = apply


@dataclass(frozen=True)
class CenterCrop:
    """Keep the middle `area` of images and scale it back to their size, as OpenVLA's evaluation does."""

    area: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.area <= 1.0:
            raise ConfigError(f"area is {self.area}; a crop keeps more than 0 and at most all (1.0)")

    def apply(self, images: np.ndarray) -> np.ndarray:
        height, width = images.shape[-3:-1]
        share = float(np.sqrt(self.area))
        y, x = (1.0 - share) / 2.0, (1.0 - share) / 2.0
        rows = (y + share * (np.arange(height) / max(1, height - 1))) * (height - 1)
        columns = (x + share * (np.arange(width) / max(1, width - 1))) * (width - 1)
        return _sampled(images, rows, columns)


@dataclass(frozen=True)
class Resize:
    """Scale images to a size, bilinear; with `pad`, keep their shape and fill the rest with black, as openpi."""

    height: int
    width: int
    pad: bool = False

    def apply(self, images: np.ndarray) -> np.ndarray:
        height, width = images.shape[-3:-1]
        if (height, width) == (self.height, self.width):
            return images
        if not self.pad:
            return _sampled(images, _centres(height, self.height), _centres(width, self.width))
        ratio = max(height / self.height, width / self.width)
        inner = max(1, int(height / ratio)), max(1, int(width / ratio))
        scaled = _sampled(images, _centres(height, inner[0]), _centres(width, inner[1]))
        top, left = (self.height - inner[0]) // 2, (self.width - inner[1]) // 2
        out = np.zeros((*images.shape[:-3], self.height, self.width, images.shape[-1]), images.dtype)
        out[..., top : top + inner[0], left : left + inner[1], :] = scaled
        return out


def _centres(size: int, wanted: int) -> np.ndarray:
    """Return where the centres of `wanted` pixels fall among `size`."""
    return np.clip((np.arange(wanted) + 0.5) * size / wanted - 0.5, 0, size - 1)


def _sampled(images: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return images at fractional rows and columns, bilinear."""
    values = images.astype(np.float32)
    values = _along(values, rows, -3)
    values = _along(values, columns, -2)
    if images.dtype == np.uint8:
        return np.clip(np.round(values), 0, 255).astype(np.uint8)
    return values.astype(images.dtype)


def _along(values: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    low = np.floor(places).astype(np.int64)
    high = np.minimum(low + 1, values.shape[axis] - 1)
    share = (places - low).astype(np.float32).reshape([-1] + [1] * (-axis - 1))
    return np.take(values, low, axis) * (1.0 - share) + np.take(values, high, axis) * share


def _cut(array: np.ndarray, x: np.ndarray) -> np.ndarray:
    if array.shape[-1] < x.shape[-1]:
        raise ConfigError(f"the statistics are for {array.shape[-1]} values, but there are {x.shape[-1]}")
    return array[..., : x.shape[-1]]


def _extended(array: np.ndarray, width: int, fill: float) -> np.ndarray:
    if len(array) >= width:
        return array[:width]
    return np.concatenate([array, np.full(width - len(array), fill)])
