"""Errors that say what happened, why, and what to do."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    """Return text that a terminal shows and does not obey: what is no letter, space, tab or new line is written out.

    Simulators, checkpoints, datasets, run folders and other machines choose the words of our messages too.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or c.isprintable() or unicodedata.category(c) == "Zs" else ascii(c)[1:-1]
        for c in text.replace("\r\n", "\n")
    )


class ManyarmsError(Exception):
    """The base of every error that is ours to explain."""

    def __init__(self, what: str, *, why: str = "", do: str = "", log: str = "") -> None:
        self.what, self.why, self.do, self.log = map(printable, (what, why, do, log))
        lines = [self.what]
        for label, text in (("why:", self.why), ("do: ", self.do), ("log:", self.log)):
            if text:
                lines.append(f"  {label} " + text.replace("\n", "\n       "))
        super().__init__("\n".join(lines))


class ConfigError(ManyarmsError, ValueError):
    """A setting or an argument that cannot be meant."""


class ActionError(ConfigError):
    """Actions that must not reach a simulator."""


class RowStateError(ManyarmsError, RuntimeError):
    """A row was asked for something it cannot do now."""


class RolloutError(ManyarmsError, RuntimeError):
    """Episodes that could not be played."""


class LearningError(ManyarmsError, ArithmeticError):
    """Training that cannot go on."""


class DiskError(ManyarmsError, OSError):
    """What could not be written."""


class UnknownName(ManyarmsError, LookupError):
    """A simulator or task that does not exist."""


class NotEnoughMemory(ManyarmsError, MemoryError):
    """More memory asked for than the machine or its container has."""


class StartError(ManyarmsError, RuntimeError):
    """Workers that could not start."""

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        do: str = "",
        log: str = "",
        missing_module: str = "",
        missing_part: bool = False,
        option: str = "",
    ) -> None:
        super().__init__(what, why=why, do=do, log=log)
        self.missing_module = missing_module
        """The Python module that its interpreter lacks."""
        self.missing_part = missing_part
        """Whether a part of the simulator is not installed; `do` says which and how."""
        self.option = option
        """The option that the simulator does not know."""

    def with_why(self, why: str) -> StartError:
        """Return the same error with another reason."""
        return StartError(
            self.what,
            why=why,
            do=self.do,
            log=self.log,
            missing_module=self.missing_module,
            missing_part=self.missing_part,
            option=self.option,
        )


class WorkerError(ManyarmsError, RuntimeError):
    """Something that went wrong inside workers; `rows` are the rows concerned."""

    def __init__(self, what: str, *, rows: Sequence[int] = (), why: str = "", do: str = "", log: str = "") -> None:
        super().__init__(what, why=why, do=do, log=log)
        self.rows = tuple(rows)


class SimulatorError(WorkerError):
    """A simulator raised an exception."""


class WorkerDied(WorkerError):
    """A worker process ended."""


class WorkerTimeout(WorkerError, TimeoutError):
    """Workers did not answer in time."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest known names, or with all of them when they are few."""
    known = list(known)
    by_lower = {item.lower(): item for item in known}
    near = [by_lower[item] for item in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    if len(known) <= 12:
        return f"known: {', '.join(sorted(known))}" if known else ""
    return f"{len(known)} are known, among them {', '.join(sorted(known)[:8])}"


def several(errors: Sequence[WorkerError]) -> WorkerError:
    """Join errors of several workers into one that reports each."""
    if len(errors) == 1:
        return errors[0]
    errors = sorted(errors, key=lambda error: error.rows)
    rows = sorted({row for error in errors for row in error.rows})
    details = "\n".join(str(error) for error in errors)
    return type(errors[0])(f"{len(errors)} workers failed (rows {', '.join(map(str, rows))})", rows=rows, why=details)
