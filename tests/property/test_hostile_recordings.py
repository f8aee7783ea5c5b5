"""Recordings that somebody else has written: an episode is as its simulator's spec says, or refused in words."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_wire import VALUES

import manyarms
from manyarms.errors import ConfigError, ManyarmsError
from manyarms.policies import make_policy
from manyarms.reporting.recording import Recording
from manyarms.workers.wire import encode
from today import DATA

IDENTITY: dict[str, Any] = {"task": "reach_target", "seed": 3, "init_state": None, "index": 0}

with np.load(DATA / "recording" / "episodes" / "000000.npz") as _file:
    ARRAYS: dict[str, np.ndarray] = dict(_file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a recording of two episodes, of which tests spoil the first."""
    return Path(shutil.copytree(DATA / "recording", tmp_path / "recording"))


def npy(array: np.ndarray) -> bytes:
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue()


def claiming(shape: object, dtype: str = "<f8", data: bytes = b"") -> bytes:
    """Return a file that says it holds an array."""
    return headed(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".encode(), data)


def headed(text: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + data


def spoil(folder: Path, changes: dict[str, bytes | None]) -> None:
    """Write the first episode with other arrays in it; None: without it."""
    members = {name: npy(array) for name, array in ARRAYS.items()} | changes
    with zipfile.ZipFile(folder / "episodes" / "000000.npz", "w") as file:
        for name, data in members.items():
            if data is not None:
                file.writestr(f"{name}.npy", data)


def read(folder: Path) -> None:
    """Read all that a recording tells; its episodes must be as its spec says."""
    recording = Recording(folder)
    with suppress(ConfigError):
        str(recording)
        recording.plot()
    for episode in recording:
        assert episode.rewards.shape == (len(episode),)
        fields = recording.spec.layout()
        assert {name: array.shape for name, array in episode.observations.items()} == {
            name: (len(episode) + 1, *field.shape) for name, field in fields.items()
        }


def identified(*what: Any) -> dict[str, bytes | None]:
    return {"identity": npy(np.frombuffer(encode(list(what)), np.uint8))}


SPOILT: dict[str, dict[str, bytes | None]] = {
    "petabytes of rewards": {"rewards": claiming((1 << 50,))},
    "petabytes of actions": {"action:": claiming((1 << 50, 8))},
    "less than no rewards": {"rewards": claiming((-5,))},
    "a head without end": {"rewards": headed(b"(" * 5000)},
    "a head that calls": {"rewards": headed(b"__import__('os').mkdir('ran')")},
    "objects": {"rewards": claiming((1,), "|O", bytes(8))},
    "rewards in words": {"rewards": npy(np.array(["a"] * 6))},
    "rewards in dates": {"rewards": npy(np.zeros(6, "M8[ns]"))},
    "rewards in a table": {"rewards": npy(np.zeros((6, 2)))},
    "one reward for all": {"rewards": npy(np.array(1.0))},
    "no rewards": {"rewards": None},
    "no identity": {"identity": None},
    "an identity that is a number": {"identity": npy(np.frombuffer(encode(5), np.uint8))},
    "a task that is a number": identified({**IDENTITY, "task": 5}, "x", True, True, False),
    "a seed that is text": identified({**IDENTITY, "seed": "x"}, "x", True, True, False),
    "a seed below zero": identified({**IDENTITY, "seed": -5}, "x", True, True, False),
    "a repetition that is none": identified({**IDENTITY, "index": None}, "x", True, True, False),
    "an instruction that is a number": identified(IDENTITY, 5, True, True, False),
    "a success that is text": identified(IDENTITY, "x", "yes", True, False),
    "two ends": identified(IDENTITY, "x", True, True),
    "no actions": {"action:": None},
    "fewer actions": {"action:": npy(ARRAYS["action:"][:2])},
    "actions in words": {"action:": npy(np.full(ARRAYS["action:"].shape, "x"))},
    "actions of another robot": {"action:": npy(np.zeros((6, 3)))},
    "actions of nobody": {"action:left": npy(np.zeros((6, 3)))},
    "no observations": {name: None for name in ARRAYS if name.startswith("observation:")},
    "observations of another size": {"observation:gripper_pose": npy(np.zeros((7, 3)))},
    "observations in words": {"observation:gripper_pose": npy(np.full(ARRAYS["observation:gripper_pose"].shape, "x"))},
}


@pytest.mark.parametrize("what", SPOILT)
def test_an_episode_that_cannot_have_been_recorded_is_refused(what: str, folder: Path) -> None:
    spoil(folder, SPOILT[what])
    with pytest.raises(ConfigError, match="episode 0 cannot be read"):
        Recording(folder).load(0)
    with pytest.raises(ConfigError, match="episode 0 cannot be read"):
        manyarms.replay(folder)
    with pytest.raises(ConfigError, match="episode 0 cannot be read"):
        make_policy("replay", Recording(folder).spec, {"recording": str(folder)})
    assert Recording(folder).load(1).rewards.shape == (6,), "the other episode is as it was"


@settings(max_examples=60)
@given(data=st.data())
def test_any_array_is_an_episodes_or_refused_in_words(data: st.DataObject, folder: Path) -> None:
    name = data.draw(st.sampled_from([*ARRAYS, "observation:more", "action:more"]))
    number = st.integers(-3, 8) | st.sampled_from([1 << 40, 1 << 70])
    shape = st.lists(number, max_size=3).map(tuple)
    dtype = st.sampled_from(["<f8", "<f4", "|u1", "<i8", "|b1", "<U3", "|S2", "|O", "<M8[ns]", "<c16", "|V4", "x"])
    change = data.draw(
        st.none()
        | st.builds(claiming, shape, dtype, st.binary(max_size=64))
        | st.binary(max_size=40).map(headed)
        | st.binary(max_size=40)
        | (VALUES | st.lists(VALUES | st.just(IDENTITY), min_size=4, max_size=6)).map(
            lambda value: npy(np.frombuffer(encode(value), np.uint8))
        )
    )
    spoil(folder, {name: change})
    with suppress(ManyarmsError):
        read(folder)


@settings(max_examples=60)
@given(data=st.data())
def test_any_bytes_are_an_episode_or_refused_in_words(data: st.DataObject, folder: Path) -> None:
    file = folder / "episodes" / "000000.npz"
    changed = bytearray((DATA / "recording" / "episodes" / "000000.npz").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(data.draw(st.sampled_from([bytes(changed), bytes(changed[: len(changed) // 2]), b""])))
    with suppress(ManyarmsError):
        read(folder)


def test_only_files_that_are_called_as_episodes_are_episodes(folder: Path) -> None:
    for name in ("12abc.npz", "1.npz", "\u0661\u0662\u0663\u0664\u0665\u0666.npz", "readme.npz"):
        (folder / "episodes" / name).touch()
    assert Recording(folder).positions == [0, 1]


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    (folder / "episodes" / "000000.npz").unlink()
    os.mkfifo(folder / "episodes" / "000000.npz")
    with pytest.raises(ConfigError, match="no such file"):
        Recording(folder).load(0)


def test_a_recording_of_other_sizes_than_its_simulator_shows_is_told_apart(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA / "recording_seen", tmp_path / "recording"))
    head = json.loads((folder / "recording.json").read_text())
    head["options"]["image_size"] = [48, 48]
    (folder / "recording.json").write_text(json.dumps(head))
    found = manyarms.replay(folder)
    assert found.differences == {0: "front_rgb is (48, 48, 3), not (32, 32, 3)", 1: found.differences[0]}
