"""Workers forked from one process that has imported the simulator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import manyarms
from manyarms.vector import nursery
from manyarms.workers import wire
from manyarms.workers.messages import check

IDLE = np.zeros((2, 1), np.float32)
IDLE3 = np.zeros((3, 1), np.float32)


def parents(envs: manyarms.VectorEnv) -> set[int]:
    return {psutil.Process(pid).ppid() for pid in envs.worker_pids}


def test_workers_are_forked_from_one_process_and_lead_groups_of_their_own() -> None:
    with manyarms.make_vec("gym/CartPole-v1", 4) as envs:
        (parent,) = parents(envs)
        assert parent != os.getpid()
        assert psutil.Process(parent).ppid() == os.getpid()
        assert [os.getpgid(pid) for pid in envs.worker_pids] == envs.worker_pids
        assert psutil.Process(envs.worker_pids[3]).name() == "arm-3"
    assert not psutil.pid_exists(parent)


@pytest.mark.parametrize(("simulator", "settings"), [("standins", {"start_method": "spawn"}), ("threaded", {})])
def test_workers_can_start_by_themselves(simulator: str, settings: dict[str, Any]) -> None:
    """When asked to, and where a thread would not survive the fork."""
    with manyarms.make_vec(f"{simulator}:Sleeper", 2, **settings) as envs:
        assert parents(envs) == {os.getpid()}
        envs.reset(seed=0)


def test_one_worker_needs_nobody_to_fork_it() -> None:
    with manyarms.make_vec("gym/CartPole-v1", 4, rows_per_worker=4) as envs:
        assert parents(envs) == {os.getpid()}


def test_forked_workers_draw_different_random_numbers() -> None:
    with manyarms.make_vec("standins:Dice", 3) as envs:
        envs.reset(seed=0)
        for generator in ("python", "numpy"):
            drawn = [values[generator] for values in envs.get_attr("drawn")]
            assert len(set(drawn)) == 3


def test_forked_workers_have_their_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with manyarms.make_vec("standins:Dice", 3, env={"COLOUR": "red"}, egl_device=[4, 7]) as envs:
        assert envs.call("variable", "COLOUR") == ("red",) * 3
        assert envs.call("variable", "MUJOCO_EGL_DEVICE_ID") == ("4", "7", "4")
        assert envs.call("variable", "MANYARMS_WORKER") == ("0", "1", "2")
        assert envs.call("variable", "OMP_NUM_THREADS") == ("1",) * 3


def test_a_worker_that_dies_is_forked_again_and_its_cause_is_known() -> None:
    with manyarms.make_vec("standins:Sleeper", 2) as envs:
        (parent,) = parents(envs)
        envs.reset(seed=0)
        os.kill(envs.worker_pids[1], signal.SIGSEGV)
        envs.step(np.zeros((2, 1), np.float32))
        assert "SIGSEGV" in str(envs.failures[0])
        envs.step(np.zeros((2, 1), np.float32))
        assert parents(envs) == {parent}


def test_a_worker_that_was_replaced_is_no_zombie() -> None:
    with manyarms.make_vec("standins:Sleeper", 2) as envs:
        (parent,) = parents(envs)
        envs.reset(seed=0)
        for _ in range(3):
            os.kill(envs.worker_pids[1], signal.SIGKILL)
            envs.step(IDLE)
            envs.step(IDLE)
        assert len(envs.failures) == 3
        deadline = time.monotonic() + 60
        while len(psutil.Process(parent).children()) > 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert sorted(child.pid for child in psutil.Process(parent).children()) == sorted(envs.worker_pids)


def test_close_leaves_no_zombies_for_others_to_reap() -> None:
    with manyarms.make_vec("standins:Sleeper", 4) as envs:
        workers = envs.worker_pids
    assert [pid for pid in workers if psutil.pid_exists(pid)] == []


def test_workers_outlive_their_nursery() -> None:
    with manyarms.make_vec("standins:Sleeper", 2) as envs:
        (parent,) = parents(envs)
        envs.reset(seed=0)
        os.kill(parent, signal.SIGKILL)
        envs.step(IDLE)
        assert envs.failures == []
        os.kill(envs.worker_pids[0], signal.SIGSEGV)
        envs.step(IDLE)
        assert "exit code is lost" in str(envs.failures[0])
        assert "the nursery that had forked it had been killed by SIGKILL" in str(envs.failures[0])
        envs.step(IDLE)
        assert psutil.Process(envs.worker_pids[0]).ppid() == os.getpid()


def test_what_we_ended_is_told_as_ours_though_its_nursery_is_gone() -> None:
    with manyarms.make_vec("standins:Sleeper", 2, step_timeout=0.4) as envs:
        (parent,) = parents(envs)
        envs.reset(seed=0)
        os.kill(parent, signal.SIGKILL)
        os.kill(envs.worker_pids[0], signal.SIGSTOP)
        envs.step(IDLE)
        (failure,) = envs.failures
        assert "did not come back from a step" in str(failure)
        assert "it is stopped" in str(failure)


def test_nobody_waits_for_a_nursery_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "_PATIENCE", 1e6)
    with manyarms.make_vec("standins:Sleeper", 3) as envs:
        (parent,) = parents(envs)
        envs.reset(seed=0)
        os.kill(parent, signal.SIGSTOP)
        for row, (number, told) in enumerate([(signal.SIGSEGV, "SIGSEGV"), (signal.SIGABRT, "SIGABRT")]):
            os.kill(envs.worker_pids[row], number)
            envs.step(IDLE3)
            assert f"was killed by {told}" in str(envs.failures[row])
            envs.step(IDLE3)
            assert psutil.Process(envs.worker_pids[row]).ppid() == os.getpid()
    assert not psutil.pid_exists(parent)


def test_a_nursery_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nursery, "_PATIENCE", 0.3)
    with manyarms.make_vec("reluctant:Sleeper", 2, env={"RELUCTANT": str(tmp_path / "wait")}) as envs:
        (parent,) = parents(envs)
        envs.reset(seed=0)
        (tmp_path / "wait").touch()
        os.kill(envs.worker_pids[0], signal.SIGSEGV)
        envs.step(IDLE)
        envs.step(IDLE)
        assert psutil.Process(envs.worker_pids[0]).ppid() == os.getpid()
        os.kill(envs.worker_pids[1], signal.SIGSEGV)
        envs.step(IDLE)
        assert "was killed by SIGSEGV" in str(envs.failures[1])
        monkeypatch.undo()  # or its end, too, would be waited for no longer than that
    assert not psutil.pid_exists(parent)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_ctrl_c_in_the_moment_a_process_starts_leaves_none_behind(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manyarms.make_vec("gym/CartPole-v1", 1).close()  # starts the keeper, which stays
    started: list[int] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        manyarms.make_vec("gym/CartPole-v1", 2, start_method=method)
    assert len(started) == 1
    assert not psutil.pid_exists(started[0])


FALSE_NURSERY = """\
#!{python}
import os, socket, sys
if len(sys.argv) > 6:  # a worker that is started by itself
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
sock = socket.socket(fileno=int(sys.argv[-2]))
for answer in {answers!r}:
    sock.recv(1 << 16)
    sock.sendall(answer)
sock.recv(1)
"""
FALSE_ANSWERS = {
    "text": [b"importing, please wait\n"],
    "no dict": [wire.frame([1])],
    "no truth value": [wire.frame({"ready": "yes"})],
    "a head of four gigabytes": [b"arms\xff\xff\xff\xff"],
    "a process that is text": [wire.frame({"ready": True}), wire.frame({"pid": "12"})],
    "a process that cannot be": [wire.frame({"ready": True}), wire.frame({"pid": 1 << 40})],
    "an answer to something else": [wire.frame({"ready": True}), wire.frame({"code": 0})],
}


@pytest.mark.parametrize("answers", FALSE_ANSWERS.values(), ids=list(FALSE_ANSWERS))
def test_workers_start_by_themselves_where_the_nursery_talks_nonsense(answers: list[bytes], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(FALSE_NURSERY.format(python=sys.executable, answers=answers))
    python.chmod(0o755)
    with manyarms.make_vec("standins:Sleeper", 2, python=str(python)) as envs:
        assert parents(envs) == {os.getpid()}
        envs.reset(seed=0)
        assert envs.step(np.zeros((2, 1), np.float32))[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("pid", [-1, 0, 1, 1 << 23, True, 3.0])
def test_no_answer_of_a_nursery_can_name_what_is_no_worker(pid: Any) -> None:
    """Such numbers are signalled one day: -1 is everyone."""
    with pytest.raises(wire.Unreadable):
        check({"pid": pid}, "forked")
