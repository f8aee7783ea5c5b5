"""A policy behind a websocket, for openpi's clients and for `RemotePolicy`; clients that ask together share a batch.

A client first receives what the policy needs to see. Then every message is one observation (flat field names and
``prompt``), answered with ``actions`` [K, …]; or ``{"batch": [observation, …]}``, answered with a list. An answer that
is text is an error, of that client only. Noise follows ``episode`` and ``step`` where a client gives them.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from http import HTTPStatus
from threading import Thread
from types import TracebackType
from typing import Any

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from manyarms import __version__
from manyarms.errors import ConfigError, RolloutError
from manyarms.policies.base import Policy, needs_of
from manyarms.policies.msgpack_numpy import pack, unpack
from manyarms.serving.batching import Batcher, Client, Reader, say
from manyarms.serving.config import Hosts, ServerConfig, ServerCounts, is_loopback
from manyarms.simulators.base import Spec

#: Characters of an error that a client is told; what it sent is repeated there.
_LONGEST_ERROR = 2000

#: Parts of messages that are read before the last one is answered.
_READ_AHEAD = 4


class PolicyServer:
    """Serves a policy; `with` runs it in a thread, `serve_forever` until a signal ends it."""

    def __init__(self, policy: Policy, spec: Spec, config: ServerConfig | None = None) -> None:
        self.config = config or ServerConfig()
        self.counts = ServerCounts()
        self.port = self.config.port
        """The port it listens on, once it does."""
        self._policy, self._spec = policy, spec
        self._reader = Reader(spec, getattr(policy, "cameras", None))
        self._hosts = Hosts(self.config.host, self.config.allowed_hosts)
        self._at_work = 0

    @property
    def url(self) -> str:
        host = self.config.host
        return f"ws://[{host}]:{self.port}" if ":" in host else f"ws://{host}:{self.port}"

    def serve_forever(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGINT or SIGTERM; requests under way are answered first. Call it in the main thread."""

        async def until_signal() -> None:
            loop, stop = asyncio.get_running_loop(), asyncio.Event()

            def end() -> None:
                stop.set()
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)  # a second one ends the process at once

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, end)
            await self.serve(stop, ready)

        asyncio.run(until_signal())

    async def serve(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` is set; `ready` is called once clients can come."""
        batcher = Batcher(self._policy, self.config, self.counts)
        async with await self._listen(lambda socket: self._serve_client(socket, batcher, stop)) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            self._warn_of_strangers()
            ready()
            batches, stopped = asyncio.create_task(batcher.run()), asyncio.create_task(stop.wait())
            await asyncio.wait((batches, stopped), return_when=asyncio.FIRST_COMPLETED)
            while self._at_work and not batches.done():
                await asyncio.sleep(0.01)
            stopped.cancel()
            batches.cancel()
            with suppress(asyncio.CancelledError):
                await batches

    async def _listen(self, handler: Callable[[ServerConnection], Awaitable[None]]) -> Server:
        try:
            return await serve(
                handler,
                self.config.host,
                self.config.port,
                compression=None,
                max_size=self.config.max_message,
                origins=[None],  # a web page must not reach a policy on its reader's machine
                max_queue=_READ_AHEAD,
                process_request=self._look_at,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self.config.host}:{self.config.port}",
                why=error.strerror or str(error),
                do="end what listens there, or choose another --port (0 picks a free one)",
            ) from error

    def _look_at(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer what is no policy's to answer; None: go on."""
        host = ", ".join(request.headers.get_all("Host"))
        if not self._hosts.knows(host):
            return connection.respond(HTTPStatus.FORBIDDEN, self._hosts.refusal(host) + "\n")
        return connection.respond(HTTPStatus.OK, "OK\n") if request.path == "/healthz" else None

    async def _serve_client(self, socket: ServerConnection, batcher: Batcher, stop: asyncio.Event) -> None:
        with suppress(ConnectionClosed), batcher.client() as client:
            await socket.send(pack(self._metadata(batcher.chunk)))
            async for message in socket:
                if stop.is_set():
                    return
                self._at_work += 1
                try:
                    await socket.send(await self._answer(message, client, batcher))
                finally:
                    self._at_work -= 1

    async def _answer(self, message: str | bytes, client: Client, batcher: Batcher) -> str | bytes:
        """Return what a client is answered: bytes, or the text of an error."""
        try:
            return await self._acted(message, client, batcher)
        except (ConfigError, RolloutError) as error:
            return f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        except Exception as error:  # noqa: BLE001 (whatever a client sends, it is told so, and no other suffers)
            say(f"a request was not understood:\n{''.join(traceback.format_exception(error))}")
            return f"ConfigError: the request was not understood ({type(error).__name__})"

    async def _acted(self, message: str | bytes, client: Client, batcher: Batcher) -> bytes:
        """Return what the policy chose."""
        request = _understood(message)
        decisions = await batcher.decide(client, self._reader.rows(request, client))
        answers = [decision.answer(extras=bool(request.get("extras"))) for decision in decisions]
        answer = {"batch": answers} if "batch" in request else answers[0]
        try:
            return pack({**answer, "server_timing": decisions[-1].timing})
        except (TypeError, ValueError) as error:
            raise RolloutError("what the policy chose cannot be sent", why=str(error)) from None

    def _metadata(self, chunk: int | None) -> dict[str, Any]:
        actions = {name: list(f.shape) for name, f in self._spec.actions.items()}
        return {
            "manyarms": __version__,
            "fields": {
                name: {"shape": list(f.shape), "dtype": np.dtype(f.dtype).name}
                for name, f in self._reader.fields.items()
            },
            "action_shape": actions.get("", actions),
            "chunk": chunk,
            "batch": True,
            "needs": needs_of(self._policy),
            "max_message": self.config.max_message,
        }

    def _warn_of_strangers(self) -> None:
        if not is_loopback(host := self.config.host):
            what = f"everyone who can reach {host or 'this machine'}:{self.port} can use this policy"
            say(f"warning: {what}; there is no authentication")

    # -- in a thread --------------------------------------------------------------------------------------------------

    def __enter__(self) -> PolicyServer:
        self._ready: Future[None] = Future()
        self._running: Future[None] = Future()
        # Where nobody closes it, as in a notebook that is shut down, the process must end all the same.
        Thread(target=self._run_in_thread, name="manyarms-server", daemon=True).start()
        wait((self._ready, self._running), return_when=FIRST_COMPLETED)
        if self._running.done():
            self._running.result()
        return self

    def _run_in_thread(self) -> None:
        try:
            asyncio.run(self._serve_in_thread())
        except Exception as error:  # noqa: BLE001 (raised where the server is entered or left)
            self._running.set_exception(error)
        finally:
            if not self._running.done():
                self._running.set_result(None)

    async def _serve_in_thread(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self.serve(self._stop, lambda: self._ready.set_result(None))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._running.result()


def _understood(message: str | bytes) -> Any:
    if isinstance(message, str):
        raise ConfigError("a request is a binary message of msgpack, this is text")
    try:
        return unpack(message)
    except ValueError as error:
        raise ConfigError("a request cannot be read", why=str(error)) from None


__all__ = ["PolicyServer", "ServerConfig", "ServerCounts"]
