"""Which cameras rows render: those the caller asks for, and now and then those that someone looks on through."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from manyarms.errors import ConfigError
from manyarms.vector.spaces import MergedSpec
from manyarms.workers import words as w

_ALL = 0x7FFFFFFF


class Cameras:
    """Writes the camera words of rows."""

    def __init__(self, control: np.ndarray, merged: MergedSpec) -> None:
        self._words = control[:, w.CAMERAS]
        self._words[:] = _ALL
        self._merged = merged
        self._known: dict[tuple[str, ...], np.ndarray] = {}
        self._glances: np.ndarray | None = None
        """Bits that each row adds to its next command's."""
        self.narrow: set[int] = set()
        """Rows whose words ask for some cameras only."""

    def ask(self, cameras: Sequence[str] | None, rows: np.ndarray) -> None:
        """Have rows render some cameras (None: all) with the command that they are about to be sent."""
        if cameras is not None:
            self._words[rows] = self._bits(cameras)[rows]
            self.narrow.update(rows.tolist())
            if self._glances is not None:
                self._add_glances(self._glances, rows)
        elif self.narrow:
            self._words[rows] = _ALL
            self.narrow.difference_update(rows.tolist())

    def glance(self, cameras: Sequence[str]) -> None:
        """Have each row render these too, once, with its next command."""
        self._glances = self._bits(cameras).copy() if cameras else None

    def _add_glances(self, glances: np.ndarray, rows: np.ndarray) -> None:
        self._words[rows] |= glances[rows]
        glances[rows] = 0
        if not glances.any():
            self._glances = None

    def _bits(self, cameras: Sequence[str]) -> np.ndarray:
        """Return the bits of some cameras for each row; they are numbered by the row's own spec."""
        asked = tuple(cameras)
        if asked not in self._known:
            known = self._merged.spec.cameras
            unknown = [camera for camera in asked if camera not in known]
            if unknown:
                raise ConfigError(f"there is no camera {unknown[0]!r}", do=f"choose from {', '.join(known) or 'none'}")
            rows = self._merged.rows
            bits = [sum(1 << i for i, name in enumerate(spec.cameras) if name in asked) for spec in rows]
            self._known[asked] = np.array(bits, np.int32)
        return self._known[asked]
