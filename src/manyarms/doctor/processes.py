"""Processes that are asked something, and may crash or hang over it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manyarms.vector.endings import has_ended, reap, signal_name
from manyarms.vector.keeper import Keeper

_LAST_LINES = 3


@dataclass(frozen=True)
class Answer:
    """What came of a process: what it printed, or why there is nothing."""

    said: str = ""
    failure: str = ""
    """In a line; nothing where all went well."""


def ask(command: Sequence[str], timeout: float, environ: Mapping[str, str] | None = None) -> Answer:
    """Run a command and return what it printed; everything it started goes with it."""
    keeper = Keeper.instance()
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environ,
                start_new_session=True,
            )
        except OSError as error:
            return Answer(failure=f"{command[0]} could not be started: {error.strerror}")
        mark = keeper.mark(process.pid)
        in_time = has_ended(process.pid, timeout)
        code = reap(process, mark)
        if not in_time:
            return Answer(failure=f"no answer within {timeout:g} s")
        out.seek(0)
        err.seek(0)
        said = out.read().strip()
        return Answer(said, how_it_ended(code, err.read() or said))


def how_it_ended(code: int, printed: str) -> str:
    """Say in a line how a process failed; nothing if it did not."""
    if code == 0:
        return ""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    if code < 0:
        return "; ".join([f"it was killed by {signal_name(-code)}", *lines[-_LAST_LINES:]])
    return lines[-1] if lines else f"exit code {code}"
