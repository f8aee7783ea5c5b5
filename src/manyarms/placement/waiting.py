"""Waiting for answers from other processes, while hearing what others have to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from manyarms.learning.interrupts import Interrupts, Stopped
from manyarms.placement.faults import unwrapped

#: A signal's handler runs in between.
_SECONDS = 0.2


class Waiting:
    """Waits for references; `heard` takes those of others that are ready meanwhile."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self.others: Callable[[], Sequence[Any]] = list
        """Returns what else may be ready."""
        self.heard: Callable[[Any], None] = lambda ref: None

    def until(self, done: Callable[[], bool], wanted: Sequence[Any] = (), *, may_stop: bool = False) -> None:
        """Listen until something is so; with `may_stop`, a signal ends it."""
        import ray

        while not done():
            if may_stop and self._interrupts.stop is not None:
                raise Stopped
            others = list(self.others())
            pending = [*others, *wanted]
            if not pending:
                raise RuntimeError("nothing is under way that could be waited for")
            ready, _ = ray.wait(pending, num_returns=1, timeout=_SECONDS, fetch_local=False)
            for ref in ready:
                if ref in others:
                    self.heard(ref)

    def until_one(self, refs: Sequence[Any]) -> None:
        """Listen until one of these is there, or has failed."""
        import ray

        self.until(lambda: bool(ray.wait(list(refs), timeout=0, fetch_local=False)[0]), refs)

    def ready(self, refs: Sequence[Any], *, may_stop: bool = False) -> None:
        """Listen until all of these are there, or have failed."""
        import ray

        missing = list(refs)

        def done() -> bool:
            nonlocal missing
            if missing:
                _, missing = ray.wait(missing, num_returns=len(missing), timeout=0, fetch_local=False)
            return not missing

        self.until(done, refs, may_stop=may_stop)

    def all(self, refs: Sequence[Any], name: str) -> list[Any]:
        """Return answers; an error of ours comes out as it went in."""
        import ray
        from ray.exceptions import RayTaskError

        self.ready(refs, may_stop=True)
        try:
            return ray.get(list(refs))
        except RayTaskError as error:
            raise unwrapped(error, name) from None
