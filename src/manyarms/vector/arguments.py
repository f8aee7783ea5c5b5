"""What callers of a vector environment pass, turned into one value a row or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from manyarms.errors import ConfigError


def row_indices(rows: Sequence[int] | np.ndarray, num_envs: int) -> np.ndarray:
    """Return rows as an array of distinct indices."""
    given = np.asarray(rows).reshape(-1)
    if given.size and given.dtype.kind not in "iu":
        raise ConfigError(
            f"rows are named by whole numbers, got {given.dtype}", do="of a mask: numpy.flatnonzero(mask)"
        )
    indices = given.astype(np.int64, copy=False)
    listed = indices.tolist()
    if listed and (min(listed) < 0 or max(listed) >= num_envs):
        bad = next(row for row in listed if not 0 <= row < num_envs)
        raise ConfigError(f"there is no row {bad}; rows are 0 to {num_envs - 1}")
    if len(set(listed)) != len(listed):
        raise ConfigError(f"a row is named twice in {listed}")
    return indices


def masked_rows(mask: Any, num_envs: int) -> np.ndarray:
    """Return the rows that Gymnasium's ``reset_mask`` selects; no mask selects all."""
    if mask is None:
        return np.arange(num_envs)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ConfigError(
            f"reset_mask must be a bool array of shape ({num_envs},) with at least one True, got {mask!r}",
        )
    return np.flatnonzero(mask)


def seeds_for(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """Return one seed a row: a single one counts up from row to row, as in Gymnasium."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ConfigError(f"{len(seed)} seeds were given for {num_envs} environments")
    return [None if one is None else int(one) for one in seed]


def one_per_row(name: str, values: Any, num_envs: int) -> Sequence[Any]:
    """Return one value a row; a string, a number or nothing is the same for all."""
    if values is None or isinstance(values, (str, int, np.integer)):
        return [values] * num_envs
    if len(values) != num_envs:
        raise ConfigError(f"{len(values)} {name} were given for {num_envs} environments")
    return values


def chunk_lengths(lengths: Any, count: int, actions: Any) -> np.ndarray:
    """Return how many of its actions each row runs; all of them by default."""
    first = actions
    while isinstance(first, Mapping):
        first = next(iter(first.values()), ())
    shape = tuple(np.shape(first))
    if shape and shape[0] != count:
        raise ConfigError(f"actions for {shape[0]} rows were given, but {count} rows are named")
    chunk = shape[1] if len(shape) > 1 else 0
    if lengths is None:
        return np.full(count, chunk)
    sizes = np.asarray(lengths, dtype=np.int64)
    if sizes.shape != (count,) or (sizes < 1).any() or (sizes > chunk).any():
        raise ConfigError(f"lengths must be {count} numbers from 1 to {chunk}, got {sizes.tolist()}")
    return sizes
