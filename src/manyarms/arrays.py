"""Arrays of NumPy or of PyTorch, alike: on whatever device they are, what is made of them is there too.

What a simulator shows is a NumPy array where it computes on the CPU, and a tensor where it computes on a GPU. Code that
only picks, stores and joins such arrays uses these functions and `array[index]`, and never asks which it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Any
"""`numpy.ndarray` or `torch.Tensor`."""


def empty(like: Array, count: int) -> Array:
    """Return room for `count` rows like those of an array; memory is taken as it is written to."""
    shape = (count, *like.shape[1:])
    return np.empty(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_empty(shape)


def take(array: Array, index: np.ndarray, out: Array | None = None) -> Array:
    """Return a copy of some rows, in `out` if it is given."""
    if isinstance(array, np.ndarray):
        # With "raise", NumPy fills a buffer first; rows are the caller's own and exist.
        return np.take(array, index, 0, out=out, mode="clip" if out is not None else "raise")
    import torch

    return torch.index_select(array, 0, torch.as_tensor(index, device=array.device), out=out)


def put(array: Array, index: np.ndarray, rows: Array) -> None:
    """Write rows to some places."""
    if isinstance(array, np.ndarray):
        array[index] = rows
    else:
        import torch

        array.index_copy_(0, torch.as_tensor(index, device=array.device), rows)


def concatenate(arrays: Sequence[Array]) -> Array:
    """Join arrays along their first axis; a single one is returned as it is."""
    if len(arrays) == 1:
        return arrays[0]
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    import torch

    return torch.cat(list(arrays))


def stack(arrays: Sequence[Array]) -> Array:
    """Join arrays along a new first axis."""
    if isinstance(arrays[0], np.ndarray | np.generic):
        return np.stack(arrays)
    import torch

    return torch.stack(list(arrays))


def padded(array: Array, length: int) -> Array:
    """Return [rows, length, …] with zeros behind what an array [rows, K, …] has."""
    if array.shape[1] == length:
        return array
    shape = (len(array), length, *array.shape[2:])
    whole = np.zeros(shape, array.dtype) if isinstance(array, np.ndarray) else array.new_zeros(shape)
    whole[:, : array.shape[1]] = array
    return whole


def to_numpy(array: Array) -> np.ndarray:
    """Return an array on the CPU, as NumPy's."""
    return np.asarray(array) if isinstance(array, np.ndarray | np.generic) else array.detach().cpu().numpy()


def to_tensor(array: Array, device: torch.device | str) -> torch.Tensor:
    """Return a tensor on a device; one that is there already is not copied."""
    import torch

    if isinstance(array, np.ndarray):
        array = torch.from_numpy(np.ascontiguousarray(array))
    return torch.as_tensor(array).to(device, non_blocking=True)


__all__ = ["Array", "concatenate", "empty", "padded", "put", "stack", "take", "to_numpy", "to_tensor"]
