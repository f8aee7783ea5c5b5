"""The report of a run in a browser: it needs nobody, complains of nothing, and fits a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

import watched
from browser import chromium, opened, scrolls_sideways, wait_until
from manyarms.reporting.report import write_report
from manyarms.reporting.site import Watcher
from manyarms.reporting.video import VideoWriter

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def report(tmp_path: Path) -> Path:
    folder = watched.training(tmp_path / "drawers", updates=80)
    film = VideoWriter(folder / "video" / "eval" / "global_step_80" / "push_button-seed1-success.mp4", 10)
    for shade in range(20):
        film.add(np.full((64, 64, 3), 10 * shade, np.uint8))
    film.close()
    watched.finish(folder)
    return write_report(folder)


def test_the_report_needs_nobody_and_complains_of_nothing(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri(), offline=True) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("drawers")
        expect(page.get_by_role("img", name="success over updates")).to_be_visible()
        expect(page.get_by_role("img", name="actor/loss")).to_be_visible()
        assert page.locator(".chart").count() >= 8
        wait_until(page, "() => document.querySelector('video').readyState >= 1")


def test_values_of_the_report_are_shown_under_the_pointer(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri()) as page:
        page.locator(".big .plot").hover()
        expect(page.locator(".tip")).to_contain_text("update 40")
        expect(page.locator(".tip")).to_contain_text("training")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_fits_a_phone(browser: Browser, report: Path, scheme: str) -> None:
    options = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "color_scheme": scheme}
    with opened(browser, report.as_uri(), **options) as page:
        expect(page.get_by_role("img", name="success over updates")).to_be_visible()
        assert not scrolls_sideways(page)


def test_the_report_is_whole_where_it_is_watched(browser: Browser, report: Path) -> None:
    with Watcher(report.parent, port=0) as watcher, opened(browser, watcher.url) as page:
        page.get_by_role("link", name="report of the run").click()
        expect(page.get_by_role("img", name="success over updates")).to_be_visible()
        page.locator(".big .plot").hover()
        expect(page.locator(".tip")).to_contain_text("update 40")
