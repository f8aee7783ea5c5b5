"""Infos of many rows in Gymnasium's form: one array a key, and a mask ``_key`` that says which rows have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv

from manyarms.simulators.base import Spec, nest
from manyarms.workers import words as w
from manyarms.workers.arena import Arena
from manyarms.workers.wire import decode


class _Batch:
    """As much of a vector environment as Gymnasium's own rule for joining infos looks at."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    _add_info = GymnasiumVectorEnv._add_info


def add_info(infos: dict[str, Any], info: dict[str, Any], position: int, count: int) -> dict[str, Any]:
    """Add one row's info to those of `count` rows."""
    return _Batch(count)._add_info(infos, info, position)  # type: ignore[arg-type]


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

    def read(self, rows: Sequence[int], status: np.ndarray, replies: dict[int, Any]) -> dict[str, Any]:
        """Join the infos of `rows`; `status` holds their status words."""
        infos: dict[str, Any] = {}
        for i, row in enumerate(rows):
            words = status[i]
            reply = replies.pop(row, {})
            if words[w.FINAL_BYTES] or "final_info" in reply:
                infos = add_info(infos, self._final_part(row, words, reply), i, len(rows))
            info = self._own_part(row, words, reply)
            if info:
                infos = add_info(infos, info, i, len(rows))
        return infos

    def _own_part(self, row: int, words: np.ndarray, reply: Mapping[str, Any]) -> dict[str, Any]:
        info: dict[str, Any] = {}
        mask = int(words[w.INFO_MASK])
        if mask:
            for bit, name in enumerate(self._typed_names[row]):
                if mask >> bit & 1:
                    info[name] = self._typed[name][row].copy()
        size = words[w.INFO_BYTES]
        if size:
            info.update(decode(self._info[row, :size].tobytes()))
        elif "info" in reply:
            info.update(reply["info"])
        return info

    def _final_part(self, row: int, words: np.ndarray, reply: Mapping[str, Any]) -> dict[str, Any]:
        size = words[w.FINAL_BYTES]
        if size and self._final_info is not None:
            info = decode(self._final_info[row, :size].tobytes())
        else:
            info = reply["final_info"]
        observation = nest({name: self._final[name][row].copy() for name in self._final_names[row]})
        return {"final_obs": observation, "final_info": info}
