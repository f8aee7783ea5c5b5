"""How much memory there really is: the machine's, or the container's when that is less."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import psutil

from manyarms.errors import NotEnoughMemory

logger = logging.getLogger("manyarms")

#: What a Python process with numpy holds for itself before any simulator is loaded (measured: 25-30 MB unshared).
LEAST_WORKER_BYTES = 24 << 20


def available_bytes(root: Path = Path("/")) -> int:
    """Return what can still be allocated here without being killed for it."""
    return min([psutil.virtual_memory().available, *_cgroup_room(root)])


def _cgroup_room(root: Path) -> list[int]:
    """Return what each enclosing control group leaves, versions 1 and 2."""
    room: list[int] = []
    for path in _cgroups(root):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            try:
                limit = (path / limit_name).read_text().strip()
                used = int((path / used_name).read_text()) - _reclaimable(path)
            except (OSError, ValueError):
                continue
            if limit.isdigit():
                room.append(max(0, int(limit) - used))
    return room


def _reclaimable(path: Path) -> int:
    """Return the file cache counted as used, which the kernel gives back on demand."""
    try:
        lines = (path / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split()[:2] for line in lines if len(line.split()) >= 2)
    return int(values.get("inactive_file", values.get("total_inactive_file", 0)))


def _cgroups(root: Path) -> list[Path]:
    mount = root / "sys/fs/cgroup"
    found: list[Path] = []
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = mount / "memory" if controllers else mount
        here = base / path.lstrip("/")
        while True:
            found.append(here)
            if here == base or base not in here.parents:
                break
            here = here.parent
    return found


def check_room(needed: int, what: str, do: str) -> None:
    """Refuse an allocation that would get processes killed later."""
    room = available_bytes()
    if needed > room:
        raise NotEnoughMemory(f"{what} would take {pretty(needed)}, but only {pretty(room)} can be had here", do=do)


def say_how_many_fit(needs: Sequence[tuple[str, int]]) -> None:
    """Warn where workers (simulator, bytes each) may come to hold more than there is; no error, as they may share."""
    room, needed = available_bytes(), sum(size for _, size in needs)
    if needed > room:
        name, each = max(needs, key=lambda need: need[1])
        logger.warning(
            "%d workers may come to hold %s (%s: up to %s each), and %s are free: about %d fit",
            *(len(needs), pretty(needed), name, pretty(each), pretty(room), room // max(1, needed // len(needs))),
        )


def pretty(size: int) -> str:
    """Return a size in the unit a person would use."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
