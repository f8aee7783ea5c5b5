"""When has a worker hung? Never because the machine is busy.

A deadline counts only time in which the worker could have worked. What it spent ready to run but waiting for a CPU,
and what the whole machine spent waiting for memory or disk, is taken off: the kernel keeps count of both.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

#: Without a deadline of the user's: far above what any step or reset takes, and above what was seen so far.
LEAST_STEP_SECONDS = 60.0
LEAST_RESET_SECONDS = 240.0
TIMES_THE_SLOWEST = 20.0
#: What every further action of a chunk adds to that: motion planning takes seconds.
SECONDS_AN_ACTION = 10.0

_STATES = {
    "T": "it is stopped (by SIGSTOP, or a debugger)",
    "t": "it is stopped (by a debugger)",
    "D": "it waits for a disk or a device (state D)",
    "R": "it computes without end",
    "S": "it is asleep, waiting for something",
}


#: Letters of processes that do nothing until someone lets them go on.
STOPPED = ("T", "t")


@dataclass
class Patience:
    """How long a step and a reset may take, by the user's word or by what was seen."""

    step_timeout: float | None
    reset_timeout: float | None
    slowest_step: float = 0.0
    slowest_reset: float = 0.0

    def allowed(self, is_reset: bool, actions: int) -> float:
        """Return the seconds a command may take; a chunk has more than a step.

        By the user's word K actions have K times as long; before anything was seen, a few seconds more for each.
        """
        if is_reset:
            return self.reset_timeout or max(LEAST_RESET_SECONDS, TIMES_THE_SLOWEST * self.slowest_reset)
        if self.step_timeout:
            return self.step_timeout * max(1, actions)
        more = max(1, actions) - 1
        least = LEAST_STEP_SECONDS + SECONDS_AN_ACTION * more
        return max(least, TIMES_THE_SLOWEST * self.slowest_step * (1 + more))

    def learn(self, is_reset: bool, actions: int, seconds: float) -> None:
        """Note how long a command took."""
        if is_reset:
            self.slowest_reset = max(self.slowest_reset, seconds)
        else:
            self.slowest_step = max(self.slowest_step, seconds / max(1, actions))


class Suspicion:
    """A closer look at one worker, begun when a part of its time is over."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._began = (time.monotonic(), cpu_seconds(pid), machine_stalls())
        self._delays, self._waited = run_delays(pid), 0.0

    def idle_seconds(self) -> float:
        """Return for how long the worker could have answered since, and did not.

        One that computes is judged by the processor time it has had; one that sleeps, by the clock, less what it and
        the machine spent waiting.
        """
        seen = (time.monotonic(), cpu_seconds(self.pid), machine_stalls())
        elapsed, computed, stalled = (now - then for now, then in zip(seen, self._began, strict=True))
        waited = self._seconds_waited()
        return computed if process_letter(self.pid) == "R" else elapsed - waited - stalled

    def _seconds_waited(self) -> float:
        """Return how long the worker has waited for a CPU since, summed look by look: threads come and go."""
        before, self._delays = self._delays, run_delays(self.pid)
        self._waited += max((now - before.get(thread, 0.0) for thread, now in self._delays.items()), default=0.0)
        return self._waited


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has used."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def run_delays(pid: int) -> dict[str, float]:
    """Return how long each thread of a process has waited for a CPU, in seconds; none where that is not counted."""
    delays: dict[str, float] = {}
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return delays
    for thread in threads:
        try:
            delays[thread] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            continue  # the thread has ended, or the kernel keeps no such count
    return delays


def machine_stalls() -> float:
    """Return the seconds in which every process of this machine waited for memory or disk."""
    total = 0.0
    for resource in ("memory", "io"):
        try:
            lines = Path(f"/proc/pressure/{resource}").read_text().splitlines()
        except OSError:
            continue  # a kernel without pressure accounting
        total += sum(int(line.rpartition("total=")[2]) for line in lines if line.startswith("full")) / 1e6
    return total


def process_letter(pid: int) -> str:
    """Return the state letter of a process: R, S, D, T, …"""
    fields = stat_fields(pid)
    return fields[0] if fields else ""


def process_state(pid: int) -> str:
    """Say what a process is doing, as the kernel sees it."""
    letter = process_letter(pid)
    return _STATES.get(letter, f"it is in state {letter}") if letter else "it is gone"


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
