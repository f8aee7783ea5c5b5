"""Gymnasium's SyncVectorEnv is the oracle: same seeds, same actions, same trajectories, same infos, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import manyarms
from conftest import keep_until_module_ends
from gym_envs import Chatty, DictAction, LongInfo

ROWS = 3
CASES: dict[str, tuple[str, Any]] = {
    "cartpole": ("gym/CartPole-v1", lambda: gymnasium.make("CartPole-v1")),
    "frozen lake": ("gym/FrozenLake-v1", lambda: gymnasium.make("FrozenLake-v1")),
    "taxi": ("gym/Taxi-v4", lambda: gymnasium.make("Taxi-v4", max_episode_steps=9)),
    "chatty": ("gym_envs:Chatty", Chatty),
    "dict actions": ("gym_envs:DictAction", DictAction),
    "long infos": ("gym_envs:LongInfo", LongInfo),
}
OPTIONS: dict[str, dict[str, Any]] = {"taxi": {"max_episode_steps": 9}}


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    """Equal values, shapes and dtypes, all the way down."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), where
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert ours.dtype == object, where
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, where
        np.testing.assert_array_equal(ours, theirs, where)
    else:
        assert np.array_equal(ours, theirs), f"{where}: {ours!r} is not {theirs!r}"


@pytest.fixture(scope="module", params=list(AutoresetMode), ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> AutoresetMode:
    return request.param


@pytest.fixture(scope="module", params=[1, 2], ids=["one row a worker", "two rows a worker"])
def rows_per_worker(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, mode: AutoresetMode, rows_per_worker: int) -> Iterator[Any]:
    """Ours and Gymnasium's, of the same environment."""
    name, make = CASES[request.param]
    options = OPTIONS.get(request.param, {})
    ours = manyarms.make_vec(name, ROWS, autoreset_mode=mode, rows_per_worker=rows_per_worker, **options)
    keep_until_module_ends(request.node.nodeid, ours.worker_pids)
    theirs = SyncVectorEnv([make] * ROWS, autoreset_mode=mode)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_spaces_are_gymnasiums(pair: Any) -> None:
    ours, theirs = pair
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]


@given(seed=st.integers(0, 1 << 30), steps=st.integers(1, 25), masked=st.booleans())
@settings(max_examples=6)
def test_trajectories_and_infos_are_gymnasiums(pair: Any, seed: int, steps: int, masked: bool) -> None:
    ours, theirs = pair
    ours.action_space.seed(seed)
    mine, other = ours.reset(seed=seed), theirs.reset(seed=seed)
    assert_same(mine[0], other[0], "reset observation")
    assert_same(mine[1], other[1], "reset info")
    for i in range(steps):
        action = ours.action_space.sample()
        a, b = ours.step(action), theirs.step(action)
        for part, x, y in zip(("observation", "reward", "terminated", "truncated", "info"), a, b, strict=True):
            assert_same(x, y, f"step {i} {part}")
        ended = a[2] | a[3]
        if ended.any() and (masked or ours.metadata["autoreset_mode"] == AutoresetMode.DISABLED):
            a, b = (e.reset(seed=[i] * ROWS, options={"reset_mask": ended.copy()}) for e in (ours, theirs))
            assert_same(a[0], b[0], f"masked reset {i} observation")
            assert_same(a[1], b[1], f"masked reset {i} info")


def test_reset_options_reach_the_environment() -> None:
    with manyarms.make_vec("gym_envs:Chatty", 2) as ours:
        theirs = SyncVectorEnv([Chatty] * 2)
        a, b = ours.reset(seed=3, options={"level": 5}), theirs.reset(seed=3, options={"level": 5})
        assert_same(a[1], b[1], "info")
        assert a[1]["options"].tolist() == [5, 5]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_reset_options_are_for_one_episode_and_not_for_those_after_it(mode: AutoresetMode) -> None:
    with manyarms.make_vec("gym_envs:Chatty", 2, autoreset_mode=mode, length=3) as ours:
        theirs = SyncVectorEnv([lambda: Chatty(length=3)] * 2, autoreset_mode=mode)
        for envs in (ours, theirs):
            assert envs.reset(seed=3, options={"level": 5})[1]["options"].tolist() == [5, 5]
        for i in range(9):
            action = np.zeros((2, 2), np.int64)
            a, b = ours.step(action), theirs.step(action)
            assert_same(a[4], b[4], f"step {i} info")
            assert ("options" in a[4]) == (i < 3 - (mode == AutoresetMode.SAME_STEP))


def test_copy_false_returns_the_same_memory_and_copy_true_does_not() -> None:
    for copy in (False, True):
        with manyarms.make_vec("gym/CartPole-v1", 2, copy=copy) as envs:
            first, _ = envs.reset(seed=0)
            kept = first.copy()
            second, *_ = envs.step(np.array([0, 1]))
            assert np.shares_memory(first, second) is not copy
            assert np.array_equal(first, kept) is copy


def test_call_get_attr_and_set_attr_are_gymnasiums() -> None:
    with manyarms.make_vec("gym_envs:Chatty", 2) as ours:
        theirs = SyncVectorEnv([Chatty] * 2)
        for envs in (ours, theirs):
            envs.reset(seed=0)
            envs.set_attr("clock", [4, 5])
        assert ours.call("add", 3, b=2) == theirs.call("add", 3, b=2) == (9, 10)
        assert ours.get_attr("clock") == theirs.get_attr("clock") == (4, 5)
        assert ours.get_attr("length") == theirs.get_attr("length")


def test_wrappers_apply_in_order() -> None:
    wrappers = ["gym_envs:Doubled", ("gym_envs:Doubled", {"factor": 5.0})]
    with manyarms.make_vec("gym/CartPole-v1", 2, wrappers=wrappers) as envs:
        envs.reset(seed=0)
        assert envs.step(np.array([0, 1]))[1].tolist() == [10.0, 10.0]
