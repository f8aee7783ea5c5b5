"""What a training run shows while it runs: success with its interval, where the time goes, how long it will take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.live import Live
from rich.table import Table

from manyarms.errors import printable
from manyarms.reporting.console import Cell, console_of, say
from manyarms.reporting.results import wilson
from manyarms.reporting.showing import Table as Rows
from manyarms.reporting.showing import html_table

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
        table = Table.grid(padding=(0, 2))
        for row in self._rows():
            table.add_row(*row)
        return table

    def _html(self) -> str:
        return html_table(Rows(list(self._rows())))

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
            yield "policy", f"KL {metrics['actor/approx_kl']:.4f}, clipped {metrics['actor/pg_clipfrac']:.2f}"

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
