"""The X protocol, as far as knocking goes: whether a display answers, and with which cookie."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from manyarms.errors import ConfigError, StartError

SOCKETS = "/tmp/.X11-unix/X"
#: A server that answers does so in milliseconds; one that was stopped never does.
PATIENCE = 10.0
_COOKIE = b"MIT-MAGIC-COOKIE-1"
_ANY_HOST = 65535


def check_external(name: str) -> None:
    """Refuse a display that does not answer."""
    reason = knock(name, known_cookies(authority_file(os.environ), name), PATIENCE)
    if reason:
        raise StartError(
            f"display {name} does not answer",
            why=reason,
            do=f"start it (Xvfb {name} -screen 0 1280x1024x24 +extension GLX), or use display='xvfb'",
        )


def knock(name: str, cookies: Sequence[bytes], timeout: float) -> str:
    """Connect to a display as a client would; say why it does not work, nothing if it does."""
    deadline = time.monotonic() + timeout
    reason, untried = "", [*cookies, b""]
    while untried:
        try:
            with _connect(name, timeout) as sock:
                reason = _shake_hands(sock, untried[0])
        except OSError as error:
            # A server that resets because its last client has left, as many do, turns away whoever comes meanwhile.
            resets = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
            if not resets or time.monotonic() > deadline:
                return error.strerror or str(error)
            time.sleep(0.02)
            continue
        if not reason:
            return ""
        untried.pop(0)
    return reason


def _connect(name: str, timeout: float) -> socket.socket:
    host, number = split_name(name)
    if host not in ("", "unix"):
        return socket.create_connection((host, 6000 + number), timeout)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout)
    try:
        with contextlib.suppress(ConnectionRefusedError):
            sock.connect(f"\0{SOCKETS}{number}")
            return sock
        sock.connect(f"{SOCKETS}{number}")
    except OSError:
        sock.close()
        raise
    return sock


def split_name(name: str) -> tuple[str, int]:
    """Read ``host:number.screen``."""
    match = re.fullmatch(r"([^:]*):(\d+)(?:\.\d+)?", name)
    if match is None:
        raise ConfigError(f"{name!r} is no display", do="displays are called :99, :99.0 or host:99")
    return match[1], int(match[2])


def _shake_hands(sock: socket.socket, cookie: bytes) -> str:
    """Set up a connection; say why it was refused, nothing if it was not."""
    method = _COOKIE if cookie else b""
    sock.sendall(
        struct.pack("<BxHHHHxx", ord("l"), 11, 0, len(method), len(cookie)) + _padded(method) + _padded(cookie)
    )
    head = _read(sock, 8)
    accepted, length, _, _, words = struct.unpack("<BBHHH", head)
    return "" if accepted == 1 else _read(sock, words * 4)[:length].decode(errors="replace").strip() or "refused"


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionError("it closed the connection")
        data += more
    return data


def authority_file(environ: Mapping[str, str]) -> Path:
    """Return where clients look for their cookies."""
    return Path(environ.get("XAUTHORITY") or os.path.expanduser("~/.Xauthority"))


def authority_entry(cookie: bytes) -> bytes:
    """Return an authority file for whichever display it is used with; the number is not known beforehand."""
    fields = b"".join(struct.pack(">H", len(item)) + item for item in (b"", b"", _COOKIE, cookie))
    return struct.pack(">H", _ANY_HOST) + fields


def known_cookies(path: Path, name: str) -> list[bytes]:
    """Return the cookies in an authority file that may open a display."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    number = str(split_name(name)[1]).encode()
    entries = (list(_counted(data, at)) for at in _entries(data))
    return [entry[3] for entry in entries if entry[1] in (b"", number) and entry[2] == _COOKIE]


def _entries(data: bytes) -> Iterator[int]:
    """Yield where each whole entry's four fields begin."""
    at = 2
    while at < len(data):
        fields = list(_counted(data, at))
        if len(fields) < 4:
            return
        yield at
        at += sum(2 + len(item) for item in fields) + 2


def _counted(data: bytes, at: int) -> Iterator[bytes]:
    """Yield the four fields that begin at `at`, as far as there are any."""
    for _ in range(4):
        if at + 2 > len(data):
            return
        length = int.from_bytes(data[at : at + 2], "big")
        yield data[at + 2 : at + 2 + length]
        at += 2 + length
