"""A worker that dies after its rows have finished, while others are still at it: the rows are aborted as any others."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyarms
from manyarms import EpisodeId
from manyarms.errors import WorkerDied
from manyarms.vector.groups import LIVE

MODES = ["next_step", "same_step", "disabled"]

#: Simulator, settings: rows by themselves, several rows to a worker, groups in lock-step.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "one row": ("standins:Held", {"num_envs": 2}),
    "shared worker": ("standins:Held", {"num_envs": 4, "rows_per_worker": 2}),
    "lock-step": ("standins:HeldHerd", {"num_envs": 4, "rows_per_worker": 2}),
    "lock-step, reset as one": ("standins:HeldHerd", {"num_envs": 4, "rows_per_worker": 2, "partial_reset": False}),
}


@contextlib.contextmanager
def first_worker_killed_once_done(envs: manyarms.VectorEnv, folder: Path) -> Iterator[None]:
    """Hold the last worker up until the first has finished its rows, was killed, and was found dead."""
    rows = envs.num_envs // len(envs.worker_pids)
    victim, known, hold = envs.worker_pids[0], len(envs.failures), folder / f"hold-{len(envs.worker_pids) - 1}"

    def at_work() -> set[int]:
        return {state.row for state in envs.row_states() if state.state in ("stepping", "resetting")}

    def act() -> None:
        wait_until(lambda: envs.num_envs - 1 in at_work() and not at_work() & set(range(rows)))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(envs.failures) > known)
        hold.unlink()

    hold.touch()
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def wait_until(said: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not said() and time.monotonic() < deadline:
        time.sleep(0.002)


def make(shape: str, folder: Path, **settings: Any) -> manyarms.VectorEnv:
    simulator, own = SHAPES[shape]
    return manyarms.make_vec(simulator, folder=str(folder), **{**own, **settings})


def still(envs: manyarms.VectorEnv, length: int | None = None) -> np.ndarray:
    shape = envs.action_space.shape
    assert shape is not None
    return np.zeros(shape if length is None else (shape[0], length, *shape[1:]), np.float32)


def first_half(envs: manyarms.VectorEnv) -> list[bool]:
    return [row < envs.num_envs // 2 for row in range(envs.num_envs)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_that_dies_after_its_own_reset_is_aborted_at_the_next_step(shape: str, mode: str, tmp_path: Path) -> None:
    with make(shape, tmp_path, autoreset_mode=mode) as envs:
        with first_worker_killed_once_done(envs, tmp_path):
            envs.reset(seed=20)
        _, rewards, terminated, truncated, infos = envs.step(still(envs))
        assert infos["aborted"].tolist() == truncated.tolist() == first_half(envs)
        assert not terminated[0]
        assert rewards[0] == 0.0
        assert "SIGKILL" in infos["failure"][0]
        assert "seed 20" in infos["failure"][0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_that_dies_after_its_own_reset_is_aborted_at_the_next_chunk(
    shape: str, mode: str, tmp_path: Path
) -> None:
    with make(shape, tmp_path, autoreset_mode=mode) as envs:
        with first_worker_killed_once_done(envs, tmp_path):
            envs.reset(seed=20)
        chunk = envs.step_chunk(still(envs, 2))
        assert chunk.aborted.tolist() == first_half(envs)
        assert "SIGKILL" in chunk.infos["failure"][0]
        assert "seed 20" in chunk.infos["failure"][0]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_that_dies_after_its_own_reset_is_aborted_when_sent_on(shape: str, tmp_path: Path) -> None:
    with make(shape, tmp_path) as envs:
        rows = range(envs.num_envs)
        with first_worker_killed_once_done(envs, tmp_path):
            envs.begin(rows, [EpisodeId(seed=20 + row) for row in rows])
            began = envs.recv(min_rows=envs.num_envs)
        assert not began.aborted.any(), "what it had finished counts"
        envs.send(rows, still(envs, 2))
        chunk = envs.recv(min_rows=envs.num_envs)
        assert chunk.aborted.tolist() == first_half(envs)
        assert "SIGKILL" in chunk.infos["failure"][0]
        assert "seed 20" in chunk.infos["failure"][0]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_that_dies_after_it_began_anew_by_itself_is_aborted(shape: str, tmp_path: Path) -> None:
    """In the step that, after an episode's end, only begins the next."""
    with make(shape, tmp_path, autoreset_mode="next_step", max_episode_steps=1) as envs:
        envs.reset(seed=20)
        assert envs.step(still(envs))[3].all()
        with first_worker_killed_once_done(envs, tmp_path):
            envs.step(still(envs))
        assert envs.step(still(envs))[4]["aborted"].tolist() == first_half(envs)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_that_dies_in_the_step_that_began_its_next_episode_is_aborted(shape: str, tmp_path: Path) -> None:
    with make(shape, tmp_path, autoreset_mode="same_step", max_episode_steps=1) as envs:
        envs.reset(seed=20)
        with first_worker_killed_once_done(envs, tmp_path):
            assert envs.step(still(envs))[3].all()
        assert envs.step(still(envs))[4]["aborted"].tolist() == first_half(envs)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_that_dies_after_its_episodes_end_begins_the_next_from_a_seed(shape: str, tmp_path: Path) -> None:
    """Its result was there, so nothing is lost; but the random numbers of its worker are gone."""
    began = []
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with make(shape, folder, autoreset_mode="next_step", max_episode_steps=2) as envs:
            envs.reset(seed=20)
            envs.step(still(envs))
            with first_worker_killed_once_done(envs, folder):
                *_, truncated, infos = envs.step(still(envs))
            assert truncated.all()
            assert "aborted" not in infos
            observations, rewards, _, truncated, infos = envs.step(still(envs))
            assert not rewards.any()
            assert not truncated.any()
            assert "aborted" not in infos
            began.append(next(iter(observations.values())).tolist())
    assert began[0] == began[1]


def test_a_worker_that_dies_while_the_reset_of_another_is_repeated_is_told(tmp_path: Path) -> None:
    with manyarms.make_vec("standins:Held", 3, folder=str(tmp_path)) as envs:
        hold, pids = tmp_path / "hold-2", envs.worker_pids

        def kill(worker: int, failures: int) -> None:
            wait_until(lambda: [s.row for s in envs.row_states() if s.state == "resetting"] == [2])
            os.kill(pids[worker], signal.SIGKILL)
            wait_until(lambda: len(envs.failures) == failures)

        def act() -> None:
            kill(2, failures=1)  # in its first reset
            kill(0, failures=2)  # while that is repeated
            hold.unlink()

        hold.touch()
        thread = threading.Thread(target=act)
        thread.start()
        envs.reset(seed=20)
        thread.join()
        assert envs.step(still(envs))[4]["aborted"].tolist() == [True, False, False]


def test_the_state_of_an_episode_that_is_lost_cannot_be_saved(tmp_path: Path) -> None:
    with make("one row", tmp_path) as envs:
        with first_worker_killed_once_done(envs, tmp_path):
            envs.reset(seed=20)
        with pytest.raises(WorkerDied, match="seed 20"):
            envs.save_state()
        assert len(envs.save_state([1])) == 1


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_worker_that_was_never_reset_refuses_to_step(shape: str, mode: str, tmp_path: Path) -> None:
    with make(shape, tmp_path, autoreset_mode=mode) as envs:
        envs._engine.state[:] = LIVE  # what the main side must never believe
        *_, infos = envs.step(still(envs))
        assert infos["aborted"].all()
        assert "NotLive" in infos["failure"][0]


def test_a_worker_is_not_recycled_while_a_neighbour_is_being_reset(tmp_path: Path) -> None:
    """Rows 0 and 1 share a worker, and an episode that ends makes it due."""
    settings = {"rows_per_worker": 2, "recycle_after": 1, "autoreset_mode": "next_step", "max_episode_steps": 2}
    with manyarms.make_vec("standins:Held", 2, folder=str(tmp_path), reset_timeout=2.0, **settings) as envs:
        envs.begin([0, 1], EpisodeId(seed=1))
        envs.recv(min_rows=2)
        envs.send([0], np.zeros((1, 2, 2), np.float32))
        assert envs.recv().truncated.all()
        envs.reset(seed=5)
        assert envs.failures == []
        assert envs.step(np.zeros((2, 2), np.float32))[1].all()
