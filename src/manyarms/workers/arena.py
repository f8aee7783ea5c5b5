"""The layout of the shared memory: one array a field, one row an environment, every row on its own cache lines.

Both sides build the same views from the same `Layout`, which travels as plain values.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Tuple

import numpy as np

#: Rows and arrays start on cache lines, so that two workers never write to the same one.
ALIGNMENT = 64

_MAP_POPULATE = 0x8000 if sys.platform == "linux" else 0


class Slot(NamedTuple):
    """Where one field lies: row r at ``offset + r * stride``."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    offset: int
    stride: int


def align(size: int) -> int:
    """Round up to the next cache line."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Layout:
    """Which field lies where, for `rows` rows."""

    def __init__(self, rows: int, slots: Iterable[Slot]) -> None:
        self.rows = rows
        self.slots: Dict[str, Slot] = {slot.name: slot for slot in slots}
        end = max((slot.offset + rows * slot.stride for slot in self.slots.values()), default=0)
        # Memory comes in pages, and an empty mapping is an error.
        self.size = max(1, -(-end // mmap.PAGESIZE)) * mmap.PAGESIZE

    @classmethod
    def plan(cls, rows: int, fields: Mapping[str, Tuple[str, Tuple[int, ...]]]) -> "Layout":
        """Lay fields, given as ``name -> (dtype, shape of one row)``, one behind the other."""
        slots: List[Slot] = []
        offset = 0
        for name, (dtype, shape) in fields.items():
            stride = align(np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)))
            slots.append(Slot(name, dtype, tuple(shape), offset, stride))
            offset += rows * stride
        return cls(rows, slots)

    def to_json(self) -> Dict[str, Any]:
        return {
            "rows": self.rows,
            "slots": [[s.name, s.dtype, list(s.shape), s.offset, s.stride] for s in self.slots.values()],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Layout":
        return cls(value["rows"], [Slot(n, d, tuple(shape), o, s) for n, d, shape, o, s in value["slots"]])


class Arena:
    """The mapped memory and the views into it."""

    def __init__(self, layout: Layout, fd: int, populate: bool = False) -> None:
        self.layout = layout
        flags = mmap.MAP_SHARED | (_MAP_POPULATE if populate else 0)
        self.memory = mmap.mmap(fd, layout.size, flags)

    def array(self, name: str) -> np.ndarray:
        """Return a field of all rows: ``[rows, *shape]``."""
        slot = self.layout.slots[name]
        dtype = np.dtype(slot.dtype)
        shape = (self.layout.rows, *slot.shape)
        inner: List[int] = []
        step = dtype.itemsize
        for size in reversed(slot.shape):
            inner.insert(0, step)
            step *= size
        return np.ndarray(shape, dtype, self.memory, slot.offset, (slot.stride, *inner))

    def arrays(self, prefix: str) -> Dict[str, np.ndarray]:
        """Return every field under ``prefix/``, by the rest of its name."""
        start = prefix + "/"
        return {name[len(start) :]: self.array(name) for name in self.layout.slots if name.startswith(start)}

    def region(self, name: str) -> memoryview:
        """Return the bytes of a field in all rows, padding included."""
        slot = self.layout.slots[name]
        return memoryview(self.memory)[slot.offset : slot.offset + self.layout.rows * slot.stride]

    def words(self, name: str, row: int) -> Any:
        """Return a row of words as a memoryview of ints or floats: five times faster than numpy for single values."""
        slot = self.layout.slots[name]
        start = slot.offset + row * slot.stride
        size = np.dtype(slot.dtype).itemsize * int(np.prod(slot.shape, dtype=np.int64))
        kind: Any = {"i4": "i", "f8": "d", "u1": "B"}[slot.dtype]
        return memoryview(self.memory)[start : start + size].cast(kind)
