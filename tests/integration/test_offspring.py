"""What a simulator starts ends with its worker, however it was started; what is not a simulator's stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyarms
from conftest import environment
from endings import alive, wait_until_gone
from manyarms.doctor.examination import ask
from manyarms.vector.config import SimulatorConfig
from manyarms.vector.egl import drawing_failure
from manyarms.vector.supervisor import what_to_build
from standins import beget

WAYS = ["program", "program without variables", "fork"]
METHODS = ["forkserver", "spawn"]
IDLE = np.zeros((2, 1), np.float32)


def children_of(envs: manyarms.VectorEnv) -> list[int]:
    return envs.reset(seed=0)[1]["child"].astype(int).tolist()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", WAYS)
def test_close_ends_what_simulators_have_started(how: str, method: str) -> None:
    with manyarms.make_vec("standins:Begetter", 2, how=how, start_method=method) as envs:
        children = children_of(envs)
        assert all(map(alive, children))
    wait_until_gone(children)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", WAYS)
def test_a_worker_that_dies_takes_what_it_started_with_it_and_its_neighbours_keep_theirs(how: str, method: str) -> None:
    with manyarms.make_vec("standins:Begetter", 2, how=how, start_method=method) as envs:
        children = children_of(envs)
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        envs.step(IDLE)
        wait_until_gone(children[1:])
        assert alive(children[0])
    wait_until_gone(children)


def test_a_worker_that_is_replaced_takes_what_it_started_with_it() -> None:
    with manyarms.make_vec("standins:Begetter", 2, step_timeout=0.5) as envs:
        children = children_of(envs)
        os.kill(envs.worker_pids[0], signal.SIGSTOP)
        envs.step(IDLE)
        assert "did not come back" in str(envs.failures[0])
        wait_until_gone(children[:1])
        assert alive(children[1])
    wait_until_gone(children)


def test_closing_one_environment_leaves_the_simulators_of_another() -> None:
    with manyarms.make_vec("standins:Begetter", 2) as other:
        others = children_of(other)
        with manyarms.make_vec("standins:Begetter", 2) as envs:
            children = children_of(envs)
        wait_until_gone(children)
        assert all(map(alive, others))
        other.step(IDLE)
        assert other.failures == []
    wait_until_gone(others)


def test_processes_of_the_caller_are_left_alone() -> None:
    own = beget("fork")
    with manyarms.make_vec("standins:Begetter", 2) as envs:
        children_of(envs)
        later = beget()
    assert alive(own)
    assert alive(later)
    for pid in (own, later):
        os.kill(pid, signal.SIGKILL)


SCRIPT = """
    import sys, time
    import manyarms
    envs = manyarms.make_vec("standins:Begetter", 2, how=sys.argv[1])
    print(*envs.reset(seed=0)[1]["child"].astype(int), *envs.worker_pids, flush=True)
    if sys.argv[2] == "raise":
        raise RuntimeError("the user's own mistake")
    time.sleep(60)
"""


def start_run(how: str, then: str = "sleep") -> tuple[Any, list[int]]:
    """Start a main process; return it, and the numbers of what its simulators have started and of its workers."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), how, then]
    process: Any = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 4
    return process, pids


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("then", "signals"),
    [
        ("sleep", [signal.SIGKILL]),
        ("sleep", [signal.SIGINT]),
        ("sleep", [signal.SIGINT, signal.SIGINT]),
        ("sleep", [signal.SIGTERM]),
        ("raise", []),
    ],
    ids=["kill -9", "Ctrl-C", "Ctrl-C twice", "SIGTERM", "exception"],
)
def test_nothing_that_simulators_started_outlives_the_main_process(then: str, signals: list[Any], how: str) -> None:
    process, pids = start_run(how, then)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    process.wait(timeout=60)
    process.stdout.close()
    wait_until_gone(pids)


def test_a_run_that_a_simulator_started_ends_with_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with manyarms.make_vec("standins:Nesting", 1, script=textwrap.dedent(SCRIPT), told=str(told)) as envs:
        envs.reset(seed=0)
        pids = [int(pid) for pid in told.read_text().split()]
        assert len(pids) == 4
        assert all(map(alive, pids))
    wait_until_gone(pids)


def test_a_check_of_a_simulator_ends_what_it_started(tmp_path: Path) -> None:
    plan = what_to_build(SimulatorConfig("standins:Begetter", {"told": str(tmp_path / "told")}))
    assert drawing_failure(sys.executable, plan, {"MANYARMS_WORKER": "0", **os.environ}, 600.0) == ""
    wait_until_gone([int((tmp_path / "told").read_text())])


def test_a_program_that_is_asked_takes_what_it_started_with_it() -> None:
    code = "import time; from standins import beget; print(beget(), flush=True)"
    answer = ask([sys.executable, "-c", code], 60.0, environment())
    assert answer.failure == ""
    wait_until_gone([int(answer.said)])
