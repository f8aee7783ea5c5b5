"""A server that a thread of this process runs, as a result to hold, show and close."""

from __future__ import annotations

from typing import Any, Generic, Protocol, Self, TypeVar

from manyarms.reporting.showing import Shown


class Server(Protocol):
    """Runs in a thread of its own between `__enter__` and `__exit__`."""

    @property
    def url(self) -> str: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, kind: None, error: None, trace: None, /) -> Any: ...


S = TypeVar("S", bound=Server)


class Background(Shown, Generic[S]):
    """Serves until it is closed."""

    def __init__(self, server: S) -> None:
        """Begin at once."""
        server.__enter__()
        self._server: S | None = server
        self.url = server.url
        """Where it is found."""

    @property
    def closed(self) -> bool:
        return self._server is None

    def close(self) -> None:
        """Answer the requests under way, then end."""
        server, self._server = self._server, None
        if server is not None:
            server.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
