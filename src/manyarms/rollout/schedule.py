"""Which episode a free row plays next, and the order in which finished ones count."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from manyarms.errors import ConfigError, RolloutError
from manyarms.vector import EpisodeId

Result = TypeVar("Result")


@dataclass
class Turn:
    """One place in the schedule."""

    position: int
    episode: EpisodeId
    attempts: int = 0


class Schedule(Generic[Result]):
    """Hands out episodes in order and gives their results back in the same order, whichever ends first.

    So what is kept never depends on speed: short episodes are not preferred, and a run that stops when it has enough
    keeps the same episodes with one environment or with a hundred.
    """

    def __init__(
        self,
        episodes: Iterable[EpisodeId],
        *,
        enough: Callable[[Result], bool] | None = None,
        max_ahead: int | None = None,
        max_attempts: int = 3,
    ) -> None:
        """Play `episodes`, which may be endless.

        `enough` hears of every result, in order, and returns True when no more are wanted. `max_ahead` bounds how many
        finished episodes may wait for an earlier one. An aborted episode is played again, `max_attempts` times in all.
        """
        if max_attempts < 1:
            raise ConfigError(f"max_attempts is {max_attempts}; an episode has to be tried at least once")
        self._source = iter(episodes)
        self._enough = enough
        self._max_ahead = max_ahead
        self._max_attempts = max_attempts
        self._drawn: list[Turn] = []
        """Drawn from the source or come back aborted, waiting for a row."""
        self._count = 0
        self._playing: dict[int, Turn] = {}
        self._finished: dict[int, Result] = {}
        self._accepted = 0
        self._satisfied = False
        self._exhausted = False

    @property
    def done(self) -> bool:
        """Whether every result that is wanted has been accepted."""
        return self._satisfied or (
            self._exhausted and not self._drawn and not self._playing and self._accepted == self._count
        )

    def next(self, tasks: Sequence[str] | None = None) -> Turn | None:
        """Return what a free row is to play: the first episode whose task is among its own, None when there is none.

        A row without tasks of its own plays anything.
        """
        if self._satisfied:
            return None
        for i, turn in enumerate(self._drawn):
            if _plays(tasks, turn.episode):
                return self._start(self._drawn.pop(i))
        while self._may_draw():
            drawn = self._draw()
            if drawn is None:
                return None
            if _plays(tasks, drawn.episode):
                return self._start(drawn)
            self._drawn.append(drawn)
        return None

    def _may_draw(self) -> bool:
        return not self._exhausted and (self._max_ahead is None or self._count - self._accepted < self._max_ahead)

    def _draw(self) -> Turn | None:
        episode = next(self._source, None)
        if episode is None:
            self._exhausted = True
            return None
        self._count += 1
        return Turn(self._count - 1, episode)

    def _start(self, turn: Turn) -> Turn:
        turn.attempts += 1
        self._playing[turn.position] = turn
        return turn

    def retry(self, turn: Turn, reason: str) -> None:
        """Put an aborted episode back, before all others; too many attempts are an error."""
        del self._playing[turn.position]
        if turn.attempts >= self._max_attempts:
            raise RolloutError(
                f"episode {turn.position} ({describe(turn.episode)}) was aborted {turn.attempts} times",
                why=reason,
                do="replay it alone to see what breaks; raise max_attempts if the machine is to blame",
            )
        self._drawn.insert(0, turn)

    def finish(self, turn: Turn, result: Result) -> Iterator[Result]:
        """Take a result in; yield those that are accepted now, in order."""
        del self._playing[turn.position]
        self._finished[turn.position] = result
        while not self._satisfied and self._accepted in self._finished:
            accepted = self._finished.pop(self._accepted)
            self._accepted += 1
            self._satisfied = self._enough is not None and self._enough(accepted)
            yield accepted

    def stranded(self) -> list[EpisodeId]:
        """Return drawn episodes that wait for a row."""
        return [turn.episode for turn in self._drawn]


def _plays(tasks: Sequence[str] | None, episode: EpisodeId) -> bool:
    return not tasks or episode.task is None or episode.task in tasks


def describe(episode: EpisodeId) -> str:
    """Name an episode in a message."""
    parts = [episode.task or "its only task", f"seed {episode.seed}"]
    if isinstance(episode.init_state, int):
        parts.append(f"initial state {episode.init_state}")
    if episode.index:
        parts.append(f"repetition {episode.index}")
    return ", ".join(parts)


def starts(
    tasks: Sequence[str | None], seed: int, *, first: int = 0, init_states: int | None = None
) -> Iterator[EpisodeId]:
    """Yield how episodes begin, endlessly, from a place on: tasks in turn, a new seed each.

    With `init_states`, a task's episodes begin from as many fixed states in turn, each time round with a new seed.
    """
    for position in itertools.count(first):
        turn, place = divmod(position, len(tasks))
        if init_states is None:
            yield EpisodeId(tasks[place], seed + turn)
        else:
            yield EpisodeId(tasks[place], seed + turn // init_states, turn % init_states)


def repetitions(episode: EpisodeId, count: int) -> list[EpisodeId]:
    """Return an episode's start `count` times, told apart by their index: a group for GRPO or RLOO."""
    return [replace(episode, index=i) for i in range(count)]
