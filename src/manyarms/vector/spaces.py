"""From simulators' specs to one layout and to Gymnasium's spaces, also when rows differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from manyarms.errors import ConfigError
from manyarms.simulators.base import Field, Spec, nest
from manyarms.workers.wire import Unreadable

#: Of one row. More than that is no observation of a robot but a number that was misread.
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class MergedSpec:
    """One spec that every row fits into."""

    spec: Spec
    rename: dict[str, str]
    """Fields that go by another name because rows differ: an unnamed observation becomes ``observation``."""
    rows: tuple[Spec, ...]
    """Each row's own spec."""


def merge(rows: Sequence[Spec]) -> MergedSpec:
    """Pad the fields of unlike rows to one shape; lengths say how much is filled."""
    first = rows[0]
    alike = first.to_json()
    if all(spec is first or spec.to_json() == alike for spec in rows):
        return MergedSpec(first, {}, tuple(rows))
    shapes = {tuple((n, f.shape) for n, f in spec.observations.items()) for spec in rows}
    rename = {"": "observation"} if len(shapes) > 1 and any("" in spec.observations for spec in rows) else {}
    merged = replace(
        first,
        observations=_merge_observations(rows, rename),
        actions=_merge_actions(rows),
        infos=_merge_infos(rows),
        tasks=tuple(dict.fromkeys(task for spec in rows for task in spec.tasks)),
        horizon=None if any(spec.horizon is None for spec in rows) else max(spec.horizon or 0 for spec in rows),
        control_rate=first.control_rate if len({spec.control_rate for spec in rows}) == 1 else None,
        can_save=all(spec.can_save for spec in rows),
    )
    return MergedSpec(merged, rename, tuple(rows))


def _merge_observations(rows: Sequence[Spec], rename: Mapping[str, str]) -> dict[str, Field]:
    renamed = [{rename.get(n, n): f for n, f in spec.observations.items()} for spec in rows]
    names = dict.fromkeys(name for group in renamed for name in group)
    merged = {}
    for name in names:
        present = [group[name] for group in renamed if name in group]
        merged[name] = _merge_field(f"observation {name!r}", present, somewhere_missing=len(present) < len(rows))
    return merged


def _merge_actions(rows: Sequence[Spec]) -> dict[str, Field]:
    names = {tuple(spec.actions) for spec in rows}
    if len(names) > 1:
        raise ConfigError(
            "these simulators cannot share a vector environment",
            why=f"their actions have different parts: {' / '.join(str(list(n)) for n in sorted(names))}",
            do="run them in vector environments of their own",
        )
    merged = {}
    for name in rows[0].actions:
        field = _merge_field(f"action {name!r}", [spec.actions[name] for spec in rows], False)
        merged[name] = replace(field, ragged=False)
    return merged


def _merge_infos(rows: Sequence[Spec]) -> dict[str, Field]:
    merged: dict[str, Field] = {}
    for spec in rows:
        for name, field in spec.infos.items():
            other = merged.setdefault(name, field)
            if (other.shape, other.dtype) != (field.shape, field.dtype):
                mine, theirs = f"{other.shape} {other.dtype}", f"{field.shape} {field.dtype}"
                raise ConfigError(f"info {name!r} is {mine} in one row and {theirs} in another")
    return merged


def _merge_field(what: str, present: Sequence[Field], somewhere_missing: bool) -> Field:
    first = present[0]
    kinds = {(f.dtype, f.space, len(f.shape)) for f in present}
    if len(kinds) > 1:
        raise ConfigError(
            "these rows cannot share a vector environment",
            why=f"{what} is of different kinds: {'; '.join(f'{f.space} {f.shape} {f.dtype}' for f in present[:3])}",
            do="run them in vector environments of their own",
        )
    shapes = {f.shape for f in present}
    if len(shapes) > 1 and len(first.shape) != 1:
        raise ConfigError(
            "these rows cannot share a vector environment",
            why=f"{what} has different shapes: {', '.join(map(str, sorted(shapes)))}",
            do="give all rows the same image size",
        )
    shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    ragged = any(f.ragged for f in present) or len(shapes) > 1 or (somewhere_missing and len(shape) == 1)
    return replace(
        first,
        shape=shape,
        low=_outer_bound(np.min, [f.low for f in present]),
        high=_outer_bound(np.max, [f.high for f in present]),
        ragged=ragged,
        space="box" if ragged else first.space,
    )


def _outer_bound(pick: Any, bounds: Sequence[Any]) -> Any:
    if any(bound is None for bound in bounds):
        return None
    if all(np.array_equal(bound, bounds[0]) for bound in bounds):
        return bounds[0]
    # Zero lies in every padded part.
    return pick([pick(np.asarray(bound)) for bound in bounds] + [0]).item()


def bounds_of(field: Field) -> tuple[np.ndarray, np.ndarray]:
    """Return a field's bounds as arrays of its shape and dtype; infinities where it has none."""
    dtype = np.dtype(field.dtype)
    if dtype.kind == "f":
        least, most = -np.inf, np.inf
    elif dtype.kind == "b":
        least, most = False, True
    else:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    low = np.broadcast_to(np.asarray(least if field.low is None else field.low, dtype), field.shape)
    high = np.broadcast_to(np.asarray(most if field.high is None else field.high, dtype), field.shape)
    return low, high


def field_space(field: Field) -> gymnasium.Space[Any]:
    """Return the Gymnasium space of one field."""
    dtype: Any = np.dtype(field.dtype)
    low, high = bounds_of(field)
    if field.space == "discrete":
        return spaces.Discrete(int(high) - int(low) + 1, start=int(low))
    if field.space == "multi_discrete":
        return spaces.MultiDiscrete(high - low + 1, dtype=dtype, start=low)
    if field.space == "multi_binary":
        return spaces.MultiBinary(field.shape if len(field.shape) != 1 else field.shape[0])
    return spaces.Box(low, high, field.shape, dtype)


def check_spaces(spec: Mapping[str, Any]) -> None:
    """Refuse a spec in plain values that no space can be made of."""
    try:
        found = Spec.from_json(spec)
        size = sum(
            np.dtype(f.dtype).itemsize * math.prod(f.shape)
            for f in (*found.layout().values(), *found.actions.values(), *found.infos.values())
        )
        if size > _MOST_BYTES:
            raise Unreadable(f"its observations and actions take {size} bytes")
        space_of(found.layout())
        space_of(found.actions)
    except (ValueError, TypeError, KeyError, AssertionError, OverflowError) as error:
        raise Unreadable(f"its spec: {error}") from None


def space_of(fields: Mapping[str, Field]) -> gymnasium.Space[Any]:
    """Return the space of a whole observation or action."""
    return _tree_space(nest({name: field_space(field) for name, field in fields.items()}))


def _tree_space(tree: Any) -> gymnasium.Space[Any]:
    if isinstance(tree, dict):
        return spaces.Dict({key: _tree_space(branch) for key, branch in tree.items()})
    return tree


def batched_observations(merged: MergedSpec) -> gymnasium.Space[Any]:
    """Return the observation space of all rows."""
    return batch_space(space_of(merged.spec.layout()), len(merged.rows))


def batched_actions(merged: MergedSpec) -> gymnasium.Space[Any]:
    """Return the action space of all rows, each with its own bounds."""
    if all(row is merged.spec or row.to_json() == merged.spec.to_json() for row in merged.rows):
        return batch_space(space_of(merged.spec.actions), len(merged.rows))
    return batch_differing_spaces([space_of(padded_actions(merged.spec.actions, row.actions)) for row in merged.rows])


def padded_actions(shared: Mapping[str, Field], own: Mapping[str, Field]) -> dict[str, Field]:
    """Return a row's action fields in the shared shape. Nobody reads the padding: it has the shared bounds."""
    fields = {}
    for name, field in shared.items():
        low, high = (np.copy(bound) for bound in bounds_of(field))
        cut = tuple(slice(n) for n in own[name].shape)
        low[cut], high[cut] = bounds_of(own[name])
        fields[name] = replace(field, low=low, high=high)
    return fields
