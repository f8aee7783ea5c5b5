"""The wire: values come back as they were, with their types."""

from __future__ import annotations

import enum
import math
import socket
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
