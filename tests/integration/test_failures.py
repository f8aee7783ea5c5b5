"""A worker that fails is named, with the cause; the main side never hangs and never loses the other rows."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import manyarms
from manyarms import EpisodeId
from manyarms.errors import RowStateError, SimulatorError, WorkerDied, WorkerTimeout
from standins import Misbehaving


def orders(*values: int) -> np.ndarray:
    return np.array([[value] for value in values], np.float32)


def test_an_exception_names_row_seed_phase_and_cause_and_reset_goes_on() -> None:
    with manyarms.make_vec("standins:Misbehaving", 3, on_failure="raise") as envs:
        envs.reset(seed=20)
        with pytest.raises(
            SimulatorError, match=r"row 1, seed 21\) raised ValueError in step: the gripper fell"
        ) as caught:
            envs.step(orders(0, Misbehaving.RAISE, 0))
        assert caught.value.rows == (1,)
        assert "raise ValueError" in caught.value.why
        with pytest.raises(RowStateError, match=r"rows \[1\] have no running episode"):
            envs.step(orders(0, 0, 0))
        envs.reset(seed=20, options={"reset_mask": np.array([False, True, False])})
        assert envs.step(orders(0, 0, 0))[1].tolist() == [1.0, 1.0, 1.0]


def test_errors_of_several_workers_are_all_reported() -> None:
    with manyarms.make_vec("standins:Misbehaving", 4, on_failure="raise") as envs:
        envs.reset(seed=0)
        with pytest.raises(SimulatorError, match=r"2 workers failed \(rows 1, 3\)(.|\n)*row 1(.|\n)*row 3") as caught:
            envs.step(orders(0, Misbehaving.RAISE, 0, Misbehaving.RAISE))
        assert caught.value.rows == (1, 3)


def test_a_wrong_step_result_is_explained() -> None:
    with manyarms.make_vec("standins:Misbehaving", 1, on_failure="raise") as envs:
        envs.reset(seed=0)
        with pytest.raises(SimulatorError, match="unpack"):
            envs.step(orders(Misbehaving.WRONG_RESULT))


def test_a_failing_reset_is_told_as_such() -> None:
    with (
        manyarms.make_vec("standins:Misbehaving", 2, fail_at="reset", on_failure="raise") as envs,
        pytest.raises(SimulatorError, match="RuntimeError in reset: no scene to reset"),
    ):
        envs.reset(seed=0)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Misbehaving.EXIT, r"worker 1 \(standins:Misbehaving, seed 6\) ended with exit code 7"),
        (Misbehaving.CRASH, r"seed 6\) was killed by SIGSEGV(.|\n)*about to crash"),
        (Misbehaving.KILL, r"seed 6\) was killed by SIGKILL(.|\n)*out of memory"),
    ],
)
def test_a_death_names_worker_seed_signal_and_last_words(order: int, message: str) -> None:
    with manyarms.make_vec("standins:Misbehaving", 3, on_failure="raise") as envs:
        envs.reset(seed=5)
        with pytest.raises(WorkerDied, match=message) as caught:
            envs.step(orders(0, order, 0))
        assert caught.value.rows == (1,)


def test_a_worker_killed_between_calls_is_noticed_at_the_next() -> None:
    with manyarms.make_vec("standins:Walker", 3, cameras=[], on_failure="raise") as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[2], signal.SIGKILL)
        time.sleep(0.1)
        with pytest.raises(WorkerDied, match=r"worker 2 \(standins:Walker, seed 2\) was killed by SIGKILL"):
            envs.step(np.zeros((3, 2), np.float32))
        with pytest.raises(RowStateError):
            envs.step(np.zeros((3, 2), np.float32))


def test_a_hanging_worker_is_named_when_a_deadline_is_given() -> None:
    with manyarms.make_vec("standins:Misbehaving", 2, step_timeout=0.5, on_failure="raise") as envs:
        envs.reset(seed=5)
        with pytest.raises(WorkerTimeout, match=r"worker 1 .*seed 6\) did not come back from a step in"):
            envs.step(orders(0, Misbehaving.HANG))
        envs.close(timeout=0.1)


def test_a_call_that_hangs_is_named_as_such() -> None:
    with manyarms.make_vec("standins:Sleeper", 1, naps={"0": 60.0}, reset_timeout=1.0, on_failure="raise") as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerTimeout, match="did not come back from a call"):
            envs.call("step", [0.0])


def test_a_worker_that_will_not_end_is_killed() -> None:
    envs = manyarms.make_vec("standins:Misbehaving", 2)
    envs.begin([0, 1], EpisodeId(seed=0))
    envs.recv(min_rows=2)
    envs.send([0], orders(Misbehaving.HANG)[None])
    pids = envs.worker_pids
    envs.close(timeout=0.2)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_what_workers_print_is_kept_where_asked(tmp_path: Path) -> None:
    with manyarms.make_vec(
        "standins:Misbehaving", 2, noise=True, log_dir=tmp_path / "logs", on_failure="raise"
    ) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerDied, match=r"log: .*worker-1\.log"):
            envs.step(orders(0, Misbehaving.EXIT))
    assert "a simulator that prints a lot" in (tmp_path / "logs/worker-0.log").read_text()


def test_workers_end_when_the_environment_is_forgotten() -> None:
    envs = manyarms.make_vec("standins:Walker", 2)
    pids = envs.worker_pids
    del envs
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
