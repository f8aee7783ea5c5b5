"""What runs without a main process, and folders that nobody will remove.

A main process holds the memfd of its workers, and its keeper names it; whatever is ours and has neither is left over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from manyarms.simulators.about import Finding, fault, ok
from manyarms.vector.keeper import main_of, mark_of

_WORKER = "manyarms.workers.main"
_KEEPER = os.path.join("manyarms", "vector", "keeper.py")
_MEMFD = "/memfd:manyarms "
_FOLDER = re.compile(r"(?:/[^/\s:]+)*/(?:new-)?manyarms-[^/\s:]+")
_SHOWN = 6

#: What is still there after this was not just about to end.
_SECOND_LOOK = 2.0

#: A folder that a run has not touched for so long is not one whose workers are just being started again.
_LONG_AGO = 60.0


@dataclass(frozen=True)
class Seen:
    """A process of ours, or one that may be a main process."""

    pid: int
    parent: int
    session: int
    started: float
    command: tuple[str, ...]
    mark: int
    """What it has from the process of ours that it stems from, or is; 0 if nothing."""
    arenas: frozenset[int]
    """The memfds of ours that it holds or maps."""
    folders: frozenset[str]
    """The temporary folders of ours that its command line or its environment names."""

    @property
    def label(self) -> str:
        """What it is, if it is one of ours."""
        if self.command and self.command[-1].startswith(_WORKER):
            return self.command[-1].removeprefix(_WORKER).strip()
        if len(self.command) > 2 and self.command[-3].endswith(_KEEPER):
            return "keeper"
        if "Xvfb" in os.path.basename(self.command[0] if self.command else "") and self.folders:
            return "Xvfb"
        return "child of a worker" if self.mark else ""


def findings() -> list[Finding]:
    """Look for what earlier runs have left, and look again before it is told."""
    left, folders = look()
    if left or folders:
        time.sleep(_SECOND_LOOK)
        again, folders_again = look()
        known = {(one.pid, one.started) for one in left}
        left = [one for one in again if (one.pid, one.started) in known]
        folders = [folder for folder in folders_again if folder in folders]
    return [stray_processes(left), stray_folders(folders)]


def look() -> tuple[list[Seen], list[str]]:
    """Return the processes and the folders that are left over."""
    seen = list(processes())
    mains = main_processes(seen)
    root = Path(tempfile.gettempdir())
    folders = [path for pattern in ("manyarms-*", "new-manyarms-*") for path in root.glob(pattern) if path.is_dir()]
    return (
        [one for one in seen if one.label and is_stray(one, seen, mains)],
        sorted(str(folder) for folder in folders if is_left(folder, seen, list(mains.values()))),
    )


def processes() -> Iterator[Seen]:
    """Yield what can be seen of every process; those of other users show nothing of themselves."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            command = tuple(process.cmdline())
            environ = process.environ()
            is_worker = bool(command) and command[-1].startswith(_WORKER)
            yield Seen(
                process.pid,
                process.ppid(),
                os.getsid(process.pid),
                process.create_time(),
                command,
                mark_of(process.pid),
                frozenset(_held(process.pid) | (_mapped(process.pid) if is_worker else set())),
                frozenset(_FOLDER.findall("\n".join([*command, *environ.values()]))),
            )


def _held(pid: int) -> set[int]:
    """Return the memfds of ours that a process has open."""
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(entry.path).startswith(_MEMFD):
                found.add(os.stat(entry.path).st_ino)
    return found


def _mapped(pid: int) -> set[int]:
    """Return the memfds of ours that a process has mapped: workers close theirs when they have."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if _MEMFD in line}


def main_processes(seen: Sequence[Seen]) -> dict[int, Seen]:
    """Return those that workers belong to: they hold a memfd of ours, or have a keeper."""
    kept = {one.parent for one in seen if one.label == "keeper" and main_of(int(one.command[-2])) == one.parent}
    return {one.pid: one for one in seen if one.pid in kept or (one.arenas and not one.label)}


def is_stray(one: Seen, seen: Sequence[Seen], mains: dict[int, Seen]) -> bool:
    """Tell whether a process of ours has lost its main process."""
    if one.label == "keeper":
        return main_of(int(one.command[-2])) != one.parent
    if one.label == "child of a worker":
        return not any(other.pid == main_of(one.mark) and other.started <= one.started for other in seen)
    if one.arenas:  # a worker; its parent may be a nursery that has ended, which is nothing bad
        return not any(one.arenas & main.arenas for main in mains.values())
    return one.parent not in mains


def stray_processes(left: Sequence[Seen]) -> Finding:
    """Say which processes are left over, and how to end them."""
    if not left:
        return ok("stray processes", "none")
    named = [f"{one.pid} ({one.label})" for one in left[:_SHOWN]]
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    # Whoever leads a session leads a group: the group goes with it. Without "--", which not every shell's kill knows.
    targets = [f"-{one.pid}" if one.session == one.pid else f"{one.pid}" for one in left]
    return fault(
        "stray processes",
        f"{len(left)} without a main process: {', '.join(named)}{more}",
        f"kill -9 {' '.join(targets)}",
    )


def stray_folders(left: Sequence[str]) -> Finding:
    """Say which temporary folders are left over."""
    root = tempfile.gettempdir()
    if not left:
        return ok("left-over folders", f"none in {root}")
    return fault("left-over folders", f"{len(left)} in {root}, of runs that are gone", f"rm -r {shlex.join(left)}")


def is_left(folder: Path, seen: Sequence[Seen], mains: Sequence[Seen]) -> bool:
    """Tell whether a folder belongs to no live run: nobody locks or names it, and no run can have made it just now."""
    with contextlib.suppress(OSError):
        status = folder.stat()
        if status.st_uid != os.getuid():
            return False
        if (folder / "lock").exists():
            return not _is_locked(folder / "lock")
        if any(str(folder) in one.folders for one in seen):
            return False
        return time.time() - status.st_mtime > _LONG_AGO or all(status.st_mtime < main.started for main in mains)
    return False


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
