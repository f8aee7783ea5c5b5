"""Infos of many rows in Gymnasium's form: one array a key, and a mask ``_key`` that says which rows have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from manyarms.simulators.base import Spec, nest
from manyarms.workers import words as w
from manyarms.workers.arena import Arena
from manyarms.workers.messages import check_info
from manyarms.workers.wire import Unreadable, decode


class _Batch:
    """As much of a vector environment as Gymnasium's own rule for joining infos looks at."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    _add_info = GymnasiumVectorEnv._add_info


def add_info(infos: dict[str, Any], info: dict[str, Any], position: int, count: int) -> dict[str, Any]:
    """Add one row's info to those of `count` rows; what one array cannot hold together becomes an array of objects."""
    try:
        return _Batch(count)._add_info(infos, info, position)  # type: ignore[arg-type]
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError):
        for name, value in info.items():
            infos = _add_unlike(infos, name, value, position, count)
        return infos


def _add_unlike(infos: dict[str, Any], name: str, value: Any, position: int, count: int) -> dict[str, Any]:
    """Add one entry of a row's info, whatever the other rows have under that name."""
    try:
        return _Batch(count)._add_info(infos, {name: value}, position)  # type: ignore[arg-type]
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError):
        present = infos.get(f"_{name}", np.zeros(count, bool))
        column = np.full(count, None, object)
        for row in np.flatnonzero(present).tolist():
            column[row] = _entry(infos[name], row)
        column[position] = value
        present[position] = True
        return {**infos, name: column, f"_{name}": present}


def _entry(joined: Any, row: int) -> Any:
    """Return what one row has in joined infos."""
    if isinstance(joined, dict):
        return {
            name: _entry(value, row)
            for name, value in joined.items()
            if joined.get(f"_{name}", [False] * (row + 1))[row]
        }
    return joined[row]


class Infos(NamedTuple):
    """What rows reported besides rewards and ends."""

    joined: dict[str, Any]
    unreadable: dict[int, Unreadable]
    """By position in the rows that were asked for."""


class InfoReader:
    """Reads what rows reported besides rewards and ends."""

    def __init__(self, arena: Arena, rows: Sequence[Spec], rename: Mapping[str, str]) -> None:
        self._info = arena.array("info")
        self._final_info = arena.array("final_info") if "final_info" in arena.layout.slots else None
        self._typed = arena.arrays("infos")
        self._typed_names = [list(spec.infos) for spec in rows]
        self._final = arena.arrays("final")
        self._final_names = [
            [rename.get(name, name) for name in spec.layout() if rename.get(name, name) in self._final] for spec in rows
        ]

    def read(self, rows: Sequence[int], status: np.ndarray, replies: dict[int, Any], infos: dict[str, Any]) -> Infos:
        """Add the infos of `rows`, of which `status` holds the words; return also by position what cannot be read."""
        unreadable: dict[int, Unreadable] = {}
        for i, row in enumerate(rows):
            words = status[i]
            reply = replies.pop(row, {})
            try:
                final = self._final_part(row, words, reply) if words[w.FINAL_BYTES] or "final_info" in reply else {}
                info = self._own_part(row, words, reply)
            except Unreadable as error:
                unreadable[i] = error
                continue
            for part in (final, info):
                if part:
                    infos = add_info(infos, part, i, len(rows))
        return Infos(infos, unreadable)

    def _own_part(self, row: int, words: np.ndarray, reply: Mapping[str, Any]) -> dict[str, Any]:
        info: dict[str, Any] = {}
        mask = int(words[w.INFO_MASK])
        if mask:
            for bit, name in enumerate(self._typed_names[row]):
                if mask >> bit & 1:
                    info[name] = self._typed[name][row].copy()
        size = words[w.INFO_BYTES]
        if size:
            info.update(check_info(decode(self._info[row, :size].tobytes())))
        elif "info" in reply:
            info.update(reply["info"])
        return info

    def _final_part(self, row: int, words: np.ndarray, reply: Mapping[str, Any]) -> dict[str, Any]:
        size = words[w.FINAL_BYTES]
        if size and self._final_info is not None:
            info = check_info(decode(self._final_info[row, :size].tobytes()))
        elif "final_info" in reply:
            info = reply["final_info"]
        else:
            raise Unreadable("a last info is announced and not there")
        observation = nest({name: self._final[name][row].copy() for name in self._final_names[row]})
        return {"final_obs": observation, "final_info": info}
