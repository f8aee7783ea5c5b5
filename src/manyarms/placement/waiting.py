"""Waiting for answers from other processes, while hearing what others have to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from manyarms.learning.interrupts import Interrupts, Stopped
from manyarms.placement.faults import unwrapped

#: A signal's handler runs in between.
_SECONDS = 0.2


class Waiting:
    """Waits for references; `heard` takes those of others that are ready meanwhile."""

    def __init__(self, interrupts: Interrupts, check: Callable[[], None] = lambda: None) -> None:
        """`check` raises where nothing can come any more."""
        self._interrupts, self._check = interrupts, check
        self._stoppable = False
        self.others: Callable[[], Sequence[Any]] = list
        """Returns what else may be ready."""
        self.heard: Callable[[Any], None] = lambda ref: None

    @contextmanager
    def stoppable(self, *, when: bool = True) -> Iterator[None]:
        """Inside, whatever is waited for, a signal ends it; elsewhere what was begun is seen through first."""
        before, self._stoppable = self._stoppable, when
        try:
            yield
        finally:
            self._stoppable = before

    def until(self, done: Callable[[], bool], wanted: Callable[[], Sequence[Any]] = list) -> None:
        """Listen until something is so; `wanted` returns what is still missing for it.

        What is there already must not be among it: one would be told of that again and again, without a pause.
        """
        import ray

        while not done():
            if self._stoppable and self._interrupts.stop is not None:
                raise Stopped
            self._check()
            others = list(self.others())
            pending = [*others, *wanted()]
            if not pending:
                raise RuntimeError("nothing is under way that could be waited for")
            ready, _ = ray.wait(pending, num_returns=1, timeout=_SECONDS, fetch_local=False)
            for ref in ready:
                if ref in others:
                    self.heard(ref)

    def until_one(self, refs: Sequence[Any]) -> None:
        """Listen until one of these is there, or has failed."""
        import ray

        self.until(lambda: bool(ray.wait(list(refs), timeout=0, fetch_local=False)[0]), lambda: refs)

    def ready(self, refs: Sequence[Any]) -> None:
        """Listen until all of these are there, or have failed."""
        import ray

        missing = list(refs)

        def done() -> bool:
            nonlocal missing
            if missing:
                _, missing = ray.wait(missing, num_returns=len(missing), timeout=0, fetch_local=False)
            return not missing

        self.until(done, lambda: missing)

    def all(self, refs: Sequence[Any], name: str) -> list[Any]:
        """Return answers; an error of ours comes out as it went in."""
        import ray
        from ray.exceptions import RayTaskError

        self.ready(refs)
        try:
            return ray.get(list(refs))
        except RayTaskError as error:
            raise unwrapped(error, name) from None
