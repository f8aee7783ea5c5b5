"""What a process has to know of its own place, worked out from the plan by the driver."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from manyarms.placement.plan import Plan
from manyarms.placement.processes import Process


@dataclass(frozen=True)
class Seat:
    """A process's place among those of its role."""

    role: str
    rank: int
    world: int
    device: str
    """Where it computes, such as cuda:3."""
    folder: Path
    """The working directory of the driver: paths in a config are relative to it."""
    imports: tuple[str, ...]
    """Where the driver finds modules."""
    offloads: bool = False
    """Whether it leaves the device between phases."""
    num_envs: int = 0
    """rollout: environments of its own."""
    egl_devices: tuple[int, ...] = ()
    """rollout: the GPU on which each of its workers renders; none: nothing to choose."""
    most_envs: int = 0
    """rollout: environments of the process that has most, by which all of them size their batches."""

    @property
    def name(self) -> str:
        return f"{self.role} {self.rank}"

    def enter(self) -> None:
        """Go to the driver's directory, where there is one of that name on this node; find the modules it finds."""
        if self.egl_devices:
            os.environ["MANYARMS_PLACED"] = "1"  # who renders where was looked at as a whole
        with suppress(OSError):
            os.chdir(self.folder)
        sys.path += [entry for entry in self.imports if entry not in sys.path]


def seat_of(process: Process, plan: Plan, *, overlapping: bool) -> Seat:
    """Return a process's seat; roles that work at the same time (`overlapping`) cannot make room for each other."""
    peers = plan.roles[process.role]
    device = f"cuda:{process.devices[0]}" if process.kind == "gpu" and process.devices else "cpu"
    return Seat(
        process.role,
        process.rank,
        len(peers),
        device,
        Path.cwd(),
        tuple(os.path.abspath(entry) for entry in sys.path),
        process.offloads and not overlapping,
        len(process.rows),
        _egl_devices(process, plan),
        max(len(peer.rows) for peer in peers),
    )


def _egl_devices(process: Process, plan: Plan) -> tuple[int, ...]:
    """Return the GPU of every worker: that of its first row."""
    if process.role != "rollout":
        return ()
    devices = {
        row: share.slot.device
        for share in plan.simulators_of(process.rank)
        for row in share.rows
        if share.slot.kind == "gpu" and share.slot.device is not None
    }
    each = plan.totals.rows_per_worker
    return tuple(devices[row] for row in process.rows[::each] if row in devices)
