"""The wire: values come back as they were, with their types."""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import math
import socket
import struct
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manyarms.workers import wire

ARRAYS = hnp.arrays(
    st.sampled_from([np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64]),
    hnp.array_shapes(min_dims=0, max_dims=3),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    ARRAYS,
    st.floats(width=32).map(np.float32),
    st.text(alphabet="ab", max_size=2).map(np.str_),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
        st.dictionaries(st.integers(), inner, max_size=2),
    ),
    max_leaves=8,
)

#: Plain JSON in which our tags turn up, with bodies like theirs and unlike them.
NUMBERS = st.one_of(st.integers(-2, 50), st.integers(), st.booleans(), st.floats())
DTYPES = st.one_of(st.sampled_from(["<f8", "|u1", "<U3", "<U0", "|O", "|V4", "i4,f8", "<M8[ns]", "", "f"]), st.text())
BODIES = st.tuples(DTYPES, st.lists(NUMBERS, max_size=3), st.lists(NUMBERS, max_size=3)).map(list)
JSON = st.recursive(
    st.one_of(st.none(), NUMBERS, st.text(max_size=4), BODIES, BODIES.map(lambda body: body[:2])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["~a", "~b", "~d", "~n", "~t"]), st.text(max_size=2)), inner, max_size=2
        ),
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    """Equal, of the same type, with NaN equal to itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (float, np.floating)) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


@given(VALUES)
def test_values_come_back_with_their_types(value: Any) -> None:
    assert same(wire.decode(wire.encode(value)), value)


@given(st.lists(VALUES, max_size=3))
def test_frames_follow_each_other_on_a_socket(values: list[Any]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"".join(map(wire.frame, values)))
        for value in values:
            assert same(wire.receive(theirs), value)


def test_what_cannot_travel_is_told_instead() -> None:
    class Colour(enum.IntEnum):
        RED = 3

    class Opaque:
        def __repr__(self) -> str:
            return "<opaque>"

    sent = {"object": Opaque(), "enum": Colour.RED, "objects": np.array([Opaque()], dtype=object), "set": {1}}
    got = wire.decode(wire.encode(sent))
    assert got["object"] == "<opaque>"
    assert got["enum"] == 3
    assert "<opaque>" in got["objects"]
    assert got["set"] == "{1}"


def test_keys_that_look_like_tags_survive() -> None:
    value = {"~a": [1], "~t": {"~n": 2}}
    assert wire.decode(wire.encode(value)) == value


def test_a_closed_socket_is_an_error_not_a_hang() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(wire.frame({"a": 1})[:-1])
    ours.close()
    with theirs, pytest.raises(wire.Disconnected):
        wire.receive(theirs)


def test_empty_arrays_come_back_with_their_shape() -> None:
    for value in (np.zeros((0, 3), np.float32), np.zeros((2, 0), "<U3"), np.array(5.0), np.array("")):
        assert same(wire.decode(wire.encode(value)), value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_unreadable(data: bytes) -> None:
    with contextlib.suppress(wire.Unreadable):
        wire.decode(data)


@given(JSON, st.binary(max_size=40))
def test_any_text_before_any_bytes_is_a_value_or_unreadable(value: Any, blobs: bytes) -> None:
    """Well-formed JSON that uses our tags for anything."""
    text = json.dumps(value).encode()
    with contextlib.suppress(wire.Unreadable):
        wire.decode(struct.pack("<I", len(text)) + text + blobs)


@given(VALUES, st.data())
def test_a_message_with_bytes_changed_is_a_value_or_unreadable(value: Any, data: st.DataObject) -> None:
    sent = bytearray(wire.encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sent) - 1))
        if data.draw(st.booleans()):
            sent[at] = data.draw(st.integers(0, 255))
        else:
            del sent[at : at + data.draw(st.integers(1, 4))]
        if not sent:
            break
    with contextlib.suppress(wire.Unreadable):
        wire.decode(sent)


@given(st.binary(max_size=60), st.booleans(), st.integers(0, 3))
def test_any_bytes_on_a_socket_are_a_value_unreadable_or_an_end(data: bytes, framed: bool, lie: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall((b"arms" + struct.pack("<I", len(data) + lie) if framed else b"") + data)
        ours.shutdown(socket.SHUT_WR)
        with contextlib.suppress(wire.Unreadable, wire.Disconnected):
            wire.receive(theirs)


BOMBS = {
    "nested lists": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "closed nested lists": b"[" * 3000 + b"]" * 3000,
    "lists nested a little too deep": b"[" * 101 + b"]" * 101,
    "an array larger than its bytes": b'{"~a":["<f8",[0,0],[1099511627776]]}',
    "an array without bytes": b'{"~a":["<U0",[0,0],[1099511627776]]}',
    "an empty array of great extent": b'{"~a":["<f8",[0,0],[0,9223372036854775807]]}',
    "a negative shape": b'{"~a":["|u1",[0,0],[-1,-1]]}',
    "many dimensions": b'{"~a":["|u1",[0,0],[' + b"0," * 500 + b"0]]}",
    "bytes beyond the end": b'{"~b":[0,4294967295]}',
    "bytes before the beginning": b'{"~b":[-1,1]}',
    "objects": b'{"~a":["|O",[0,0],[0]]}',
    "records": b'{"~a":["i4,f8",[0,0],[0]]}',
    "a sub-array": b'{"~a":["(3,)f8",[0,0],[0]]}',
    "a long number": b"9" * 100_000,
    "a key that cannot be one": b'{"~d":[[{"a":1},1]]}',
    "a true offset": b'{"~b":[false,false]}',
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=list(BOMBS))
def test_what_would_take_much_is_unreadable_at_little_cost(text: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(wire.Unreadable):
            wire.decode(struct.pack("<I", len(text)) + text)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(text) + 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [4, 2], ids=["all of them", "half of them, which comes to as many as there are"])
def test_bytes_named_twice_are_unreadable(size: int) -> None:
    """Else a short text could ask for the same megabytes again and again."""
    text = b'[{"~b":[0,%d]},{"~b":[0,%d]}]' % (size, size)
    with pytest.raises(wire.Unreadable, match="not where they should be"):
        wire.decode(struct.pack("<I", len(text)) + text + b"1234")


def test_bytes_that_nothing_names_are_unreadable() -> None:
    with pytest.raises(wire.Unreadable, match="bytes that nothing names"):
        wire.decode(wire.encode({"a": b"12"}) + b"3")


def test_a_head_that_promises_gigabytes_is_refused_before_they_come() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"arms" + struct.pack("<I", 0xFFFFFFFF))
        with pytest.raises(wire.Unreadable):
            wire.receive(theirs)


@pytest.mark.parametrize("value", ["x" * (wire.MOST_TEXT + 1), functools.reduce(lambda v, _: [v], range(200), 0)])
def test_what_the_other_side_would_refuse_is_not_sent(value: Any) -> None:
    with pytest.raises(ValueError, match="too"):
        wire.encode(value)


def test_half_a_frame_is_waited_for_no_longer_than_allowed() -> None:
    """However slowly the rest trickles in."""
    ours, theirs = socket.socketpair()
    frame = wire.frame({"a": b"1" * 500})
    stop = threading.Event()

    def trickle() -> None:
        for byte in frame[:-1]:
            if stop.wait(0.01):
                return
            ours.send(bytes([byte]))

    with ours, theirs:
        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            with pytest.raises(TimeoutError):
                wire.receive(theirs, seconds=0.2)
        finally:
            stop.set()
            thread.join()
