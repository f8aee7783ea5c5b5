"""The page of a run, or of a folder of runs, over HTTP: read only, for this machine unless told otherwise."""

from __future__ import annotations

import errno
import gzip
import json
import re
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from manyarms.errors import ConfigError
from manyarms.reporting import runs
from manyarms.reporting.watched import WatchedRun
from manyarms.serving.config import Hosts, is_loopback

#: The port that is tried first, next to TensorBoard's.
PORT = 6007

_PAGES = Path(__file__).parent / "page"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
    ".mp4": "video/mp4",
}

_OURS = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
)
_OURS += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

#: A report carries script and style in itself; apart from this site, it can do nothing with what is here.
_REPORT = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; media-src 'self' data:; "
_REPORT += "sandbox allow-scripts; frame-ancestors 'none'"


@dataclass(frozen=True)
class Page:
    """What a request is answered with: a file, or a document."""

    path: Path | None = None
    document: Any = None
    policy: str = _OURS


class Site:
    """From the path of a request to what it shows: one run at the top, or a list of them and `runs/<name>/` each."""

    def __init__(self, folder: Path) -> None:
        runs.check(folder)
        self.folder = folder
        self.single = runs.kind_of(folder) is not None
        self._runs: dict[Path, WatchedRun] = {}
        self._lock = threading.Lock()

    def find(self, parts: list[str], query: dict[str, list[str]]) -> Page | str | None:
        """Return what lies at a path, where else to look for it, or None."""
        if len(parts) == 1 and parts[0] in _files_of_pages():
            return Page(_PAGES / parts[0])
        if self.single:
            return self._of_run(self._run(self.folder), parts, query, up="")
        if parts == [""]:
            return Page(_PAGES / "runs.html")
        if parts == ["list"]:
            return Page(document={"folder": str(self.folder), "runs": self._list()})
        return self._below(parts[1:], query) if parts[0] == "runs" else None

    def _below(self, parts: list[str], query: dict[str, list[str]]) -> Page | str | None:
        for depth in range(1, runs.DEPTH + 1):
            inside, rest = parts[:depth], parts[depth:]
            if len(inside) < depth or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in inside):
                return None
            folder = self.folder.joinpath(*inside)
            if not folder.resolve().is_relative_to(self.folder.resolve()):
                return None
            if runs.kind_of(folder) is None:
                continue
            if not rest:
                return "/" + quote("/".join(["runs", *inside])) + "/"
            if len(rest) == 1 and rest[0] in _files_of_pages():
                return Page(_PAGES / rest[0])
            return self._of_run(self._run(folder), rest, query, up="../" * (depth + 1))
        return None

    def _of_run(self, run: WatchedRun, parts: list[str], query: dict[str, list[str]], up: str) -> Page | None:
        if parts == [""]:
            return Page(_PAGES / "run.html")
        if parts == ["state"]:
            looking = query.get("looking", ["1"])[-1] != "0"
            state = run.state(query.get("since", [""])[-1], looking)
            return Page(document={**state, "up": up})
        path = runs.shown_file(run.folder, parts)
        if path is None:
            return None
        return Page(path, policy=_REPORT if path.suffix == ".html" else _OURS)

    def _run(self, folder: Path) -> WatchedRun:
        with self._lock:
            return self._runs.setdefault(folder, WatchedRun(folder))

    def _list(self) -> list[dict[str, Any]]:
        found = []
        for folder in runs.runs_below(self.folder):
            inside = folder.relative_to(self.folder).as_posix()
            found.append({**self._run(folder).summary(), "name": inside, "href": f"runs/{quote(inside)}/"})
        return found


def _files_of_pages() -> set[str]:
    return {path.name for path in _PAGES.iterdir() if path.suffix in (".js", ".css", ".svg")}


class Watcher:
    """Serves a site; `with` runs it in a thread, `serve_forever` until it is interrupted."""

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", port: int | None = None, allowed_hosts: Sequence[str] = ()
    ) -> None:
        """Listen; without a port on the usual one, or on any if that is taken."""
        self._server = _Server(Site(folder), Hosts(host, allowed_hosts), host, port)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host, port = self._server.host, self._server.server_address[1]
        if host in ("0.0.0.0", "::", ""):
            host = socket.gethostname()
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    @property
    def exposed(self) -> bool:
        """Whether other machines may reach it."""
        return not is_loopback(self._server.host)

    def serve_forever(self) -> None:
        """Serve until an exception, such as Ctrl-C, ends it."""
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._server.server_close()

    def __enter__(self) -> Watcher:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._thread is not None:
            self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, site: Site, hosts: Hosts, host: str, port: int | None) -> None:
        self.site, self.hosts, self.host = site, hosts, host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.allow_reuse_address = True
        for attempt in [PORT, 0] if port is None else [port]:
            try:
                super().__init__((host, attempt), _Handler)
            except (OSError, OverflowError) as error:
                if port is None and attempt:
                    continue
                taken = getattr(error, "errno", None) == errno.EADDRINUSE
                raise ConfigError(
                    f"cannot listen on {host}" + (f":{port}" if port else ""),
                    why=getattr(error, "strerror", None) or str(error),
                    do="end what listens there, or choose another --port (0 picks a free one)"
                    if taken
                    else "choose an address of this machine with --host, and a --port that you may use",
                ) from error
            return

    def server_bind(self) -> None:
        # Not HTTPServer's: it asks for the host's full name, which may take seconds where there is no name server.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):  # a page that was closed is none
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "manyarms", ""
    timeout = 60
    server: _Server  # type: ignore[assignment]

    def do_GET(self) -> None:
        host = ", ".join(self.headers.get_all("Host", []))
        if not self.server.hosts.knows(host):
            self._say(HTTPStatus.FORBIDDEN, self.server.hosts.refusal(host))
            return
        path, _, query = self.path.partition("?")
        try:
            found = self.server.site.find([*map(unquote, path.removeprefix("/").split("/"))], parse_qs(query))
        except OSError as error:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, f"The folder cannot be read now: {error.strerror}.")
            return
        if found is None:
            self._say(HTTPStatus.NOT_FOUND, "There is nothing here.")
        elif isinstance(found, str):
            self._answer(HTTPStatus.MOVED_PERMANENTLY, b"", {"Location": found})
        elif found.path is None:
            self._send_document(found.document)
        else:
            self._send_file(found.path, found.policy)

    do_HEAD = do_GET  # noqa: N815

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, text.encode(), {"Content-Type": "text/plain; charset=utf-8"})

    def _send_document(self, document: Any) -> None:
        data = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
        headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
        if len(data) > 1000 and "gzip" in self.headers.get("Accept-Encoding", ""):
            data, headers["Content-Encoding"] = gzip.compress(data, 1), "gzip"
        self._answer(HTTPStatus.OK, data, headers)

    def _send_file(self, path: Path, policy: str) -> None:
        """Send a file, or the part of it that a video player asks for."""
        try:
            with path.open("rb") as file:
                found = path.stat()
                tag = f'"{found.st_mtime_ns:x}-{found.st_size:x}"'
                headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Type": _TYPES[path.suffix]}
                headers |= {"Content-Security-Policy": policy, "Accept-Ranges": "bytes"}
                if self.headers.get("If-None-Match") == tag:
                    self._answer(HTTPStatus.NOT_MODIFIED, b"", headers)
                    return
                part = self._part(found.st_size)
                if part is None:
                    self._answer(HTTPStatus.OK, file.read(), headers)
                elif part[0] >= part[1]:
                    wrong = {"Content-Range": f"bytes */{found.st_size}"}
                    self._answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", wrong)
                else:
                    file.seek(part[0])
                    headers["Content-Range"] = f"bytes {part[0]}-{part[1] - 1}/{found.st_size}"
                    self._answer(HTTPStatus.PARTIAL_CONTENT, file.read(part[1] - part[0]), headers)
        except FileNotFoundError:
            self._say(HTTPStatus.NOT_FOUND, "It has just been removed.")

    def _part(self, size: int) -> tuple[int, int] | None:
        """Return which bytes are asked for, from and to; None: all of them."""
        asked = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", self.headers.get("Range", ""))
        if asked is None or asked.group(0) == "bytes=-":
            return None
        first, last = asked.groups()
        if not first:
            return max(0, size - int(last)), size
        return int(first), min(size, int(last) + 1) if last else size

    def _answer(self, status: HTTPStatus, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        always = {
            "Content-Security-Policy": _OURS,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        size = {} if status is HTTPStatus.NOT_MODIFIED else {"Content-Length": str(len(data))}
        for name, value in {**always, **headers, **size}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name http.server gives it)
        """Say nothing: a page asks every second."""
