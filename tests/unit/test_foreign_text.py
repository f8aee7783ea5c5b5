"""Words of others on our terminal: what would steer it is written out, in errors, tables, lines and live views."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import manyarms
from manyarms.cli import answer, listing
from manyarms.cli.doctor import DoctorResult, draw
from manyarms.cli.listing import Listing
from manyarms.errors import ManyarmsError, WorkerDied, printable, several
from manyarms.reporting import console, progress
from manyarms.reporting.console import Shown, Table, Telling
from manyarms.reporting.progress import TrainingBoard
from manyarms.simulators.about import fault
from manyarms.simulators.base import StepResult
from standins import Misbehaving

#: Sets the title, clears the screen, goes back over what was said, rings, hides, turns words around, opens links.
STEERING = {
    "\x1b]0;owned\x07": r"\x1b]0;owned\x07",
    "\x1b[2J\x1b[1;1H": r"\x1b[2J\x1b[1;1H",
    "\x9b2J": r"\x9b2J",
    "failed\rpassed": r"failed\rpassed",
    "bad\b\b\bgood": r"bad\x08\x08\x08good",
    "\x1b]8;;http://evil\x07here\x1b]8;;\x07": r"\x1b]8;;http://evil\x07here\x1b]8;;\x07",
    "\u202egpj.exe": r"\u202egpj.exe",
    "zero\u200bwidth": r"zero\u200bwidth",
    "line\u2028end": r"line\u2028end",
    "torn \udcff": r"torn \udcff",
}

HOSTILE = "[bold]:bell:[link=http://evil] \x1b]0;owned\x07\u202e\x9b2J"
HARMLESS = r"[bold]:bell:[link=http://evil] \x1b]0;owned\x07\u202e\x9b2J"


def is_harmless(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


@pytest.mark.parametrize("given", STEERING)
def test_what_steers_a_terminal_is_written_out(given: str) -> None:
    assert printable(given) == STEERING[given]
    assert printable(printable(given)) == printable(given)


@pytest.mark.parametrize("given", ["two\nlines\tand a tab", "95\u202f% ± 3", "打开抽屉", "fermé ✓ 🤖", "", "C:\\new"])
def test_words_lines_and_tabs_stay_as_they_are(given: str) -> None:
    assert printable(given) == given


def test_an_error_says_foreign_words_without_obeying_them() -> None:
    error = ManyarmsError(HOSTILE, why=f"first\n{HOSTILE}", do=HOSTILE, log=f"runs/{HOSTILE}")
    assert str(error).count(HARMLESS) == 4
    assert is_harmless(str(error))
    assert all(map(is_harmless, (error.what, error.why, error.do, error.log)))
    together = several([WorkerDied(HOSTILE, rows=[1]), WorkerDied(HOSTILE, rows=[0])])
    assert str(together).count(HARMLESS) == 2


class Shouting(Misbehaving):
    """Says what steers a terminal: in an exception, or in its last words."""

    def step(self, action: Any) -> StepResult:
        print(HOSTILE, flush=True)
        if int(action[0]) == self.RAISE:
            raise ValueError(HOSTILE)
        return super().step(action)


@pytest.mark.parametrize("order", [Misbehaving.RAISE, Misbehaving.EXIT])
def test_a_simulator_cannot_steer_the_terminal(order: int, capsys: pytest.CaptureFixture[str]) -> None:
    def call() -> int:
        with manyarms.make_vec(f"{__file__}:Shouting", 1, action_bounds="ignore", max_restarts=0) as envs:
            envs.reset(seed=0)
            envs.step(np.full((1, 1), order, np.float32))
        return 0

    assert answer(call) == 2
    said = capsys.readouterr().err
    assert r"\x1b]0;owned\x07\u202e" in said
    assert is_harmless(said)


class Told(Shown):
    def told(self) -> Telling:
        return Telling(HOSTILE, [Table([[HOSTILE, "1"]], [HOSTILE, "count"], HOSTILE)], [HOSTILE])


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> str:
    """Return what something writes where there is a terminal, without the colours that are ours."""
    written = io.StringIO()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        assert Console().is_terminal
        act()
    return written.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_results_show_foreign_words_as_they_are_spelt(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if terminal:
        said = on_a_terminal(monkeypatch, Told().show)
    else:
        Told().show()
        said = capsys.readouterr().out
        assert is_harmless(said)
    assert said.count(HARMLESS) == 5
    assert "\x1b]" not in said
    assert is_harmless(repr(Told()))


def test_live_views_show_foreign_words_as_they_are_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    def score() -> None:
        with progress.Scoreboard(2) as board:
            board.add(HOSTILE, True)

    def advance() -> None:
        with progress.progress(HOSTILE, 2) as done:
            done(1, HOSTILE)

    def train() -> None:
        with TrainingBoard(3) as board:
            board.say(HOSTILE)

    for act in (score, advance, train):
        said = on_a_terminal(monkeypatch, act)
        assert HARMLESS in said
        assert "\x1b]" not in said
        assert "\x9b" not in said


def test_what_is_wrong_with_a_machine_is_told_without_obeying_it(monkeypatch: pytest.MonkeyPatch) -> None:
    result = DoctorResult((fault(HOSTILE, HOSTILE, HOSTILE),))
    said = on_a_terminal(monkeypatch, lambda: draw(result, console.console_of()))
    assert said.count(HARMLESS) == 4
    assert "\x1b]" not in said


def test_json_for_programs_holds_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listing, "run", lambda config: Listing("tasks", ("task",), [(HOSTILE,)]))
    listing.main(["tasks", "--json"])
    said = capsys.readouterr().out
    assert is_harmless(said)
    assert json.loads(said) == [{"task": HOSTILE}]
