"""The page of `manyarms watch` in a browser: what a run does is seen, while it does it and afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

import watched
from browser import PATIENCE_MS, chromium, opened, scrolls_sideways, wait_until
from conftest import REPOSITORY
from manyarms.cli import run as command
from manyarms.reporting.site import Watcher
from manyarms.reporting.video import VideoWriter
from training import CONFIG, ended, in_folder, started, wait_for, written

pytestmark = pytest.mark.slow

expect.set_options(timeout=PATIENCE_MS)

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = watched.training(tmp_path / "runs" / "drawers", updates=20)
    watched.write_live(folder, watched.rows(16))
    return folder


@pytest.fixture
def url(run: Path) -> Iterator[str]:
    with Watcher(run, port=0) as watcher:
        yield watcher.url


def chart(page: Page, metric: str) -> str:
    """Return the line of a small chart as it is drawn."""
    return page.locator(f'[data-metric="{metric}"] path.line').last.get_attribute("d") or ""


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_page_tells_the_run(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("drawers")
        expect(page.locator("#phase")).to_have_text("running")
        expect(page.locator("#about")).to_contain_text("tabletop · 4 tasks · policy mlp")
        expect(page.locator("#facts")).to_contain_text("20 of 120")
        expect(page.locator("#facts")).to_contain_text("15 min")
        expect(page.locator("#success path.whisker")).to_have_count(1)
        names = ["return", "episode length", "loss", "KL", "clip fraction", "env-steps/s"]
        expect(page.locator("#small h3")).to_have_text(names)
        expect(page.locator("#tasks-rows tr")).to_have_count(4)
        expect(page.locator("#time .legend")).to_contain_text("simulators")
        expect(page.locator(".tile")).to_have_count(16)
        expect(page.locator("#counts")).to_have_text("16stepping")
        expect(page.locator("#failures")).to_be_hidden()


def test_curves_grow_while_the_run_does(browser: Browser, run: Path, url: str) -> None:
    with opened(browser, url) as page:
        expect(page.locator('[data-metric="env/return"] path.line')).to_have_count(1)
        before = chart(page, "env/return").count("L")
        watched.append_line(run / "metrics.jsonl", watched.line(21))
        expect(page.locator("#facts")).to_contain_text("21 of 120")
        assert chart(page, "env/return").count("L") == before + 1
        assert "at update 21" in (page.locator('[data-metric="env/return"] .chart').get_attribute("aria-label") or "")


def test_values_are_shown_under_the_pointer(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        plot = page.locator("#success .plot")
        plot.hover()
        expect(page.locator(".tip")).to_contain_text("update 10")
        expect(page.locator(".tip")).to_contain_text(re.compile(r"evaluation\d+\.\d\u202f% \(\d+–\d+\)"))
        page.mouse.move(2, 2)
        expect(page.locator(".tip")).to_be_hidden()


def test_values_stay_under_the_pointer_while_curves_grow(browser: Browser, run: Path, url: str) -> None:
    with opened(browser, url) as page:
        page.locator("#success .plot").hover()
        expect(page.locator(".tip")).to_contain_text("update 10")
        watched.append_line(run / "metrics.jsonl", watched.line(40))
        expect(page.locator(".tip")).to_contain_text("update 20")
        expect(page.locator("#success .rule")).to_be_visible()


def test_tiles_follow_the_environments(browser: Browser, run: Path, url: str) -> None:
    with opened(browser, url) as page:
        tile = page.locator('.tile[data-row="5"]')
        expect(tile).to_have_attribute("data-state", "stepping")
        expect(tile).to_contain_text("stack_blocks")
        expect(tile.locator(".restarts")).to_be_hidden()
        kept = tile.element_handle()
        failure = "WorkerDied: worker 1 was killed by SIGKILL"
        rows = watched.rows(16)
        for row in rows[4:8]:
            row |= {"state": "restarting", "restarts": 1, "failure": failure}
        watched.write_live(run, rows)
        expect(tile).to_have_attribute("data-state", "restarting")
        expect(tile.locator(".restarts")).to_have_text("↻ 1")
        expect(tile).to_have_attribute("title", re.compile(f"seed 5.*{failure}", re.DOTALL))
        expect(page.locator("#counts")).to_have_text("12stepping4restarting")
        expect(page.locator("#facts")).to_contain_text("1 worker restarted")
        expect(page.locator("#failures-list li")).to_have_count(1)
        expect(page.locator("#failures-list")).to_contain_text("rows 4, 5, 6, 7")
        watched.write_live(run, watched.rows(16, state="idle", restarts=1))
        expect(page.locator('.tile[data-state="idle"]')).to_have_count(16)
        assert kept.evaluate("node => node.isConnected"), "a tile that stays must not be made anew"


@pytest.mark.parametrize("wide", [1280, 1920, 360])
def test_no_caption_is_cut_off(browser: Browser, run: Path, url: str, wide: int) -> None:
    watched.write_live(run, watched.rows(16, episode_steps=1000, state="restarting", restarts=2))
    with opened(browser, url, viewport={"width": wide, "height": 900}) as page:
        expect(page.locator(".tile canvas:visible")).to_have_count(16)
        expect(page.locator(".tile .steps").last).to_have_text("15 · step 1000")
        assert page.evaluate(CUT_OFF) == []


#: The captions of which a part is not seen.
CUT_OFF = """() => [...document.querySelectorAll('.tile :is(.task, .state span, .steps)')].filter(
  (node) => node.scrollWidth > node.clientWidth && node.getClientRects().length).map((node) => node.textContent)"""


def test_every_tile_shows_its_own_frame(browser: Browser, run: Path, url: str) -> None:
    with opened(browser, url) as page:
        expect(page.locator(".tile canvas:visible")).to_have_count(16)
        assert np.allclose([red for red, _, _ in page.evaluate(PIXELS)], 10 * np.arange(16), atol=4)
        watched.write_live(run, watched.rows(16), blue=240)
        wait_until(page, f"() => ({PIXELS})().every(([red, green, blue]) => blue > 200)")


#: The colour in the middle of every frame, read from a copy.
PIXELS = """() => [...document.querySelectorAll('.tile canvas')].map((frame) => {
  const copy = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  copy.drawImage(frame, 0, 0);
  return [...copy.getImageData(48, 48, 1, 1).data].slice(0, 3);
})"""


def test_a_run_that_ends_is_shown_as_it_ended(browser: Browser, run: Path, url: str) -> None:
    with opened(browser, url) as page:
        expect(page.locator("#phase")).to_have_text("running")
        watched.write_live(run, watched.rows(16, state="ended"), closed=True)
        watched.finish(run)
        expect(page.locator("#phase")).to_have_text("finished: all updates were made")
        expect(page.locator("footer")).to_contain_text("is over")
        expect(page.locator('.tile[data-state="ended"]')).to_have_count(16)
        watched.finish(run, "failed: WorkerDied", "failed")
        expect(page.locator("#phase")).to_have_text("failed: WorkerDied")


def test_a_run_that_died_is_said_to_be_silent(browser: Browser, run: Path, url: str) -> None:
    for path in (*run.iterdir(), *(run / "live").iterdir()):
        os.utime(path, (1e9, 1e9))
    with opened(browser, url) as page:
        expect(page.locator("#phase")).to_contain_text(re.compile(r"^silent for \d+\u202fd .*: probably dead$"))


def test_videos_play_in_place(browser: Browser, run: Path, url: str) -> None:
    film = VideoWriter(run / "video" / "eval" / "global_step_20" / "odd name & ü.mp4", 10)
    for shade in range(20):
        film.add(np.full((64, 64, 3), 10 * shade, np.uint8))
    film.close()
    with opened(browser, url) as page:
        wait_until(page, "() => document.querySelector('video')?.readyState >= 1")
        assert page.locator("video").evaluate("film => film.duration") == pytest.approx(2.0, abs=0.3)
        expect(page.locator("figcaption")).to_have_text("eval / global_step_20 / odd name & ü")


def test_an_evaluation_shows_successes_by_task(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"simulator": "tabletop", "tasks": "a,b", "episodes": 5}))
    lines = [{"position": i, "task": "ab"[i % 2], "success": i % 2 == 0, "length": 10} for i in range(8)]
    watched.write_lines(folder / "episodes-0.jsonl", lines[:6])
    with Watcher(folder, port=0) as watcher, opened(browser, watcher.url) as page:
        rows = page.locator("#tasks-rows tr")
        expect(rows).to_have_text(
            [re.compile(r"a100\u202f%44–100\u202f%3 / 3"), re.compile(r"b0\u202f%0–56\u202f%0 / 3")]
        )
        expect(page.locator("#facts")).to_contain_text("6 of 10")
        watched.write_lines(folder / "episodes-1.jsonl", lines[6:])
        expect(rows.first).to_contain_text("4 / 4")


def test_hostile_words_stay_words(browser: Browser, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    folder = watched.training(tmp_path / "run <b>&amp;")
    (folder / "run.json").write_text(json.dumps({"simulator": hostile, "policy": hostile, "tasks": [hostile]}))
    watched.write_live(folder, watched.rows(2, task=hostile, failure=hostile))
    watched.append_line(folder / "metrics.jsonl", {**watched.line(6), f"time/{hostile}": 3.0})
    watched.append_line(folder / "evaluations.jsonl", {"step": 6, "tasks": {hostile: watched.score(3)}})
    with Watcher(tmp_path, port=0) as watcher, opened(browser, watcher.url) as page:
        page.get_by_role("link", name="run <b>&amp;").click()
        expect(page.locator("h1")).to_have_text("run <b>&amp;")
        expect(page.locator(".tile .task").first).to_have_text(hostile)
        expect(page.locator("#failures-list")).to_contain_text(hostile)
        expect(page.locator("#tasks-rows")).to_contain_text(hostile)
        expect(page.locator("#time .legend")).to_contain_text(hostile)
        assert page.locator("img, main script, h1 b").count() == 0


# -- a folder of runs -------------------------------------------------------------------------------------------------


def test_a_folder_of_runs_lists_them_newest_first(browser: Browser, run: Path) -> None:
    for path in run.rglob("*"):
        os.utime(path, (1.7e9, 1.7e9))
    newer = watched.training(run.parent / "group" / "stacks", updates=7)
    watched.finish(newer)
    with Watcher(run.parent, port=0) as watcher, opened(browser, watcher.url) as page:
        expect(page.locator(".title")).to_have_text(["group/stacks", "drawers"])
        expect(page.locator("#runs li").first).to_contain_text("finished")
        expect(page.locator("#runs li").last).to_contain_text("silent for")
        scores = [
            r"\d+\u202f% success after 5 updates · 7 of 120 updates",
            r"\d+\u202f% success after 20 of 120 updates",
        ]
        expect(page.locator(".score")).to_have_text([re.compile(score) for score in scores])
        page.get_by_role("link", name="group/stacks").click()
        expect(page.locator("h1")).to_have_text("stacks")
        expect(page.locator("#facts")).to_contain_text("7 of 120")
        page.get_by_role("link", name="all runs").click()
        expect(page.locator(".title")).to_have_count(2)


# -- who looks at it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 16, 64, 200])
def test_a_phone_shows_all_without_scrolling_sideways(browser: Browser, run: Path, url: str, count: int) -> None:
    watched.write_live(run, watched.rows(count, task="put_the_very_long_name_of_a_task_into_the_drawer"))
    with opened(browser, url, **PHONE) as page:
        expect(page.locator(".tile")).to_have_count(count)
        expect(page.locator("#small section")).to_have_count(6)
        assert not scrolls_sideways(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_in_both_schemes(browser: Browser, run: Path, url: str, scheme: str) -> None:
    watched.write_live(run, watched.rows(4, failure="it broke"))
    with opened(browser, url, color_scheme=scheme) as page:
        expect(page.locator(".tile")).to_have_count(4)
        expect(page.locator("#failures")).to_be_visible()
        poor = page.evaluate(CONTRAST)
        assert poor == []
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 23)"
        assert dark == (scheme == "dark")


def test_nothing_moves_for_who_wants_no_motion(browser: Browser, url: str) -> None:
    with opened(browser, url, reduced_motion="reduce") as page:
        expect(page.locator("#phase")).to_have_text("running")
        assert page.evaluate("document.getAnimations().length") == 0


#: Texts whose contrast with what lies behind them is below 4.5 (WCAG AA).
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (colour) => colour.slice(0, 3).map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const found = parse(getComputedStyle(node).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement;
    if (!node.textContent.trim() || !parent.checkVisibility() || parent.tagName === "NOSCRIPT") continue;
    const [a, b] = [light(parse(getComputedStyle(parent).color)), light(behind(parent))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) poor.push(`${node.textContent.trim()}: ${((a + .05) / (b + .05)).toFixed(2)}`);
  }
  return [...new Set(poor)];
}"""


# -- the command ------------------------------------------------------------------------------------------------------


def test_what_holds_no_run_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["watch", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ConfigError: {tmp_path} holds no run")
    assert "metrics.jsonl" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_with_one_line(run: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "manyarms", "watch", str(run), "--port", "0", "--host", "0.0.0.0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"watching {run} at http://")
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert (out, process.returncode) == ("no longer watching\n", 0)
    assert err == f"warning: whoever can reach 0.0.0.0 can look at {run}\n"


# -- end to end -------------------------------------------------------------------------------------------------------


def test_a_training_run_is_watched_from_begin_to_end(browser: Browser, tmp_path: Path) -> None:
    config = written(tmp_path, CONFIG.replace("cameras: []", "cameras: [front]"))
    process = started([config, *in_folder(tmp_path), "runner.max_steps=12"])
    folder = tmp_path / "walk"
    try:
        wait_for(process, lambda: (folder / "run.json").exists() or any(folder.glob("live/*.json")))
        with Watcher(folder, port=0) as watcher, opened(browser, watcher.url) as page:
            expect(page.locator("#phase")).to_have_text(re.compile("starting|running|finished"))
            expect(page.locator("#processes section").first.locator(".tile")).to_have_count(4)
            said = ended(process)
            assert process.returncode == 0, said
            expect(page.locator("#phase")).to_have_text("finished: all updates were made")
            expect(page.locator("#facts")).to_contain_text("12 of 12")
            expect(page.locator("#success path.dot")).to_have_count(1)
            assert chart(page, "env/return").count("L") == 11
            expect(page.locator("#report")).to_be_visible()
    finally:
        ended(process)
