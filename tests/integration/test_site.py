"""The documentation as a site: what it is made of is up to date, leads somewhere and asks no other host."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from browser import chromium, opened, wait_until
from conftest import REPOSITORY

#: Pages that are read where they lie, outside of the site, which checks its own links.
LOOSE = ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "examples/README.md", "benchmarks/README.md")

#: Where links out of the repository may lead. None of them is asked for.
HOSTS = {"arxiv.org", "docs.ray.io", "github.com", "huggingface.co"}

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"|<a [^>]*href=\"([^\"]+)\"")

#: Attributes that make a browser load something.
_LOADS = {
    "img": "src",
    "script": "src",
    "iframe": "src",
    "video": "src",
    "source": "src",
    "audio": "src",
    "link": "href",
}


def prose(page: Path) -> str:
    """Return a page without its code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)


def links(page: Path) -> list[str]:
    return ["".join(found) for found in _LINK.findall(prose(page))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [name for name in LOOSE if (REPOSITORY / name).exists()])
def test_every_link_of_a_loose_page_leads_somewhere(name: str) -> None:
    page = REPOSITORY / name
    for link in links(page):
        if urlsplit(link).scheme:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {link}"
        assert target.is_relative_to(REPOSITORY)
        assert not anchor or anchor in anchors(target), f"{name} links to {link}"


def test_links_to_other_hosts_are_https_and_expected() -> None:
    pages = [*(REPOSITORY / name for name in LOOSE), *(REPOSITORY / "docs").rglob("*.md")]
    for page in filter(Path.exists, pages):
        for link in filter(lambda link: urlsplit(link).scheme, links(page)):
            parts = urlsplit(link)
            assert parts.scheme == "https", f"{page.name} links to {link}"
            assert parts.hostname in HOSTS, f"{page.name} links to {link}: list the host if it is meant"


def test_the_reference_is_what_the_code_says() -> None:
    command = [sys.executable, str(REPOSITORY / "scripts/reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class _Loads(HTMLParser):
    """Collects what a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in ("canonical", "prev", "next"):
            return
        self.addresses += [value for key, value in attrs if key in (_LOADS.get(tag), "srcset", "poster") and value]
        self.addresses += re.findall(r"url\(([^)]+)\)", given.get("style") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # Not with --quiet: MkDocs counts only the warnings that it prints.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        parser = _Loads()
        parser.feed(page.read_text())
        assert parser.addresses, f"{page.name} has no style"
        foreign = [address for address in parser.addresses if urlsplit(address.strip("'\"")).netloc]
        assert not foreign, f"{page.relative_to(site)} asks for {foreign}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text()), style.name


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_pages_fit_a_phone_and_a_desktop(site: Path, address: str) -> None:
    with chromium() as browser, opened(browser, address) as page:
        for path in sorted(site.rglob("*.html")):
            page.goto(f"{address}/{path.relative_to(site)}")
            for width in (390, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                wait_until(page, "document.documentElement.scrollWidth <= window.innerWidth")  # parts of it slide


@pytest.mark.slow
def test_what_is_searched_for_is_found(address: str) -> None:
    """By its address, which searches as soon as the index is read; what is typed before that is not looked up."""
    with chromium() as browser, opened(browser, f"{address}/index.html?q=placement", home=address) as page:
        first = page.locator(".md-search-result__item a").first
        first.wait_for(state="attached", timeout=300_000)
        assert "/placement.html" in (first.get_attribute("href") or "")
