"""Whom a request was meant for: a web page elsewhere can point a name of its own at this machine (DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Hosts:
    """The names that a server answers to."""

    def __init__(self, bound: str, allowed: Iterable[str] = ()) -> None:
        """Answer to the address that is `bound`, and to what is `allowed` besides; ``*`` is any name."""
        self._bound = bound.lower()
        self._allowed = {name.strip().lower() for name in allowed}

    def knows(self, header: str | None) -> bool:
        """Return whether a request's Host header is a name of ours."""
        name = re.sub(r":\d*$", "", header or "").strip("[]").lower().rstrip(".")
        if "*" in self._allowed or name in self._allowed or name in _LOOPBACK or name == self._bound:
            return True
        if is_loopback(self._bound):
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in (socket.gethostname().lower(), socket.getfqdn().lower())
        return True  # no page of others has an address of ours for its name

    def refusal(self, header: str | None) -> str:
        """Return what whoever calls us by another name is told."""
        name = re.sub(r"[^\w.-]", "", re.sub(r":\d*$", "", header or ""))[:100] or "NAME"
        return f"this name is not one of mine; start me with --allowed-hosts {name}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


__all__ = ["Hosts", "is_loopback"]
