"""The far side: whatever a worker or a nursery is sent, it carries it out, answers with an error, or ends."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_messages import EXAMPLES
from test_wire import JSON, VALUES

from manyarms.simulators.base import Spec
from manyarms.vector.config import VectorConfig
from manyarms.vector.layout import arena_fields
from manyarms.workers import wire
from manyarms.workers import words as w
from manyarms.workers.arena import Arena, Layout
from manyarms.workers.messages import check
from manyarms.workers.nursery import receive_request
from manyarms.workers.serve import Refused, Worker

START = {**EXAMPLES["start"], "options": {"cameras": []}, "rows": 2, "rename": {}, "search_path": [], "cpus": []}
FRAMES = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda data: b"arms" + struct.pack("<I", len(data)) + data),
    (VALUES | JSON).map(wire.frame),
)
WORDS = st.one_of(st.integers(0, 3), st.integers(-3, 6), st.integers(-(2**31), 2**31 - 1))
RUNG = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"\0", b"\1", b"\0\1", b"\2", bytes([wire.GROUP])]), max_size=4).map(b"".join),
    st.tuples(st.sampled_from([b"\0", b"\1"]), (VALUES | JSON).map(wire.encode)).map(b"".join),
)


@contextlib.contextmanager
def spoken_to(data: bytes) -> Iterator[socket.socket]:
    """Return the worker's end of a socket on which the main side has said something, and no more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        yield theirs


def ends_in_peace(call: Callable[[], object]) -> None:
    """Call what may find that the other side has gone, or makes no sense."""
    with contextlib.suppress(wire.Unreadable, ConnectionError):
        call()


@pytest.mark.parametrize("kind", ["start", "plan", "build"])
@given(data=FRAMES)
def test_any_bytes_before_the_work_begins_are_a_message_or_unreadable(kind: str, data: bytes) -> None:
    with spoken_to(data) as sock:
        ends_in_peace(lambda: check(wire.receive(sock), kind))


@given(data=FRAMES)
def test_any_bytes_are_a_request_of_a_nursery_or_unreadable(data: bytes) -> None:
    with spoken_to(b"?" + data) as sock:
        ends_in_peace(lambda: receive_request(sock))


@given(change=st.sampled_from(list(START)), value=VALUES | JSON)
def test_a_start_with_any_value_in_it_makes_a_worker_or_is_answered(change: str, value: Any) -> None:
    with spoken_to(b"") as sock, contextlib.suppress(wire.Unreadable, Refused):
        start = check({**START, "simulator": "standins:Walker", change: value}, "start")
        if change not in ("cpus", "rows", "search_path"):  # what the machine is asked for is the main side's to know
            Worker(sock, -1, -1, start)


@given(data=RUNG, control=st.lists(WORDS, min_size=2 * 9, max_size=2 * 9))
def test_any_bytes_on_the_command_pipe_are_carried_out_or_answered_or_end_the_worker(
    data: bytes, control: list[int]
) -> None:
    """Whatever stands in shared memory, too: other workers may write there."""
    commands, command_fd = os.pipe()
    bell, bell_fd = os.pipe()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = Worker(theirs, commands, bell_fd, check({**START, "simulator": "standins:Walker"}, "start"))
        fields = arena_fields(Spec.from_json(wire.receive(ours)["specs"][0]), VectorConfig(num_envs=2, max_chunk=4))
        layout = Layout.plan(2, fields)
        fd = os.memfd_create("arena")
        os.ftruncate(fd, layout.size)
        worker.attach(os.dup(fd), check({**EXAMPLES["plan"], "layout": layout.to_json(), "rows": 2}, "plan"))
        arena = Arena(layout, fd)
        for row in range(2):
            arena.words("control", row)[: w.STEPS + 1] = memoryview(
                struct.pack("9i", *control[9 * row : 9 * row + 9])
            ).cast("i")
        os.write(command_fd, data)
        os.close(command_fd)
        try:
            ends_in_peace(worker.run)
        finally:
            gc.unfreeze()  # what a worker keeps for good, this process does not
            for one in (commands, bell, bell_fd, fd):
                os.close(one)
