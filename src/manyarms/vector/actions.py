"""Actions on their way into the arena: shape, dtype, range, checked before any worker sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from manyarms.errors import ActionError
from manyarms.simulators.base import Field, Spec, flatten
from manyarms.vector.spaces import bounds_of, padded_actions


class ActionWriter:
    """Writes batches of actions into the arena's action fields."""

    def __init__(
        self, fields: Mapping[str, Field], rows: Sequence[Spec], arrays: Mapping[str, np.ndarray], mode: str
    ) -> None:
        self._fields = dict(fields)
        self._arrays = dict(arrays)
        self._mode = mode
        self._bare = "" in self._fields
        padded = [padded_actions(fields, spec.actions) for spec in rows]
        self._bounds = {name: row_bounds([row[name] for row in padded]) for name in fields}
        self._whole = {name: array[:, 0] for name, array in arrays.items()}

    def write_step(self, actions: Any) -> None:
        """Write one action for every row."""
        for name, values in (self._parts(actions) if not self._bare else {"": actions}).items():
            self._write(name, self._whole[name], values, *self._bounds[name])

    def write_chunk(self, rows: np.ndarray | None, actions: Any, max_chunk: int) -> int:
        """Write K actions for each of `rows` (None: all); return K."""
        parts = {"": actions} if self._bare else self._parts(actions)
        length = 0
        for name, given in parts.items():
            values = _as_array(name, given)
            field = self._fields[name]
            if values.ndim != 2 + len(field.shape):
                raise ActionError(
                    f"{_what(name)} has shape {values.shape}, a chunk has [rows, actions{_dims(field.shape)}]",
                    do="for one action a row use step(), or add an axis: actions[:, None]",
                )
            length = values.shape[1]
            if not 1 <= length <= max_chunk:
                raise ActionError(
                    f"a chunk of {length} actions was sent; this environment takes 1 to {max_chunk}",
                    do=f"make_vec(…, max_chunk={max(length, 1)})",
                )
            low, high = self._bounds[name]
            if rows is None:
                self._write(name, self._arrays[name][:, :length], values, low[:, None], high[:, None])
            else:
                # A gathered copy is checked first and scattered after, so that other rows' actions stay untouched.
                target = np.empty((len(rows), *values.shape[1:2], *field.shape), field.dtype)
                self._write(name, target, values, low[rows, None], high[rows, None], rows)
                self._arrays[name][rows, :length] = target
        return length

    def _parts(self, actions: Any) -> dict[str, Any]:
        parts = flatten(actions) if isinstance(actions, Mapping) else {}
        if parts.keys() != self._fields.keys():
            raise ActionError(
                f"actions must be a dict with the parts {', '.join(self._fields)}",
                why=f"got {', '.join(map(str, parts)) or type(actions).__name__}",
            )
        return parts

    def _write(
        self,
        name: str,
        target: np.ndarray,
        values: Any,
        low: np.ndarray,
        high: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> None:
        """Cast `values` into `target`, clip or refuse what is out of range."""
        if type(values) is not np.ndarray:
            values = _as_array(name, values)
        if values.shape != target.shape:
            raise ActionError(f"{_what(name)} has shape {values.shape}, expected {target.shape}")
        try:
            np.copyto(target, values, casting="same_kind")
        except TypeError:
            raise ActionError(
                f"{_what(name)} is {values.dtype}, which cannot become {target.dtype} without loss",
                do=f"convert it: actions.astype(numpy.{target.dtype})",
            ) from None
        if in_range(target, low, high):
            return
        if self._mode == "clip" and (target.dtype.kind != "f" or np.isfinite(target).all()):
            np.clip(target, low, high, out=target)
        else:
            self._refuse(name, target, low, high, rows)

    def _refuse(
        self, name: str, target: np.ndarray, low: np.ndarray, high: np.ndarray, rows: np.ndarray | None
    ) -> None:
        """Say which action is out of range, unless that is allowed."""
        finite = np.isfinite(target)
        if finite.all() and self._mode == "ignore":
            return
        bad = ~finite if not finite.all() else (target < low) | (target > high)
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        row = where[0] if rows is None else int(rows[where[0]])
        value = target[where]
        place = f"row {row}" + (f", element {list(where[1:])}" if where[1:] else "")
        if not finite.all():
            raise ActionError(
                f"{_what(name)} holds {value} ({place})", do="find where the policy divides by zero or overflows"
            )
        limits = np.broadcast_to(low, target.shape)[where], np.broadcast_to(high, target.shape)[where]
        raise ActionError(
            f"{_what(name)} holds {value} ({place}), but the range is {limits[0]} to {limits[1]}",
            do="clip it, or make_vec(…, action_bounds='clip')",
        )


def in_range(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> bool:
    """Tell whether all values are within their bounds; NaN never is. For few values, a third of what `all` costs."""
    return b"\0" not in (values >= low).tobytes() and b"\0" not in (values <= high).tobytes()


def row_bounds(rows: Sequence[Field]) -> tuple[np.ndarray, np.ndarray]:
    """Return [rows, …] bounds; infinite ones become the largest finite number, so that one comparison finds NaN too."""
    low, high = (np.stack(bounds) for bounds in zip(*map(bounds_of, rows), strict=True))
    if low.dtype.kind == "f":
        most = np.finfo(low.dtype).max
        low, high = np.clip(low, -most, most), np.clip(high, -most, most)
    return low, high


def _as_array(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ActionError(f"{_what(name)} is no rectangular array", why=str(error)) from None
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise ActionError(f"{_what(name)} is of type {array.dtype}, not numbers", why=f"got {type(values).__name__}")
    return array


def _what(name: str) -> str:
    return f"action {name!r}" if name else "action"


def _dims(shape: tuple[int, ...]) -> str:
    return "".join(f", {n}" for n in shape)
