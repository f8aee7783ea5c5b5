"""What arrives is a message of its kind, or unreadable; nothing else can come of it."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_wire import JSON, VALUES

from manyarms.simulators.base import Field, Spec, Task
from manyarms.vector.spaces import check_spaces
from manyarms.workers import wire
from manyarms.workers.messages import FIELDS, check, check_from_worker, check_reply

EXAMPLES: dict[str, dict[str, Any]] = {
    "hello": {"kind": "hello", "protocol": wire.PROTOCOL, "python": "3.8", "numpy": None, "message": "none here"},
    "spec": {
        "kind": "spec",
        "lockstep": False,
        "specs": [
            Spec(
                {"image": Field((2, 3), "uint8", 0, 255, camera="front"), "objects": Field((4,), ragged=True)},
                {"": Field((2,), "float32", [-1.0, -2.0], [1.0, 2.0])},
                infos={"contacts": Field((), "int32")},
                tasks=(Task("open", ("open it",)),),
            ).to_json()
        ],
    },
    "attached": {"kind": "attached"},
    "failed": wire.describe_error(ValueError("no scene"), "start"),
    "start": {
        "simulator": "a/b",
        "options": {"x": 1},
        "search_path": ["/a"],
        "rows": 1,
        "rename": {"a": "b"},
        "cpus": [0],
        "max_episode_steps": None,
    },
    "plan": {
        "layout": {},
        "rename": {},
        "max_episode_steps": 3,
        "profile": False,
        "stay_awake": 0.0,
        "first_row": 0,
        "rows": 1,
    },
    "reset": {"task": None, "seed": 3, "init_state": None, "options": None},
    "call": {"method": "render", "args": (), "kwargs": {}},
    "build": {"simulator": "a/b", "options": {}, "search_path": []},
    "prepared": {"ready": True},
    "fork": {"env": {"A": "b"}, "name": "arm-1"},
    "forked": {"pid": 12},
    "reap": {"reap": 12},
}


@pytest.mark.parametrize("kind", FIELDS)
def test_every_kind_of_message_passes_as_it_is_sent(kind: str) -> None:
    assert check(wire.decode(wire.encode(EXAMPLES[kind])), kind) == EXAMPLES[kind]


@given(st.sampled_from(list(FIELDS)), st.one_of(VALUES, JSON))
def test_any_value_is_a_message_or_unreadable(kind: str, value: Any) -> None:
    for call in (
        lambda: check(value, kind),
        lambda: check_from_worker(value, (kind,)),
        lambda: check_reply(value, True),
    ):
        with contextlib.suppress(wire.Unreadable):
            call()


@given(st.sampled_from(list(FIELDS)), st.data())
def test_a_message_with_parts_replaced_is_one_still_or_unreadable(kind: str, data: st.DataObject) -> None:
    """What passes as a spec can be made into spaces."""
    message = copy.deepcopy(EXAMPLES[kind])
    part: Any = message
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(part[key], dict | list) or not part[key] or data.draw(st.booleans()):
            break
        part = part[key]
    part[key] = data.draw(st.one_of(VALUES, JSON, st.sampled_from(["O", "f8", "discrete", [1 << 40], -1, None])))
    with contextlib.suppress(wire.Unreadable):
        check(message, kind)
        for spec in message["specs"] if kind == "spec" else []:
            check_spaces(spec)
