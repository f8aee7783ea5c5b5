"""Every check in a process of its own, with a deadline: what hangs or crashes is a finding, not the end."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from manyarms.doctor.processes import how_it_ended
from manyarms.simulators.about import Row, fault
from manyarms.vector.endings import has_ended, reap
from manyarms.vector.keeper import Keeper, end_all

#: Checks at a time; more would make each other late.
_AT_ONCE = 3


@dataclass(frozen=True)
class Check:
    """A function that returns rows."""

    name: str
    """What the row is called when none comes back."""
    function: str
    """``package.module:function``."""
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Examination:
    """Checks that run side by side; leaving the context ends those that still do."""

    def __init__(self, checks: Sequence[Check], timeout: float) -> None:
        self._checks = checks
        self._timeout = timeout
        self._lock = threading.Lock()
        self._running: set[int] = set()
        """The marks of their processes."""
        self._over = False

    def __enter__(self) -> Examination:
        self._keeper = Keeper.instance()  # here, not in several threads at once
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="manyarms-doctor")
        self._results: list[Future[list[Row]]] = [self._pool.submit(self._run, check) for check in self._checks]
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            end_all(self._running)
        self._pool.shutdown(cancel_futures=True)

    def rows(self) -> Iterator[list[Row]]:
        """Yield the findings in the order of the checks, each when it is there."""
        for result in self._results:
            yield result.result()

    def _run(self, check: Check) -> list[Row]:
        with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+", errors="replace") as log:
            started = self._start(check, answer, log)
            if started is None:
                return []
            process, mark = started
            in_time = has_ended(process.pid, self._timeout)
            code = reap(process, mark)
            with self._lock:
                self._running.discard(mark)
            if not in_time:
                return [_late(check, self._timeout)]
            answer.seek(0)
            log.seek(0)
            rows = answer.read()
            if rows:
                return [Row(**row) for row in json.loads(rows)]
            ended = how_it_ended(code, log.read()) or "it ended without a word"
            return [fault(check.name, f"the check itself failed: {ended}", "report this line as a bug of manyarms")]

    def _start(self, check: Check, answer: IO[str], log: IO[str]) -> tuple[subprocess.Popen[bytes], int] | None:
        command = [sys.executable, "-P", "-m", "manyarms.doctor", str(answer.fileno()), json.dumps(asdict(check))]
        with self._lock:
            if self._over:
                return None
            process = subprocess.Popen(
                command,
                pass_fds=(answer.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is for us
            )
            mark = self._keeper.mark(process.pid)
            self._running.add(mark)
        return process, mark


def _late(check: Check, timeout: float) -> Row:
    return fault(
        check.name,
        f"no answer within {timeout:g} s: it hangs, or the machine is very busy",
        f"manyarms doctor --timeout {4 * timeout:g}   # to see whether it is only slow",
    )
