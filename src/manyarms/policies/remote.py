"""A policy that lives behind a websocket: `manyarms serve`, or any server that speaks openpi's protocol."""

from __future__ import annotations

import os
import queue
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from manyarms.errors import ConfigError, RolloutError
from manyarms.policies.base import ActionChunk, Observations, joined
from manyarms.policies.msgpack_numpy import pack, unpack
from manyarms.simulators.base import Spec
from manyarms.vector import EpisodeId
from manyarms.workers.wire import encode

#: Names a key for servers that want one. It is no option, so that no key is written down with a run's settings.
API_KEY = "MANYARMS_API_KEY"

_TOO_BIG = 1009  # the close code of RFC 6455

#: Bytes of an answer, and characters of an error: a server is a stranger.
_LONGEST_ANSWER = 1 << 28
_LONGEST_ERROR = 2000

#: What a field of an observation is made of.
_DTYPES = {np.dtype(kind).name for kind in np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"}

#: Actions at a time.
_LONGEST_CHUNK = 1 << 16


class Link:
    """One connection to a server, opened when first used and once more when it drops."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url, self._timeout = url, timeout
        self.metadata: dict[str, Any] = {}
        self._socket: ClientConnection | None = None

    def open(self) -> None:
        """Connect; wait for a server that is not up yet."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._connect(deadline - time.monotonic())
            except socket.gaierror as error:
                raise ConfigError(f"there is no host {urlsplit(self.url).hostname!r}", why=str(error)) from error
            except InvalidStatus as error:
                if error.response.status_code < 500:
                    said = (error.response.body or b"").decode(errors="replace").strip()[:_LONGEST_ERROR]
                    do = "" if said else f"is {API_KEY} right?"
                    raise ConfigError(
                        f"the server at {self.url} refuses us", why=": ".join(filter(None, [str(error), said])), do=do
                    ) from error
                last: Exception = error
            except (OSError, InvalidHandshake, ConnectionClosed) as error:
                last = error
            if time.monotonic() + 0.1 > deadline:
                raise ConfigError(
                    f"no policy server answers at {self.url} within {self._timeout:g} s",
                    why=str(last) or type(last).__name__,
                    do="start one with `manyarms serve SIMULATOR --policy NAME`, or give host=, port= and timeout=",
                ) from last
            time.sleep(0.1)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        message = pack(request)
        if self._socket is None:
            self._open_again()
        try:
            answer = self._exchange(message)
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == _TOO_BIG:
                raise RolloutError(
                    f"{self.url} refuses messages of {len(message) / 2**20:.1f} MiB",
                    why=error.rcvd.reason,
                    do="start it with a larger --max-message-mb",
                ) from error
            self._open_again()
            try:
                answer = self._exchange(message)
            except ConnectionClosed as again:
                raise RolloutError(f"the connection to {self.url} dropped twice", why=str(again)) from again
        if isinstance(answer, str):
            raise RolloutError(f"the policy server at {self.url} reports an error", why=answer[:_LONGEST_ERROR])
        return _unpacked(answer, self.url)

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, seconds: float) -> None:
        parts = urlsplit(self.url)
        address = (parts.hostname or "", parts.port or (443 if parts.scheme == "wss" else 80))
        key = os.environ.get(API_KEY)
        # A socket of our own goes straight to the server, past any proxy that the environment names. No pings: a server
        # of openpi does not answer them while its policy is at work, which takes a minute the first time.
        plain = socket.create_connection(address, max(seconds, 0.1))
        plain.settimeout(None)
        with ExitStack() as unless_all_goes_well:
            connection = unless_all_goes_well.enter_context(
                connect(
                    self.url,
                    sock=plain,
                    compression=None,
                    max_size=_LONGEST_ANSWER,
                    open_timeout=max(seconds, 0.1),
                    close_timeout=2.0,
                    ping_interval=None,
                    additional_headers={"Authorization": f"Api-Key {key}"} if key else None,
                )
            )
            first = connection.recv(max(seconds, 0.1))
            if isinstance(first, str):
                raise ConfigError(f"{self.url} is no policy server", why=f"it begins with the text {first[:200]!r}")
            self.metadata = _unpacked(first, self.url)
            self._socket = connection
            unless_all_goes_well.pop_all()

    def _open_again(self) -> None:
        before = self.metadata
        try:
            self.open()
        except ConfigError as error:
            raise RolloutError(f"the policy server at {self.url} has gone", why=str(error)) from error
        if before and _identity(before) != _identity(self.metadata):
            raise RolloutError(f"another policy is served at {self.url} than before")

    def _exchange(self, message: bytes) -> str | bytes:
        assert self._socket is not None
        try:
            self._socket.send(message)
            return self._socket.recv(self._timeout)
        except TimeoutError:
            self.close()  # an answer that comes late must not be taken for the next one
            raise RolloutError(
                f"{self.url} did not answer within {self._timeout:g} s", do="give the policy a longer timeout="
            ) from None


def _unpacked(data: bytes, url: str) -> dict[str, Any]:
    try:
        value = unpack(data)
    except ValueError as error:
        raise RolloutError(f"the answer of the server at {url} cannot be read", why=str(error)) from error
    if not isinstance(value, dict):
        raise RolloutError(f"the server at {url} answered with a {type(value).__name__}, not a dict")
    return value


def _identity(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said about a policy, without what it learns about itself."""
    return {name: value for name, value in metadata.items() if name != "chunk"}


class RemotePolicy:
    """Asks a server. Of `manyarms serve`, all rows at once; of other servers, row by row over several connections.

    `keys` gives our fields the server's names (``{"wrist_rgb": "observation/wrist_image"}``, or such pairs as
    ``"wrist_rgb=observation/wrist_image"``); fields without one are not sent.
    """

    cameras: tuple[str, ...] | None = None

    def __init__(
        self,
        spec: Spec,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        timeout: float = 60.0,
        prompt_key: str = "prompt",
        keys: Mapping[str, str] | Sequence[str] | str | None = None,
        connections: int = 8,
    ) -> None:
        if timeout <= 0 or connections < 1:
            raise ConfigError(f"timeout is {timeout} and connections is {connections}; both must be above 0")
        self._spec, self._prompt_key = spec, prompt_key
        chosen = _pairs(keys, spec)
        first = Link(host if "://" in host else f"ws://{f'[{host}]' if ':' in host else host}:{port}", timeout)
        with ExitStack() as unless_it_fits:
            unless_it_fits.callback(first.close)
            first.open()
            self._agree(first.metadata, chosen)
            unless_it_fits.pop_all()
        self._links: queue.LifoQueue[Link] = queue.LifoQueue()
        for link in [*(Link(first.url, timeout) for _ in range(0 if self.batched else connections - 1)), first]:
            self._links.put(link)
        self._threads = ThreadPoolExecutor(connections, "manyarms-remote")

    def _agree(self, metadata: dict[str, Any], chosen: Mapping[str, str]) -> None:
        """Settle what is sent, by what the server says about itself."""
        spec = self._spec
        _check_metadata(metadata)
        self.metadata = metadata
        """What the server says about itself."""
        self.chunk: int = metadata.get("chunk") or 1
        """How many actions it gives at a time, where it says so."""
        self.batched = bool(metadata.get("batch"))
        """Whether it takes many rows in one message."""
        wanted: Mapping[str, Any] | None = metadata.get("fields") if self.batched else None
        self._names = _names(spec, chosen, wanted)
        if wanted is not None:
            _check_fit(spec, self._names, metadata)
        if wanted is not None or chosen:
            fields = [spec.observations[name] for name in self._names if name in spec.observations]
            self.cameras = tuple(dict.fromkeys(field.camera for field in fields if field.camera))

    def act(self, observations: Observations) -> ActionChunk:
        """Ask the server for every row's next chunk."""
        return self._act_together(observations) if self.batched else self._act_apart(observations)

    def close(self) -> None:
        """Hang up."""
        self._threads.shutdown()
        while not self._links.empty():
            self._links.get().close()

    def _act_together(self, observations: Observations) -> ActionChunk:
        """Send as many rows in a message as the server takes."""
        count = len(observations)
        row_bytes = 1024 + sum(observations.fields[name].nbytes for name in self._names) // max(count, 1)
        step = max(1, int(0.9 * self.metadata.get("max_message", 2**28)) // row_bytes)
        return joined([self._act_part(observations, range(i, min(i + step, count))) for i in range(0, count, step)])

    def _act_part(self, observations: Observations, part: Sequence[int]) -> ActionChunk:
        rows = [
            {
                **self._row(observations, i),
                "prompt": observations.texts[i],
                "episode": _identified(observations.episodes[i]),
                "step": int(observations.steps[i]),
            }
            for i in part
        ]
        answers = self._ask({"batch": rows, "extras": True}).get("batch")
        if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
            raise RolloutError(f"the server answered {len(rows)} rows with {answers!r:.200}")
        if len(answers) != len(rows):
            raise RolloutError(f"the server answered {len(rows)} rows with {len(answers)}")
        return ActionChunk(self._actions(answers), _extras(answers))

    def _act_apart(self, observations: Observations) -> ActionChunk:
        """Send every row in a message of its own."""
        rows = [
            {**self._row(observations, i), self._prompt_key: observations.texts[i]} for i in range(len(observations))
        ]
        actions = self._actions(list(self._threads.map(self._ask, rows)))
        return ActionChunk(
            {name: array.astype(self._spec.actions[name].dtype, copy=False) for name, array in actions.items()}
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        link = self._links.get()
        try:
            return link.ask(request)
        finally:
            self._links.put(link)

    def _row(self, observations: Observations, index: int) -> dict[str, np.ndarray]:
        return {theirs: np.asarray(observations.fields[ours][index]) for ours, theirs in self._names.items()}

    def _actions(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return every row's actions [R, K, …] by name, of the shapes that the simulator takes."""
        given = [answer.get("actions") for answer in answers]
        named: list[Mapping[str, Any]] = [one if isinstance(one, Mapping) else {"": one} for one in given]
        found = [{name: _array(actions.get(name, ())) for name in self._spec.actions} for actions in named]
        for actions in found:
            for name, field in self._spec.actions.items():
                array, label = actions[name], f"actions {name!r}" if name else "actions"
                if array.ndim != 1 + len(field.shape) or array.shape[1:] != field.shape or len(array) < 1:
                    wanted = " × ".join(map(str, ("K", *field.shape)))
                    raise RolloutError(
                        f"the server's {label} have shape {array.shape}, but the simulator takes {wanted}",
                        why=f"its answer has {', '.join(map(str, answers[0])):.200}",
                    )
                if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
                    raise RolloutError(f"the server's {label} are not finite numbers")
        lengths = {len(actions[name]) for actions in found for name in self._spec.actions}
        if len(lengths) > 1:
            raise RolloutError(f"the server gave chunks of different lengths: {sorted(lengths)}")
        return {name: np.stack([actions[name] for actions in found]) for name in self._spec.actions}


def _array(value: Any) -> np.ndarray:
    """Return what a server gave as an array; what is none becomes numbers, or an error."""
    try:
        return value if isinstance(value, np.ndarray) else np.asarray(value, np.float64)
    except (ValueError, TypeError) as error:
        raise RolloutError("the server's actions are no array", why=str(error)) from None


def _extras(answers: Sequence[Mapping[Any, Any]]) -> dict[str, np.ndarray]:
    """Return what else the server says of every row, by name."""
    names = [name for name in answers[0] if name != "actions"]
    found: dict[str, np.ndarray] = {}
    for name in names:
        row = [answer.get(name) for answer in answers]
        arrays = [np.asarray(one) for one in row if isinstance(one, np.ndarray | np.generic | int | float)]
        if not isinstance(name, str) or len(arrays) < len(row) or len({array.shape for array in arrays}) > 1:
            raise RolloutError(f"the server gave extras {name!r:.100} that are not alike for all rows")
        found[name] = np.stack(arrays)
    return found


def _check_metadata(metadata: Mapping[Any, Any]) -> None:
    """Raise where a server does not describe itself as ours do; of other servers only `chunk` counts."""
    chunk, fields = metadata.get("chunk"), metadata.get("fields")
    known = {"chunk": chunk is None or (type(chunk) is int and 0 <= chunk <= _LONGEST_CHUNK)}
    if metadata.get("batch"):
        room = metadata.get("max_message", 1)
        known["fields"] = fields is None or (isinstance(fields, dict) and all(map(_is_field, fields.items())))
        known["max_message"] = type(room) is int and room > 0
        known["needs"] = isinstance(metadata.get("needs") or {}, dict)
    for name, good in known.items():
        if not good:
            raise ConfigError(f"the server describes itself with {name}: {metadata[name]!r:.200}, which cannot be")


def _is_field(item: tuple[Any, Any]) -> bool:
    """Return whether a server says of a field what ours do."""
    name, field = item
    if not isinstance(name, str) or not isinstance(field, dict):
        return False
    shape, dtype = field.get("shape"), field.get("dtype")
    return isinstance(shape, list) and isinstance(dtype, str) and dtype in _DTYPES


def _identified(episode: EpisodeId) -> bytes:
    """Return an episode's identity as its key is made of it, so that the server's noise is the same as ours."""
    return encode({field.name: getattr(episode, field.name) for field in fields(episode)})


def _pairs(keys: Mapping[str, str] | Sequence[str] | str | None, spec: Spec) -> dict[str, str]:
    """Return our names and the server's."""
    if keys is None:
        return {}
    if not isinstance(keys, Mapping):
        words = [keys] if isinstance(keys, str) else keys
        wrong = [word for word in words if "=" not in str(word)]
        if wrong:
            raise ConfigError(f"{wrong[0]!r} in keys is not of the form ours=theirs")
        keys = dict(str(word).split("=", 1) for word in words)
    unknown = [name for name in keys if name not in spec.layout()]
    if unknown:
        raise ConfigError(f"keys names an observation {unknown[0]!r}", do=f"choose from {', '.join(spec.layout())}")
    return dict(keys)


def _names(spec: Spec, chosen: Mapping[str, str], wanted: Mapping[str, Any] | None) -> dict[str, str]:
    """Return which fields are sent, and under which names."""
    if wanted is None:
        return dict(chosen) or {name: name for name in spec.layout()}
    theirs = {their: our for our, their in chosen.items()}
    return {theirs.get(name, name): name for name in wanted}


def _check_fit(spec: Spec, names: Mapping[str, str], metadata: Mapping[str, Any]) -> None:
    """Raise where the server's policy was made for another simulator."""
    layout, needs = spec.layout(), metadata.get("needs") or {}
    do = "serve the policy for the same simulator, with the same options"
    if needs:
        do = "give the simulator --options " + shlex.join(f"{name}={value}" for name, value in needs.items())
    for ours, theirs in names.items():
        field, wanted = layout.get(ours), metadata["fields"][theirs]
        if field is None:
            raise ConfigError(f"the server wants to see {theirs!r}, which this simulator does not show", do=do)
        if list(field.shape) != wanted["shape"] or np.dtype(field.dtype) != np.dtype(wanted["dtype"]):
            expected = f"{tuple(wanted['shape'])} {wanted['dtype']}"
            raise ConfigError(
                f"observation field {ours!r} is {field.shape} {np.dtype(field.dtype)}, the server expects {expected}",
                do=do,
            )
    shapes = {name: list(field.shape) for name, field in spec.actions.items()}
    theirs, ours = metadata.get("action_shape"), shapes.get("", shapes)
    if theirs != ours:
        raise ConfigError(f"the server's actions have shape {theirs}, this simulator takes {ours}", do=do)


__all__ = ["RemotePolicy"]
