"""Which commands of a lock-step group can go, and when."""

from __future__ import annotations

import numpy as np

from manyarms.vector.process import WorkerProcess
from manyarms.workers import words as w

# What the main side knows of a row.
NEW, LIVE, ENDED, ABORTED = range(4)


class LockstepGroup:
    """Rows that leave and come back together."""

    def __init__(self, worker: WorkerProcess, partial_reset: bool) -> None:
        self.worker = worker
        self.rows = worker.rows
        self.partial_reset = partial_reset
        self.outstanding = 0
        self.pending: dict[int, tuple[int, bytes]] = {}

    def leaving(self, state: np.ndarray) -> set[int]:
        """Return the rows whose commands can go now.

        Resets go by themselves, at once or, where the simulator can only reset all rows, when no row is in mid-episode.
        Steps go when every live row has one.
        """
        resets = {row for row, (command, _) in self.pending.items() if command == w.RESET}
        steps = set(self.pending) - resets
        live = {row for row in self.rows if state[row] == LIVE} - resets
        if resets and (self.partial_reset or not live):
            return resets
        return steps if steps and live <= steps else set()
