"""``manyarms watch``: a page on a run, while it goes on and afterwards."""

from __future__ import annotations

import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from manyarms.cli.help import Guide
from manyarms.cli.options import Names, names_of, parse
from manyarms.errors import ConfigError
from manyarms.reporting.console import Background, Telling
from manyarms.reporting.site import Watcher


@dataclass(frozen=True)
class WatchConfig:
    """Show a run in the browser: its curves, every environment, failures and videos, live and afterwards."""

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """The folder of a run of `manyarms train` or `manyarms eval`, or a folder of several."""
    host: str = "127.0.0.1"
    """The address to listen on. Whoever reaches another than this machine's own can look."""
    port: int | None = None
    """0 picks a free one; default: 6007, or a free one if that is taken."""
    open: bool = False
    """Open the page in a browser of this machine."""
    allowed_hosts: Names = ()
    """Further names that browsers may call this page by, separated by commas; * is any name."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms watch runs/reach            # one run",
            "manyarms watch runs                  # all runs there, newest first",
            "ssh -L 6007:localhost:6007 SERVER    # then watch there, and look at http://localhost:6007 here",
        ),
    )

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port < 65536:
            raise ConfigError(f"port is {self.port}; it must be from 0 to 65535")


class Watching(Background[Watcher]):
    """A page that a thread of this process serves, until it is closed."""

    def __init__(self, config: WatchConfig) -> None:
        """Begin at once."""
        super().__init__(_watcher(config))
        self._folder = config.run
        if config.open:
            webbrowser.open(self.url)

    def told(self) -> Telling:
        if self.closed:
            return Telling(f"{self._folder} is no longer watched")
        return Telling(f"watching {self._folder} at {self.url}")

    def _repr_html_(self) -> str:
        """Return the telling with the address as a link."""
        link = f'<a href="{escape(self.url)}" target="_blank">{escape(self.url)}</a>'
        return super()._repr_html_().replace(escape(self.url), link)


def _watcher(config: WatchConfig) -> Watcher:
    return Watcher(config.run, config.host, config.port, names_of(config.allowed_hosts))


def run(config: WatchConfig, ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve the page until SIGINT or SIGTERM; `ready` is told its address."""
    watcher = _watcher(config)
    if watcher.exposed:
        print(f"warning: whoever can reach {config.host} can look at {config.run}", file=sys.stderr)
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ready(watcher.url)
        if config.open:
            webbrowser.open(watcher.url)
        watcher.serve_forever()
    except KeyboardInterrupt:
        pass  # the usual end
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str]) -> int:
    """Parse, say where the page is, serve it."""
    config = parse(WatchConfig, "watch", arguments)
    run(config, lambda url: print(f"watching {config.run} at {url} (Ctrl-C ends this, not the run)", flush=True))
    print("no longer watching")
    return 0
