"""Statistics that policies were trained with: openpi's, OpenVLA's and LeRobot's files, read as they are.

A file that is missing, malformed or lacks what is asked for is an error that names the path and what was found in it;
it is never taken for "no normalisation".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manyarms.decoding import read_object
from manyarms.errors import ConfigError, did_you_mean

DATASET_STATISTICS = "dataset_statistics.json"
"""OpenVLA's file of statistics, beside its weights."""

_ARRAYS = ("mean", "std", "min", "max", "q01", "q99")


@dataclass(frozen=True, eq=False)
class FieldStatistics:
    """What is known of one field's values; arrays [width], None where the file does not say."""

    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    min: np.ndarray | None = None
    max: np.ndarray | None = None
    q01: np.ndarray | None = None
    q99: np.ndarray | None = None
    mask: np.ndarray | None = None
    """Which numbers are normalised at all (OpenVLA); None: all."""

    def need(self, *names: str) -> list[np.ndarray]:
        """Return some of the arrays, all of which must be there."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            known = [name for name in _ARRAYS if getattr(self, name) is not None]
            raise ConfigError(f"the statistics have no {missing[0]}", why=f"they have {', '.join(known) or 'nothing'}")
        found = [getattr(self, name) for name in names]
        if any(array.ndim != 1 for array in found):
            raise ConfigError(f"the statistics are of an array {found[0].shape}, not of a row of numbers")
        return found

    @classmethod
    def of(cls, values: np.ndarray) -> FieldStatistics:
        """Measure values [count, width]."""
        data = np.asarray(values, np.float64)
        low, high = np.quantile(data, [0.01, 0.99], axis=0)
        return cls(data.mean(0), data.std(0), data.min(0), data.max(0), low, high)

    def to_json(self) -> dict[str, Any]:
        """Return the arrays as lists."""
        found = {name: getattr(self, name) for name in (*_ARRAYS, "mask")}
        return {name: value.tolist() for name, value in found.items() if value is not None}


def load_norm_stats(path: str | Path) -> dict[str, FieldStatistics]:
    """Read openpi's ``norm_stats.json``: ``{"norm_stats": {"state": {…}, "actions": {…}}}``."""
    path = _inside(path, "norm_stats.json")
    content = _read(path)
    body = content.get("norm_stats")
    if not isinstance(body, dict) or not body:
        raise ConfigError(f"{path} holds no norm_stats", why=_found(content))
    return {name: _field(path, name, value) for name, value in body.items()}


def load_dataset_statistics(path: str | Path, key: str) -> dict[str, FieldStatistics]:
    """Read OpenVLA's ``dataset_statistics.json`` for one dataset: ``action`` and, where it is there, ``proprio``.

    A dataset that is only there as ``<key>_no_noops`` is found under its plain name too.
    """
    path = _inside(path, DATASET_STATISTICS)
    return dataset_statistics(_read(path), key, path)


def dataset_statistics(content: Mapping[str, Any], key: str, path: Path) -> dict[str, FieldStatistics]:
    """Read one dataset of what ``dataset_statistics.json`` holds; `path` is where that was found, for errors."""
    chosen = content.get(key, content.get(f"{key}_no_noops"))
    if not isinstance(chosen, dict):
        raise ConfigError(
            f"{path} has no statistics for {key!r}", why=_found(content), do=did_you_mean(key, map(str, content))
        )
    if not isinstance(chosen.get("action"), dict):
        raise ConfigError(f"{path}: {key!r} has no action statistics", why=_found(chosen))
    return {name: _field(path, name, value) for name, value in chosen.items() if isinstance(value, dict)}


def load_lerobot_stats(path: str | Path) -> dict[str, FieldStatistics]:
    """Read LeRobot's ``meta/stats.json``: statistics by feature name."""
    path = Path(path)
    if path.is_dir():
        path = path / "meta" / "stats.json" if (path / "meta").is_dir() else path / "stats.json"
    content = _read(path)
    return {name: _field(path, name, value) for name, value in content.items() if isinstance(value, dict)}


def _inside(path: str | Path, name: str) -> Path:
    path = Path(path)
    return path / name if path.is_dir() else path


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        beside = sorted(p.name for p in path.parent.glob("*")) if path.parent.is_dir() else []
        raise ConfigError(f"there is no {path}", why=f"the folder holds {', '.join(beside[:8]) or 'nothing'}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error)) from error


def _found(content: Mapping[str, Any]) -> str:
    return f"keys found: {', '.join(map(str, list(content)[:12])) or 'none'}"


def _field(path: Path, name: str, value: Any) -> FieldStatistics:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {name!r} is not an object of arrays")
    try:
        arrays = {key: np.asarray(value[key], np.float64) for key in _ARRAYS if value.get(key) is not None}
        mask = None if value.get("mask") is None else np.asarray(value["mask"], bool)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {name!r} cannot be read as arrays of numbers", why=str(error)) from error
    if not arrays:
        raise ConfigError(f"{path}: {name!r} has none of {', '.join(_ARRAYS)}", why=_found(value))
    return field_statistics(path, name, arrays, mask)


def field_statistics(
    path: Path, name: str, arrays: Mapping[str, np.ndarray], mask: np.ndarray | None = None
) -> FieldStatistics:
    """Return the statistics of a field, whose arrays must be finite and of one shape."""
    sizes = {key: array.shape for key, array in {**arrays, "mask": mask}.items() if array is not None}
    if len({*sizes.values()}) > 1 or () in sizes.values():
        told = ", ".join(f"{key} {list(shape)}" for key, shape in sizes.items())
        raise ConfigError(f"{path}: {name!r} has single numbers or arrays of unlike shapes", why=told)
    if any(not np.isfinite(array).all() for array in arrays.values()):
        raise ConfigError(f"{path}: {name!r} holds numbers that are not finite")
    return FieldStatistics(**arrays, mask=mask)
