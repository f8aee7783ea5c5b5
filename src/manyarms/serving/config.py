"""Where a policy is served, whom the server answers, and what it has served so far."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from manyarms.errors import ConfigError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServerConfig:
    """Where a policy is served, and to how many at once."""

    host: str = "127.0.0.1"
    """The address to listen on. There is no authentication: others than this machine's own are for trusted networks."""
    port: int = 8000
    """0 picks a free one."""
    max_batch: int = 64
    """Most rows in one call of the policy."""
    batch_wait_ms: float = 5.0
    """How long the first request of a batch waits for others; nobody waits once every client has asked."""
    max_message_mb: float = 256.0
    """Longer messages are refused."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names that clients may call this server by; `*` is any."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; it must be between 0 and 65535")
        if self.max_batch < 1:
            raise ConfigError(f"max_batch is {self.max_batch}; it must be at least 1")
        if self.batch_wait_ms < 0 or self.max_message_mb <= 0:
            raise ConfigError("batch_wait_ms must not be negative, and max_message_mb must be above 0")

    @property
    def max_message(self) -> int:
        """Bytes."""
        return int(self.max_message_mb * 2**20)


@dataclass
class ServerCounts:
    """What a server has done so far."""

    connections: int = 0
    rows: int = 0
    batches: int = 0
    largest_batch: int = 0


class Hosts:
    """The names that a server answers to: a page elsewhere may point a name of its own at us (DNS rebinding)."""

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
