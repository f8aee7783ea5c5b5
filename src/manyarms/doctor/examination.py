"""Questions to processes that may crash or hang over them: what does is a finding, not the end."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from manyarms.simulators.about import Finding, fault
from manyarms.vector.endings import has_ended, reap, signal_name
from manyarms.vector.keeper import Keeper, end_all

#: Checks at a time; more would make each other late.
_AT_ONCE = 3

_LAST_LINES = 3


@dataclass(frozen=True)
class Answer:
    """What came of a process: what it printed, or why there is nothing."""

    said: str = ""
    failure: str = ""
    """In a line; nothing where all went well."""
    in_time: bool = True


def ask(
    command: Sequence[str],
    timeout: float,
    environ: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    started: Callable[[int], None] = lambda mark: None,
) -> Answer:
    """Run a command and return what it printed; everything it started goes with it.

    `started` is called with the mark by which others can end it.
    """
    keeper = Keeper.instance()
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environ,
                pass_fds=pass_fds,
                start_new_session=True,  # the terminal's Ctrl-C is for us
            )
        except OSError as error:
            return Answer(failure=f"{command[0]} could not be started: {error.strerror}")
        mark = keeper.mark(process.pid)
        started(mark)
        in_time = has_ended(process.pid, timeout)
        code = reap(process, mark)
        if not in_time:
            return Answer(failure=f"no answer within {timeout:g} s", in_time=False)
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


@dataclass(frozen=True)
class Check:
    """A function that returns findings."""

    name: str
    """What the finding is called when none comes back."""
    function: str
    """``package.module:function``."""
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Examination:
    """Checks that run side by side, each in a process of its own; leaving the context ends those that still run."""

    def __init__(self, checks: Sequence[Check], timeout: float) -> None:
        self._checks = checks
        self._timeout = timeout
        self._lock = threading.Lock()
        self._marks: set[int] = set()
        """Of the processes that were started."""
        self._over = False

    def __enter__(self) -> Examination:
        Keeper.instance()  # here, not in several threads at once
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="manyarms-doctor")
        self._results: list[Future[list[Finding]]] = [self._pool.submit(self._run, check) for check in self._checks]
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            end_all(self._marks)
        self._pool.shutdown(cancel_futures=True)

    def findings(self) -> Iterator[list[Finding]]:
        """Yield what was found in the order of the checks, each when it is there."""
        for result in self._results:
            yield result.result()

    def _run(self, check: Check) -> list[Finding]:
        with tempfile.TemporaryFile("w+") as found:
            command = [sys.executable, "-P", "-m", "manyarms.doctor", str(found.fileno()), json.dumps(asdict(check))]
            answer = ask(command, self._timeout, pass_fds=[found.fileno()], started=self._note)
            if not answer.in_time:
                return [
                    fault(
                        check.name,
                        f"{answer.failure}: it hangs, or the machine is very busy",
                        f"manyarms doctor --timeout {4 * self._timeout:g}   # to see whether it is only slow",
                    )
                ]
            found.seek(0)
            findings = found.read()
            if findings:
                return [Finding(**each) for each in json.loads(findings)]
            ended = answer.failure or "it ended without a word"
            return [fault(check.name, f"the check itself failed: {ended}", "report this line as a bug of manyarms")]

    def _note(self, mark: int) -> None:
        with self._lock:
            self._marks.add(mark)
            if self._over:
                end_all({mark})
