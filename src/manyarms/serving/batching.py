"""What clients send, held against what the policy needs to see; and rows of many clients in one call of the policy."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from manyarms.errors import ConfigError, RolloutError, printable
from manyarms.policies.base import ActionChunk, Observations, Policy
from manyarms.serving.config import ServerConfig, ServerCounts
from manyarms.simulators.base import Field, Spec, flatten
from manyarms.vector import EpisodeId
from manyarms.vector.chunk import is_count
from manyarms.workers.wire import decode

#: Words of the protocol, which no observation field can be called.
RESERVED = ("batch", "episode", "extras", "prompt", "step")

#: Characters of an instruction.
_LONGEST_PROMPT = 100_000


# -- requests ---------------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """Whoever is at the other end of a connection."""

    number: int
    requests: int = 0
    """Counts the steps of clients that do not."""


@dataclass(frozen=True)
class Row:
    """One observation of one client."""

    fields: Mapping[str, np.ndarray]
    text: str
    episode: EpisodeId
    step: int


class Reader:
    """Turns requests into rows, held against what the policy needs to see."""

    def __init__(self, spec: Spec, cameras: Sequence[str] | None) -> None:
        seen = spec.cameras if cameras is None else cameras
        self.fields = {name: f for name, f in spec.layout().items() if f.camera is None or f.camera in seen}
        taken = [name for name in self.fields if name.split("/")[0] in RESERVED]
        if taken:
            raise ConfigError(f"observation field {taken[0]!r} is called like a word of the protocol", do="rename it")

    def rows(self, request: Any, client: Client) -> list[Row]:
        """Return the rows of a request."""
        if not isinstance(request, dict):
            raise ConfigError(f"a request is a dict of fields, this is a {type(request).__name__}")
        client.requests += 1
        if "batch" not in request:
            return [self._row(request, client, 0)]
        batch = request["batch"]
        if not isinstance(batch, list) or not batch or not all(isinstance(one, dict) for one in batch):
            raise ConfigError("'batch' must be a list of at least one observation")
        return [self._row(observation, client, i) for i, observation in enumerate(batch)]

    def _row(self, observation: dict[Any, Any], client: Client, index: int) -> Row:
        given = {str(name): value for name, value in observation.items()}
        text = given.get("prompt", "")
        if not isinstance(text, str):
            raise ConfigError(f"'prompt' must be text, this is {type(text).__name__}")
        if len(text) > _LONGEST_PROMPT:
            raise ConfigError(f"'prompt' must not be longer than {_LONGEST_PROMPT} characters")
        step = given.get("step", client.requests - 1)
        if not is_count(step) or step > np.iinfo(np.int64).max:
            raise ConfigError(f"'step' must be a number of actions below 2^63, this is {step!r:.100}")
        episode = _episode(given["episode"]) if "episode" in given else EpisodeId(seed=client.number, index=index)
        arrays = flatten({name: value for name, value in given.items() if name not in RESERVED})
        return Row({name: _field(name, f, arrays) for name, f in self.fields.items()}, text, episode, int(step))


def _field(name: str, wanted: Field, given: Mapping[str, Any]) -> np.ndarray:
    """Return a field of an observation, or say what is wrong with it."""
    label = f"observation field {name!r}"
    if name not in given:
        raise ConfigError(
            f"{label} is missing", why=f"the observation has {', '.join(map(repr, given)) or 'no fields'}"
        )
    value, dtype = given[name], np.dtype(wanted.dtype)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        fits = array.dtype == dtype
    elif _has_shape(value, wanted.shape):
        array = np.asarray(value)
        fits = np.can_cast(array.dtype, dtype, "same_kind")  # plain numbers have no dtype of their own
    else:
        raise ConfigError(f"{label} is no {wanted.shape} array of {dtype}, but a {type(value).__name__}")
    if array.shape != wanted.shape or not fits:
        raise ConfigError(f"{label} is {array.shape} {array.dtype}, but the policy expects {wanted.shape} {dtype}")
    if not np.isfinite(array).all():
        raise ConfigError(f"{label} has values that are not finite", why="no policy can make anything of NaN")
    return array.astype(dtype, copy=False)


def _has_shape(value: Any, shape: Sequence[int]) -> bool:
    """Return whether lists in lists of numbers are an array of a shape, before NumPy claims memory for one."""
    if not shape:
        return isinstance(value, bool | int | float)
    return isinstance(value, list) and len(value) == shape[0] and all(_has_shape(part, shape[1:]) for part in value)


def _episode(value: Any) -> EpisodeId:
    """Read an episode's identity: a dict, or such a dict in the form that keys are made of."""
    if isinstance(value, bytes):
        try:
            value = decode(value)
        except ValueError as error:
            raise ConfigError("'episode' cannot be read", why=str(error)) from None
    try:
        return EpisodeId.of(value)
    except ValueError as error:
        raise ConfigError(f"'episode' {error}") from None


# -- batches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """What the policy chose for a row."""

    actions: Mapping[str, np.ndarray]  # [K, …] each
    extras: Mapping[str, np.ndarray]
    timing: Mapping[str, float]

    def answer(self, extras: bool) -> dict[str, Any]:
        """Return what the client is told."""
        return {**(self.extras if extras else {}), "actions": self.actions.get("", self.actions)}


@dataclass(frozen=True)
class _Waiting:
    client: Client
    row: Row
    decision: asyncio.Future[Decision]
    since: float = field(default_factory=time.monotonic)

    def tell(self, outcome: Decision | RolloutError) -> None:
        """Give whoever waits the outcome."""
        if self.decision.done():  # its client has gone
            return
        if isinstance(outcome, RolloutError):
            self.decision.set_exception(outcome)
        else:
            self.decision.set_result(outcome)


class Batcher:
    """Asks the policy, in a thread of its own, for all rows that wait."""

    def __init__(self, policy: Policy, config: ServerConfig, counts: ServerCounts) -> None:
        self.chunk: int | None = getattr(policy, "chunk", None)
        """K; a policy that does not say so shows it."""
        self._policy, self._config, self._counts = policy, config, counts
        self._clients = 0
        self._waiting: deque[_Waiting] = deque()
        self._news = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "manyarms-policy")

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Count a client for as long as it is connected."""
        self._clients += 1
        self._counts.connections += 1
        try:
            yield Client(self._counts.connections - 1)
        finally:
            self._clients -= 1
            self._news.set()

    async def decide(self, client: Client, rows: Sequence[Row]) -> list[Decision]:
        """Wait for the policy's decision on each row."""
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(client, row, loop.create_future()) for row in rows]
        self._waiting.extend(waiting)
        self._news.set()
        return await asyncio.gather(*(one.decision for one in waiting))

    async def run(self) -> None:
        """Serve batch after batch until cancelled."""
        batch: list[_Waiting] = []
        try:
            while True:
                await self._gather()
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._config.max_batch))]
                await self._serve(batch)
        finally:
            for one in (*batch, *self._waiting):
                one.decision.cancel()  # nobody must wait for what will not come
            self._thread.shutdown()

    async def _gather(self) -> None:
        """Wait for a batch that is worth a call: full, complete, or as old as it may become."""
        while True:
            self._news.clear()
            left = None
            if self._waiting:
                left = self._waiting[0].since + self._config.batch_wait_ms / 1000 - time.monotonic()
                everyone = len({one.client.number for one in self._waiting}) >= self._clients
                if everyone or left <= 0 or len(self._waiting) >= self._config.max_batch:
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)

    async def _serve(self, batch: Sequence[_Waiting]) -> None:
        """Ask the policy; where it fails, ask again client by client, so that none fails by another's observation."""
        outcome = await self._ask(batch)
        clients = {one.client.number for one in batch}
        if isinstance(outcome, RolloutError) and len(clients) > 1:
            for number in sorted(clients):
                part = [one for one in batch if one.client.number == number]
                _tell(part, await self._ask(part))
        else:
            _tell(batch, outcome)

    async def _ask(self, batch: Sequence[_Waiting]) -> list[Decision | RolloutError] | RolloutError:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        call = self._thread.submit(_act, self._policy, [one.row for one in batch])
        call.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
        await done.wait()
        error = call.exception()
        if error is not None:
            say(f"the policy failed on {len(batch)} rows:\n{''.join(traceback.format_exception(error))}")
            # What it says may name files of this machine.
            return RolloutError("the policy failed", why=f"{type(error).__name__}; the server's own output tells more")
        self._counts.batches += 1
        self._counts.rows += len(batch)
        self._counts.largest_batch = max(self._counts.largest_batch, len(batch))
        self.chunk, decisions = call.result()
        return decisions


def say(text: str) -> None:
    """Tell the owner of the server; words of clients in it cannot steer the terminal."""
    print(printable(text), file=sys.stderr, flush=True)


def _tell(batch: Sequence[_Waiting], outcome: list[Decision | RolloutError] | RolloutError) -> None:
    for i, one in enumerate(batch):
        one.tell(outcome if isinstance(outcome, RolloutError) else outcome[i])


def _act(policy: Policy, rows: Sequence[Row]) -> tuple[int, list[Decision | RolloutError]]:
    """Return K and what the policy chose for each row; actions that no robot can carry out are an error."""
    observations = Observations(
        {name: np.stack([row.fields[name] for row in rows]) for name in rows[0].fields},
        [row.text for row in rows],
        [row.episode for row in rows],
        np.array([row.step for row in rows], np.int64),
    )
    began = time.monotonic()
    chunk = policy.act(observations)
    timing = {"infer_ms": 1000 * (time.monotonic() - began), "batch_rows": len(rows)}
    if len(chunk) != len(rows):
        raise RolloutError(f"the policy gave {len(chunk)} chunks of actions for {len(rows)} rows")
    return chunk.length, [_decision(chunk, i, timing) for i in range(len(rows))]


def _decision(chunk: ActionChunk, index: int, timing: Mapping[str, float]) -> Decision | RolloutError:
    actions = _row_of(chunk.actions, index)
    if not all(np.isfinite(array).all() for array in actions.values()):
        return RolloutError(
            "the policy chose actions that are not finite", why="its weights or this observation are off"
        )
    return Decision(actions, _row_of(chunk.extras, index), timing)


def _row_of(arrays: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    return {name: np.asarray(array[index]) for name, array in arrays.items()}
