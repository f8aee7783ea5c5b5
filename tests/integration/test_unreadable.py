"""Whatever bytes a worker sends, or leaves in shared memory, cost that worker and its episode, never the run."""

from __future__ import annotations

import struct
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyarms
from manyarms import EpisodeId
from manyarms.errors import StartError, WorkerDied
from manyarms.workers import wire
from manyarms.workers import words as w


def framed(data: bytes) -> bytes:
    return b"arms" + struct.pack("<I", len(data)) + data


def texted(text: bytes, blobs: bytes = b"") -> bytes:
    return framed(struct.pack("<I", len(text)) + text + blobs)


HELLO = {"kind": "hello", "protocol": wire.PROTOCOL, "python": "3.11", "numpy": "2", "message": ""}
FIELD = {"shape": [1], "dtype": "f4", "low": None, "high": None, "space": "box", "camera": None, "ragged": False}
SPEC = {
    "observations": {"": FIELD},
    "actions": {"": FIELD},
    "infos": {},
    "control_rate": None,
    "horizon": None,
    "tasks": [],
    "can_save": False,
    "partial_reset": True,
}


def spec(**changes: Any) -> bytes:
    return wire.frame({"kind": "spec", "specs": [{**SPEC, **changes}], "lockstep": False})


GARBAGE = {
    "text": b"Traceback (most recent call last):\n",
    "binary": b"\xff\x00" * 50,
    "a head of four gigabytes": b"arms\xff\xff\xff\xff",
    "no json": texted(b"{"),
    "nested": texted(b"[" * 50_000),
    "no dict": wire.frame([1, 2]),
    "no kind": wire.frame({"a": 1}),
    "a kind that is a list": wire.frame({"kind": ["hello"]}),
    "a kind of another phase": wire.frame({"kind": "attached"}),
    "a hello without fields": wire.frame({"kind": "hello", "protocol": wire.PROTOCOL}),
    "a protocol that is text": wire.frame({**HELLO, "protocol": "1"}),
    "an array larger than its bytes": texted(b'{"~a":["<f8",[0,0],[1099511627776]]}'),
    "a dtype that is none": texted(b'{"kind":{"~a":["spam",[0,0],[0]]}}'),
    "two messages": wire.frame(HELLO) + wire.frame(HELLO),
}
BAD_SPECS = {
    "a dtype of objects": spec(observations={"": {**FIELD, "dtype": "O"}}),
    "a shape of text": spec(observations={"": {**FIELD, "shape": ["a"]}}),
    "a shape of terabytes": spec(observations={"": {**FIELD, "shape": [1 << 30, 1 << 30]}}),
    "a negative shape": spec(observations={"": {**FIELD, "shape": [-1]}}),
    "no observations": spec(observations={}),
    "a missing field": wire.frame({"kind": "spec", "specs": [{}], "lockstep": False}),
    "bounds of another shape": spec(actions={"": {**FIELD, "low": [0.0, 1.0, 2.0]}}),
    "too many specs": wire.frame({"kind": "spec", "specs": [SPEC] * 3, "lockstep": False}),
    "a failure without fields": wire.frame({"kind": "failed"}),
    "text": b"loading scene 12 of 40\n",
}


def impostor(folder: Path, sends: bytes, after: bytes | None = None) -> str:
    """Write an interpreter whose workers send these bytes, and others when they have been answered."""
    path = folder / "python"
    path.write_text(
        textwrap.dedent(f"""\
            #!/usr/bin/env python3
            import socket, sys, time
            print("these were my last words", flush=True)
            sock = socket.socket(fileno=int(sys.argv[-5]))
            sock.sendall({sends!r})
            after = {after!r}
            if after is not None:
                sock.recv(1)
                sock.sendall(after)
            time.sleep(600)
            """)
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("sends", GARBAGE.values(), ids=list(GARBAGE))
def test_garbage_instead_of_a_hello_is_a_start_error_with_the_log(sends: bytes, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"worker 0 \(standins:Walker\) gave an answer that cannot be read") as caught:
        manyarms.make_vec("standins:Walker", 1, python=impostor(tmp_path, sends))
    assert "these were my last words" in str(caught.value)


@pytest.mark.parametrize("sends", BAD_SPECS.values(), ids=list(BAD_SPECS))
def test_garbage_instead_of_a_spec_is_a_start_error_with_the_log(sends: bytes, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"worker 0 \(standins:Walker\) gave an answer that cannot be read") as caught:
        manyarms.make_vec("standins:Walker", 1, python=impostor(tmp_path, wire.frame(HELLO), sends))
    assert "these were my last words" in str(caught.value)


@pytest.mark.parametrize("sends", [b"ar", wire.frame(HELLO)[:-1]], ids=["half a head", "half a hello"])
def test_half_a_message_is_waited_for_as_long_as_a_start_may_take(sends: bytes, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"did not start within 0\.5 s"):
        manyarms.make_vec("standins:Walker", 1, python=impostor(tmp_path, sends), start_timeout=0.5)


def test_a_message_that_trickles_in_does_not_outlast_the_time_for_a_start(tmp_path: Path) -> None:
    path = Path(impostor(tmp_path, b""))
    path.write_text(
        textwrap.dedent("""\
            #!/usr/bin/env python3
            import socket, sys, time
            sock = socket.socket(fileno=int(sys.argv[-5]))
            for byte in b"arms" + bytes([0, 0, 0, 1]) + bytes(100000):
                sock.send(bytes([byte]))
                time.sleep(0.001)
            """)
    )
    with pytest.raises(StartError, match=r"did not start within 0\.5 s"):
        manyarms.make_vec("standins:Walker", 1, python=str(path), start_timeout=0.5)


@pytest.mark.parametrize("sends", GARBAGE.values(), ids=list(GARBAGE))
def test_garbage_while_starting_again_costs_one_more_start(sends: bytes, tmp_path: Path) -> None:
    """The others go on meanwhile, and never notice."""
    orders = tmp_path / "orders"
    with manyarms.make_vec("standins:Babbling", 2, orders=str(orders), start_timeout=60) as envs:
        envs.begin([0, 1], [EpisodeId(seed=5), EpisodeId(seed=6)])
        envs.recv(min_rows=2)
        orders.write_bytes(sends)
        chunk = send(envs, [1, 0])
        assert chunk.aborted.tolist() == [True, False]
        envs.begin([0], EpisodeId(seed=5))
        assert send(envs, [0], rows=[1]).num_steps.tolist() == [1]
        while 0 not in envs.recv().rows:
            send(envs, [0], rows=[1])
        assert send(envs, [0, 0]).num_steps.tolist() == [1, 1]
        assert "SIGKILL" in str(envs.failures[0])
        assert "cannot be read" in str(envs.failures[1])
        assert len(envs.failures) == 2


def send(envs: manyarms.VectorEnv, orders: list[int], rows: list[int] | None = None) -> manyarms.Chunk:
    rows = list(range(len(orders))) if rows is None else rows
    envs.send(rows, np.array(orders, np.float32).reshape(-1, 1, 1))
    chunk = envs.recv(min_rows=len(rows))
    while not set(rows) <= set(chunk.rows.tolist()):
        chunk = envs.recv()
    return chunk


REPLIES = {
    "text": b"half way there\n",
    "binary": b"\x00" * 40,
    "a head of four gigabytes": b"arms\xff\xff\xff\xff",
    "no dict": wire.frame(3),
    "an empty reply": wire.frame({}),
    "no result": wire.frame({"info": {}}),
    "an unknown part": wire.frame({"spam": 1}),
    "an info that is none": wire.frame({"info": 3, "result": 0}),
    "an error that is none": wire.frame({"error": "it failed"}),
    "an error without fields": wire.frame({"error": {"phase": "step"}}),
    "a number of steps that is text": wire.frame({"error": {"phase": 1, "type": None}}),
}


#: These are wrong for a call only.
_OF_CALLS = ("no result",)


@pytest.mark.parametrize("what", REPLIES)
def test_garbage_instead_of_a_result_costs_the_worker(what: str) -> None:
    with manyarms.make_vec("standins:Scribbler", 2) as envs:
        envs.reset(seed=5)
        with pytest.raises(WorkerDied, match="cannot be read"):
            envs.call("say", REPLIES[what])
        envs.reset(seed=5)
        assert envs.step(np.zeros((2, 1), np.float32))[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("what", [what for what in REPLIES if what not in _OF_CALLS])
def test_garbage_instead_of_a_reply_costs_the_worker(what: str) -> None:
    with manyarms.make_vec("standins:Scribbler", 2) as envs:
        envs.reset(seed=5)
        envs.set_attr("after", [REPLIES[what], b""])
        chunk = envs.step_chunk(np.zeros((2, 1, 1), np.float32))
        assert chunk.aborted.tolist() == [True, False]
        assert "seed 5" in chunk.infos["failure"][0]
        assert "cannot be read" in chunk.infos["failure"][0]
        envs.reset(seed=5)
        assert envs.step(np.zeros((2, 1), np.float32))[1].tolist() == [1.0, 1.0]


STATUSES = {
    "steps that were not sent": {w.NUM_STEPS: 7},
    "fewer than no steps": {w.NUM_STEPS: -1},
    "an info larger than its area": {w.INFO_BYTES: 1 << 30},
    "an info of less than nothing": {w.INFO_BYTES: -5},
    "an info that is not there": {w.INFO_BYTES: 300},
    "a last info larger than its area": {w.FINAL_BYTES: 1 << 30},
    "a last info that is not there": {w.FINAL_BYTES: 100},
    "more frames than there is room for": {w.FRAMES: 1000},
    "words of no meaning": {w.STATUS_WORDS - 1: 3},
}


@pytest.mark.parametrize("how", ["step", "chunk", "recv"])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("status", STATUSES.values(), ids=list(STATUSES))
def test_a_status_that_cannot_be_costs_the_worker(status: dict[int, int], mode: str, how: str) -> None:
    with manyarms.make_vec("standins:Scribbler", 2, autoreset_mode=mode) as envs:
        actions = np.zeros((2, 1, 1), np.float32)
        if how == "recv":
            envs.begin([0, 1], [EpisodeId(seed=5), EpisodeId(seed=6)])
            envs.recv(min_rows=2)
        else:
            envs.reset(seed=5)
        envs.set_attr("status", [status, {}])
        if how == "step":
            *_, truncated, infos = envs.step(actions[:, 0])
            aborted = truncated.tolist()
        else:
            if how == "recv":
                envs.send([0, 1], actions)
            chunk = envs.step_chunk(actions) if how == "chunk" else envs.recv(min_rows=2)
            aborted, infos = chunk.aborted.tolist(), chunk.infos
            assert chunk.num_steps.tolist() == [0, 1]
        assert aborted == [True, False]
        assert "cannot be read" in infos["failure"][0]
        assert "seed 5" in infos["failure"][0]
        envs.reset(seed=5)
        assert envs.step(actions[:, 0])[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "info", [b"\xff" * 40, b"\x05\x00\x00\x00[1,2]", b"\x02\x00\x00\x00{}junk", b"\x01\x00\x00\x003"]
)
def test_an_info_that_cannot_be_read_costs_the_worker(info: bytes) -> None:
    with manyarms.make_vec("standins:Scribbler", 3) as envs:
        envs.reset(seed=5)
        envs.set_attr("info_bytes", [info, b"", b""])
        chunk = envs.step_chunk(np.zeros((3, 1, 1), np.float32))
        assert chunk.aborted.tolist() == [True, False, False]
        assert chunk.rewards.tolist() == [[0.0], [1.0], [1.0]]
        envs.reset(seed=5)
        assert envs.step(np.zeros((3, 1), np.float32))[1].tolist() == [1.0] * 3


def test_neighbours_of_a_row_whose_info_cannot_be_read_are_told_at_the_next_step() -> None:
    """Their worker was ended with it, after they had finished."""
    with manyarms.make_vec("standins:Scribbler", 4, rows_per_worker=2) as envs:
        envs.reset(seed=5)
        envs.set_attr("info_bytes", [b"\xff" * 40, b"", b"", b""])
        actions = np.zeros((4, 1, 1), np.float32)
        assert envs.step_chunk(actions).aborted.tolist() == [True, False, False, False]
        chunk = envs.step_chunk(actions)
        assert chunk.aborted.tolist() == [False, True, False, False]
        assert chunk.rewards[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_an_info_of_a_reset_that_cannot_be_read_has_it_begun_again(tmp_path: Path) -> None:
    once = tmp_path / "once"
    with manyarms.make_vec("standins:Scribbler", 2, once=str(once)) as envs:
        once.touch()
        _, infos = envs.reset(seed=5)
        assert infos["seed"].tolist() == [5, 6]
        assert "cannot be read" in str(envs.failures[0])
        assert envs.step(np.zeros((2, 1), np.float32))[1].tolist() == [1.0, 1.0]


def test_infos_that_no_array_holds_together_come_as_objects() -> None:
    with manyarms.make_vec("standins:Scribbler", 4) as envs:
        envs.reset(seed=5)
        own = [{"x": 1, "y": 2}, {"x": "one", "y": 3}, {"x": {"deep": 2}}, {"x": np.zeros(3), "y": 4}]
        envs.set_attr("own", own)
        infos = envs.step(np.zeros((4, 1), np.float32))[4]
        assert infos["x"][:3].tolist() == [1, "one", {"deep": 2}]
        assert infos["x"][3].tolist() == [0.0] * 3
        assert infos["y"][[0, 1, 3]].tolist() == [2, 3, 4]
        assert infos["_y"].tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    "junk", [{"rings_for": 1}, {"rings_for": 1 << 31}, {"bell": b"\xff" * 8}, {"bell": b"\xff" * 5}]
)
def test_bytes_on_the_bell_pass_no_row_off_as_done(junk: dict[str, Any]) -> None:
    """Row 0 rings for row 1, which is slower."""
    with manyarms.make_vec("standins:Scribbler", 2) as envs:
        envs.reset(seed=5)
        actions = np.zeros((2, 1), np.float32)
        envs.step(actions)
        for name, value in junk.items():
            envs.set_attr(name, [value, -1 if name == "rings_for" else b""])
        envs.set_attr("nap", [0.0, 0.2])
        for _ in range(3):
            observations, rewards, *_ = envs.step(actions)
            assert rewards.tolist() == [1.0, 1.0]
            assert observations[0, 0] == observations[1, 0], "each row must have taken as many steps"
        assert envs.failures == []
