"""Processes that end when they should not: what is known of the cause, in words."""

from __future__ import annotations

import os
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from manyarms.errors import LearningError, ManyarmsError

_LAST_LINES = 8


@dataclass(frozen=True)
class Whereabouts:
    """Where a process is, or was."""

    name: str
    pid: int
    node: str
    address: str
    log: str
    """The file its standard error goes to, on its node."""


def signs_of_loss() -> tuple[type[BaseException], ...]:
    """Return what Ray raises for an answer whose process is gone, or whose node was lost with the answer on it."""
    from ray.exceptions import ObjectLostError, RayActorError

    return RayActorError, ObjectLostError


def lost_on_its_way(error: BaseException) -> bool:
    """Tell whether a task failed because something that it was to fetch is gone from the object store."""
    from ray.exceptions import ObjectLostError

    return isinstance(getattr(error, "cause", None), ObjectLostError)


def whereabouts(name: str) -> Whereabouts:
    """Return those of this process."""
    import ray

    context = ray.get_runtime_context()
    return Whereabouts(
        name, os.getpid(), context.get_node_id(), ray.util.get_node_ip_address(), os.readlink("/proc/self/fd/2")
    )


class ProcessLost(ManyarmsError, RuntimeError):
    """A process of a placed run that ended."""


class LearnersLost(ProcessLost):
    """Who learns is gone: training goes on from the last checkpoint."""


class RayLost(ProcessLost):
    """Ray itself is gone from this machine: whoever still runs cannot be reached from here."""


def cause_of(error: BaseException, was: Whereabouts, *, node_lost: bool) -> ProcessLost:
    """Say why a process ended, as far as anybody knows."""
    what = f"{was.name} (process {was.pid} at {was.address}) died"
    if node_lost:
        return ProcessLost(what, why="its node was lost")
    why, do = _explained(str(error))
    last = last_lines(was.log)
    return ProcessLost(what, why=why + (f"; the last it said:\n{last}" if last else ""), do=do, log=was.log)


def _explained(said: str) -> tuple[str, str]:
    """Return the cause, and what to do about it, from what Ray says of a death."""
    lower = said.lower()
    if "memory" in lower and ("threshold" in lower or "node_out_of_memory" in lower or "was killed due to" in lower):
        return "Ray ended it because the node was short of memory", "lower env.train.total_num_envs, or add memory"
    code = re.search(r"exit code (-?\d+)", said)
    if code:
        return f"it ended with exit code {code[1]}", "look at what it last said"
    if "creation task failed" in lower or "__init__" in said:
        return "it could not start: " + said.strip().splitlines()[-1], ""
    if "ray.kill" in lower:
        return "somebody ended it with ray.kill", "look for who did"
    # A process that a signal ends cannot say so, and Ray is not told the number.
    return (
        "a signal ended it: SIGKILL where memory ran out (usual cause) or someone sent it, SIGSEGV where native code "
        "crashed",
        "see `dmesg` of that node; lower env.train.total_num_envs if memory was short",
    )


def never_began(error: BaseException, name: str = "a process") -> ProcessLost:
    """Say why a process ended before it had told where it is."""
    why, do = _explained(str(error))
    return ProcessLost(f"{name} died while it was started", why=why, do=do)


def last_lines(log: str) -> str:
    """Return what a process last said, where its log can be read from here."""
    try:
        with Path(log).open(errors="replace") as file:
            lines = deque((line.rstrip() for line in file if not line.startswith(":")), _LAST_LINES)
    except OSError:
        return ""
    return "\n".join(line for line in lines if line)


def unwrapped(error: BaseException, name: str) -> ManyarmsError:
    """Return the error of ours that a process raised; any other becomes one that names the process."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, ManyarmsError):
        return cause
    lines = str(error).strip().splitlines()
    return LearningError(f"{name} failed: {lines[-1] if lines else type(error).__name__}", why="\n".join(lines[-12:]))
