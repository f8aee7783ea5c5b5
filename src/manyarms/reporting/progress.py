"""What is shown while it goes on: drawn in a terminal or a notebook, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from manyarms.errors import printable
from manyarms.reporting.console import Table, console_of, html_table, say
from manyarms.reporting.results import wilson

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

#: Without a terminal, how often a line of progress is worth printing.
_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Give a function that takes how many more are done, and a word on how it goes."""
    console = console_of(stderr=True)
    if console.is_jupyter:
        yield from _written_over(label, total)
    elif console.is_terminal:
        yield from _bar(console, label, total)
    else:
        yield _lines(label, total)


def _bar(console: Console, label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words = [TextColumn(each, markup=False) for each in ("{task.description}", "{task.fields[note]}")]
    columns = (words[0], BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), words[1])
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(printable(label), total=total, note="")
        done = 0
        drawn = 0.0

        def advance(count: int, note: str) -> None:
            nonlocal done, drawn
            done += count
            # A fast simulator makes ten thousand calls a second; drawing each would be what is measured.
            if time.monotonic() - drawn > 0.1 or done >= total:
                drawn = time.monotonic()
                bar.update(task, completed=done, note=printable(note))

        yield advance


def _written_over(label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    cell, done = Cell(), 0

    def advance(count: int, note: str) -> None:
        nonlocal done
        done += count
        if cell.due:
            cell.draw(progress_bar(label, done, total, note))

    try:
        yield advance
    finally:
        cell.clear()


def _lines(label: str, total: int) -> Callable[[int, str], None]:
    done = 0
    printed = time.monotonic()

    def advance(count: int, note: str) -> None:
        nonlocal done, printed
        done += count
        if time.monotonic() - printed > _SECONDS_BETWEEN_LINES:
            printed = time.monotonic()
            say(f"{label}: {done} of {total} {note}", stderr=True)

    return advance


class Scoreboard:
    """Successes by task while they come in: a live table in a terminal, a bar in a notebook, else a line at times."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._scores: dict[str, list[int]] = {}
        self._console = console_of(stderr=True)
        self._live: Any = None
        self._cell: Cell | None = None
        self._printed = time.monotonic()

    def __enter__(self) -> Scoreboard:
        if self._console.is_jupyter:
            self._cell = Cell()
        elif self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, refresh_per_second=4, get_renderable=self._draw)
            self._live.start()
        return self

    def add(self, task: str, success: bool) -> None:
        """Count an episode."""
        score = self._scores.setdefault(task, [0, 0])
        score[0] += success
        score[1] += 1
        won, played = (sum(score[i] for score in self._scores.values()) for i in (0, 1))
        if self._cell is not None:
            if self._cell.due:
                self._cell.draw(progress_bar("episodes", played, self._total, f"{100 * won / played:.0f} % solved"))
        elif self._live is None and time.monotonic() - self._printed > _SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            print(f"{played} of {self._total} episodes, {100 * won / played:.0f} % solved", flush=True)

    def _draw(self) -> Any:
        from rich.table import Table as Drawn

        drawn = Drawn(title=f"{sum(s[1] for s in self._scores.values())} of {self._total} episodes")
        for column in ("task", "solved", "success"):
            drawn.add_column(column)
        for task, (won, played) in self._scores.items():
            drawn.add_row(printable(task), f"{won} / {played}", f"{100 * won / played:.0f} %")
        return drawn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._cell is not None:
            self._cell.clear()


# -- training ---------------------------------------------------------------------------------------------------------


_STAGES = ("env", "rollout", "actor", "eval", "save")


class TrainingBoard:
    """A table that stays in its place on a terminal and in a notebook; elsewhere one line an update."""

    def __init__(self, updates: int, *, first: int = 0, silent: bool = False, limit: float | None = None) -> None:
        """Show `updates` updates in all, of which `first` are done already; after `limit` seconds it ends anyway."""
        self._updates, self._first, self._silent, self._limit = updates, first, silent, limit
        self._began = self._learning_since = time.monotonic()
        self._spent = dict.fromkeys(_STAGES, 0.0)
        self._evaluation = ""
        self._metrics: Mapping[str, float] = {}
        self._step = first
        self._live: Live | None = None
        self._cell: Cell | None = None

    def __enter__(self) -> TrainingBoard:
        console = console_of(stderr=True)
        if self._silent:
            return self
        if console.is_jupyter:
            self._cell = Cell()
            self._refresh()
        elif console.is_terminal:
            from rich.live import Live

            self._live = Live(self._draw(), console=console, refresh_per_second=4, transient=False)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._draw())
            self._live.__exit__(kind, error, trace)
        if self._cell is not None:
            self._cell.draw(self._html())

    def say(self, line: str) -> None:
        """Tell something above the table."""
        if self._silent:
            return
        if self._live is not None:
            self._live.console.print(printable(line), highlight=False)
        else:  # what goes to stderr looks like a fault in a notebook
            say(line, stderr=self._cell is None)

    def recorded(self, folder: Path) -> None:
        """Say how to look on from elsewhere; in a notebook the run is in its cell."""
        if self._cell is None:
            self.say(f"look on: manyarms watch {folder}")

    def learning(self) -> None:
        """Hear that the first update begins: what is left is judged from here on."""
        self._learning_since = time.monotonic()

    def evaluated(self, step: int, successes: int, episodes: int) -> None:
        """Show an evaluation."""
        self._evaluation = f"{_rate(successes, episodes)} after {step} updates"
        if not self._stays:
            self.say(f"evaluation after {step} updates: {_rate(successes, episodes)} success")
        self._refresh()

    def updated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show an update."""
        self._step, self._metrics = step, metrics
        for stage in _STAGES:
            self._spent[stage] += metrics.get(f"time/{stage}", 0.0)
        if not self._stays:
            self.say(self._line())
        self._refresh()

    @property
    def _stays(self) -> bool:
        """Whether there is a table that shows what is new."""
        return self._live is not None or self._cell is not None

    def _line(self) -> str:
        metrics = self._metrics
        return (
            f"update {self._step}/{self._updates}: success {self._success()}, return {metrics['env/return']:.2f}, "
            f"{metrics['throughput/env_steps_per_s']:,.0f} env-steps/s, {self._left()} left"
        )

    def _success(self) -> str:
        episodes = round(self._metrics.get("env/num_trajectories", 0.0))
        return _rate(round(self._metrics.get("env/success_once", 0.0) * episodes), episodes)

    def _left(self) -> str:
        """Estimate what is left from the mean time of an update so far."""
        done = self._step - self._first
        if not done:
            return "?"
        passed = time.monotonic() - self._learning_since
        left = passed / done * (self._updates - self._step)
        return _clock(left if self._limit is None else max(0.0, min(left, self._limit - passed)))

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._draw())
        if self._cell is not None and self._cell.due:
            self._cell.draw(self._html())

    def _draw(self) -> Any:
        from rich.table import Table as Drawn

        table = Drawn.grid(padding=(0, 2))
        for row in self._rows():
            table.add_row(*row)
        return table

    def _html(self) -> str:
        return html_table(Table(list(self._rows())))

    def _rows(self) -> Iterator[tuple[str, str]]:
        metrics = self._metrics
        passed = _clock(time.monotonic() - self._began)
        yield "update", f"{self._step} of {self._updates}, {passed} so far, {self._left()} left"
        if metrics:
            yield "success", f"{self._success()} of this update's episodes"
        if self._evaluation:
            yield "evaluation", self._evaluation
        if metrics:
            yield "return", f"{metrics['env/return']:.2f}, {metrics['env/episode_len']:.0f} steps an episode"
            yield "time", self._split()
            steps = metrics["throughput/env_steps_total"]
            yield "speed", f"{metrics['throughput/env_steps_per_s']:,.0f} env-steps/s, {steps:,.0f} so far"
            if "actor/approx_kl" in metrics:
                yield "policy", f"KL {metrics['actor/approx_kl']:.4f}, clipped {metrics['actor/pg_clipfrac']:.2f}"
            else:
                yield "policy", f"loss {metrics['actor/loss']:.4f}"

    def _split(self) -> str:
        total = sum(self._spent.values()) or 1.0
        return ", ".join(f"{stage} {100 * spent / total:.0f} %" for stage, spent in self._spent.items() if spent)


def _rate(successes: int, episodes: int) -> str:
    low, high = wilson(successes, episodes)
    rate = successes / episodes if episodes else 0.0
    return f"{100 * rate:.0f} % ± {50 * (high - low):.0f}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes}:{seconds:02d} min"


# -- in a notebook ----------------------------------------------------------------------------------------------------


#: Browsers redraw what they are sent; more often than this nobody can follow.
_SECONDS_BETWEEN = 0.25


class Cell:
    """What is drawn here replaces what was there."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = -_SECONDS_BETWEEN

    @property
    def due(self) -> bool:
        """Whether it is time to draw again."""
        return time.monotonic() - self._drawn >= _SECONDS_BETWEEN

    def draw(self, html: str) -> None:
        """Put this in the place, now."""
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))
        self._drawn = time.monotonic()

    def clear(self) -> None:
        """Leave nothing behind."""
        if self._handle is not None:
            self.draw("")


def progress_bar(label: str, done: int, total: int, note: str) -> str:
    """Return a line with a bar."""
    words = " · ".join(escape(word) for word in (label, f"{done} of {total}", note) if word)
    drawn = f'<progress value="{done}" max="{max(total, 1)}" style="vertical-align:middle"></progress>'
    return f"<div>{drawn} {words}</div>"
