"""Which worker runs on which CPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

#: Below this many CPUs the scheduler does well by itself.
BIG_MACHINE = 16

#: Microseconds; waking a CPU that sleeps takes 30 to 100.
_AWAKE = 100.0


def cpu_plan(workers: int, pin: bool | None, allowed: Sequence[int], nodes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the CPUs of each worker; an empty list leaves it to the scheduler.

    `pin` True: one CPU each, in turn over the NUMA nodes. None: on a big machine with several nodes, all CPUs of one
    node each, so that a worker's memory stays near while the scheduler is free within the node. False: nothing.
    """
    usable = [[cpu for cpu in node if cpu in set(allowed)] for node in nodes]
    usable = [node for node in usable if node] or [sorted(allowed)]
    if pin:
        in_turn = [cpu for layer in _layers(usable) for cpu in layer]
        return [[in_turn[i % len(in_turn)]] for i in range(workers)]
    if pin is None and len(allowed) >= BIG_MACHINE and len(usable) > 1:
        return [list(usable[i % len(usable)]) for i in range(workers)]
    return [[] for _ in range(workers)]


def _layers(nodes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the first CPU of each node, then the second of each, and so on."""
    longest = max(len(node) for node in nodes)
    return [[node[i] for node in nodes if i < len(node)] for i in range(longest)]


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> list[list[int]]:
    """Return the CPUs of each NUMA node."""
    files = sorted(root.glob("node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:]))
    return [cpus for cpus in (parse_cpu_list(path.read_text()) for path in files) if cpus]


def parse_cpu_list(text: str) -> list[int]:
    """Read ``0-3,8,10-11``."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return how many CPUs' time the container may use, of whichever CPUs; infinite where it is not limited."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota == "max" else int(quota) / int(period)


def seconds_awake(workers: int, microseconds: float | None) -> float:
    """Return how long workers look out for their next command before they sleep.

    It costs nothing that someone else could use where there is a CPU for every worker, and much where there is not.
    """
    if microseconds is None:
        microseconds = _AWAKE if workers <= min(len(os.sched_getaffinity(0)), cpu_quota()) else 0.0
    return microseconds * 1e-6


def plan_for_this_machine(workers: int, pin: bool | None) -> list[list[int]]:
    """Return `cpu_plan` for the CPUs this process may use."""
    return cpu_plan(workers, pin, sorted(os.sched_getaffinity(0)), numa_nodes())
