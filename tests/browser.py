"""A real browser for tests of pages: the system's Chromium, and a page that remembers what went wrong in it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

#: Every test waits as long as it takes a loaded machine.
PATIENCE_MS = 60_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium; a machine without it fails, unless MANYARMS_WITHOUT_BROWSER=1 says that this is meant."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        advice = "there is no Chromium: apt-get install chromium"
        if os.environ.get("MANYARMS_WITHOUT_BROWSER") == "1":
            pytest.skip(advice)
        pytest.fail(f"{advice}; or leave these tests out: MANYARMS_WITHOUT_BROWSER=1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Faults:
    """What a page must not do: complain, fail, or ask anyone else for anything."""

    home: str
    found: list[str] = field(default_factory=list)

    def hear(self, page: Page) -> None:
        page.on("console", lambda told: self.found.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.found.append(str(error)))
        page.on("request", lambda request: self._check(request.url))

    def _check(self, url: str) -> None:
        if not url.startswith((self.home, "data:", "blob:")):
            self.found.append(f"it asked for {url}")


@contextmanager
def opened(browser: Browser, url: str, *, home: str = "", **options: Any) -> Iterator[Page]:
    """Open a page; whatever went wrong in it fails the test at the end."""
    faults = Faults(home or url)
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    try:
        page = context.new_page()
        faults.hear(page)
        page.goto(url)
        yield page
        assert not faults.found, faults.found
    finally:
        context.close()


def wait_until(page: Page, function: str, argument: Any = None) -> None:
    """Wait until a function of the page says yes; `wait_for_function` needs eval, which pages may forbid."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(function, argument):
        assert time.monotonic() < deadline, f"it did not come true: {function}"
        page.wait_for_timeout(50)


def scrolls_sideways(page: Page) -> bool:
    """Return whether the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
