"""In what units π0 was trained: which statistics scale states and actions, and which actions count from the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from manyarms.decoding import only_file
from manyarms.errors import ConfigError
from manyarms.policies.checkpoints import CheckpointFolder
from manyarms.policies.statistics import FieldStatistics, field_statistics, load_lerobot_stats, load_norm_stats
from manyarms.policies.transforms import MinMax, Quantile, ZScore

NORMALISATIONS: dict[str, type[ZScore | Quantile | MinMax]] = {
    "z_score": ZScore,
    "quantile": Quantile,
    "min_max": MinMax,
}

#: LeRobot's modes of normalising -> ours.
_LEROBOT_MODES = {"MEAN_STD": "z_score", "QUANTILES": "quantile", "MIN_MAX": "min_max", "IDENTITY": "none"}
_LEROBOT_NAMES = {"observation.state": "state", "action": "actions"}
_LEROBOT_FILE = "policy_preprocessor_step_*_normalizer_processor.safetensors"
_LEROBOT_EPSILON = 1e-8

#: Of an action, for masks of them.
_MOST_NUMBERS = 10_000


@dataclass(frozen=True)
class Normalisers:
    """How states and actions are scaled; None: not at all."""

    state: ZScore | Quantile | MinMax | None = None
    actions: ZScore | Quantile | MinMax | None = None


def normalisers(folder: CheckpointFolder, where: str | None, kind: str | None) -> Normalisers:
    """Read the statistics a checkpoint was trained with; those that cannot be found are an error.

    Without a `kind`, states and actions are scaled as the folder's config says.
    """
    kinds = told_kinds(folder) if kind is None else {"state": kind, "actions": kind}
    if set(kinds.values()) == {"none"}:
        return Normalisers()
    path = Path(where).expanduser() if where else statistics_file(folder.path)
    if path is None:
        raise ConfigError(
            f"{folder.path} has no norm_stats.json or other statistics",
            why="actions and states would not be in the model's units",
            do="give its path (norm_stats: PATH), or say normalise: none if that is meant",
        )
    found = load_statistics(path)
    own = {} if path.name == "norm_stats.json" else {"epsilon": _LEROBOT_EPSILON}
    made: dict[str, Any] = {}
    for field, wanted in kinds.items():
        if wanted != "none":
            made[field] = NORMALISATIONS[wanted](found[field], **own)
            found[field].need(*made[field].needs)
    return Normalisers(**made)


def told_kinds(folder: CheckpointFolder) -> dict[str, str]:
    """Return how a folder's config says that states and actions are scaled; openpi's, which does not, means z_score."""
    mapping = folder.config.get("normalization_mapping")
    if not isinstance(mapping, Mapping):
        return {"state": "z_score", "actions": "z_score"}
    modes = {"state": mapping.get("STATE", "IDENTITY"), "actions": mapping.get("ACTION", "IDENTITY")}
    strange = [mode for mode in modes.values() if mode not in _LEROBOT_MODES]
    if strange:
        raise ConfigError(
            f"{folder.path / 'config.json'} scales by {strange[0]}",
            why=f"known are {', '.join(_LEROBOT_MODES)}",
            do=f"say how it is meant, normalise: {', '.join(NORMALISATIONS)} or none",
        )
    if mapping.get("VISUAL", "IDENTITY") != "IDENTITY":
        raise ConfigError(
            f"{folder.path / 'config.json'} scales images by {mapping['VISUAL']}", why="π0 takes them from -1 to 1"
        )
    return {field: _LEROBOT_MODES[mode] for field, mode in modes.items()}


def relative_numbers(folder: CheckpointFolder, wanted: int | tuple[int, ...] | None, width: int) -> np.ndarray:
    """Return which of an action's numbers [width] count from the state: those asked for, else as the config says."""
    if wanted is None:
        return _told_relative(folder.config, width)
    parts = (wanted,) if isinstance(wanted, int) else wanted
    if any(abs(part) > _MOST_NUMBERS for part in parts):
        raise ConfigError(f"relative is {wanted}, but an action has {width} numbers")
    # As openpi writes masks: so many that do, so many (below 0) that do not, and so on; those not named do not.
    mask = np.concatenate([np.full(abs(count), count > 0) for count in (*parts, -width)])
    if mask[width:].any():
        raise ConfigError(f"relative is {wanted}, but an action has {width} numbers")
    return mask[:width]


def _told_relative(config: Mapping[str, Any], width: int) -> np.ndarray:
    """Read LeRobot's ``use_relative_actions``: all numbers, but those whose names hold one that is excluded."""
    if not config.get("use_relative_actions"):
        return np.zeros(width, bool)
    names = config.get("action_feature_names") or []
    excluded = [str(name).lower() for name in config.get("relative_exclude_joints", ["gripper"]) if name]
    mask = np.ones(width, bool)
    for index, name in enumerate(names[:width]):
        mask[index] = not any(part in str(name).lower() for part in excluded)
    return mask


def statistics_file(folder: Path) -> Path | None:
    """Return the statistics in a folder: openpi's, there, below ``assets`` or by a robot's name, or LeRobot's."""
    if (folder / "norm_stats.json").is_file():
        return folder / "norm_stats.json"
    below = {*(folder / "assets").rglob("norm_stats.json"), *folder.glob("*/norm_stats.json")}
    below |= {*folder.glob("*/*/norm_stats.json")}
    found = [*sorted(below), *sorted(folder.glob(_LEROBOT_FILE))]
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found)
        raise ConfigError(f"{folder} has statistics of several robots", why=names, do="choose: norm_stats: PATH")
    return found[0] if found else None


def load_statistics(path: Path) -> dict[str, FieldStatistics]:
    """Read the statistics in a file, those of ``state`` and ``actions`` among them."""
    found = _statistics_in(path)
    missing = [name for name in ("state", "actions") if name not in found]
    if missing:
        raise ConfigError(f"{path} has no statistics of {missing[0]}", why=f"it has {', '.join(found)}")
    return found


def _statistics_in(path: Path) -> dict[str, FieldStatistics]:
    """Read openpi's ``norm_stats.json``, LeRobot's ``stats.json`` or what it saves of them with a policy."""
    if path.name == "stats.json":
        return {_LEROBOT_NAMES.get(name, name): found for name, found in load_lerobot_stats(path).items()}
    if path.suffix == ".safetensors":
        return _saved_with_policy(path)
    return load_norm_stats(path)


def _saved_with_policy(path: Path) -> dict[str, FieldStatistics]:
    """Read the state of LeRobot's normalising step: ``<feature>.<mean, std, …>``."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(only_file(path))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error)) from error
    known = {field.name for field in fields(FieldStatistics) if field.name != "mask"}
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        feature, _, what = name.rpartition(".")
        if what in known:
            found.setdefault(_LEROBOT_NAMES.get(feature, feature), {})[what] = array.astype(np.float64)
    return {feature: field_statistics(path, feature, parts) for feature, parts in found.items()}
