"""The chunk protocol against a plain loop over the same simulator in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import manyarms
from conftest import keep_until_module_ends
from manyarms import EpisodeId
from manyarms.simulators.base import Start
from standins import Herd, Walker

ROWS = 4
LIMIT = 11


class Reference:
    """One row, run by hand."""

    def __init__(self, lockstep: bool) -> None:
        self.simulator: Any = Herd(1) if lockstep else Walker(goal=0.6)
        self.lockstep = lockstep
        self.steps = 0

    def reset(self, seed: int) -> None:
        self.steps = 0
        if self.lockstep:
            self.simulator.reset([0], [Start(seed=seed)])
        else:
            self.simulator.reset(None, seed, None)

    def run(self, actions: np.ndarray) -> tuple[list[float], bool, bool]:
        rewards = []
        terminated = truncated = False
        for action in actions:
            result = (
                self.simulator.step([action], np.array([True]))[0] if self.lockstep else self.simulator.step(action)
            )
            self.steps += 1
            rewards.append(result.reward)
            terminated, truncated = result.terminated, self.steps >= LIMIT
            if terminated or truncated:
                break
        return rewards, terminated, truncated

    def observation(self) -> np.ndarray:
        if self.lockstep:
            return np.array([self.simulator.values[0]])
        return np.array([self.simulator.position, self.simulator.speed])


@pytest.fixture(
    scope="module",
    params=[("standins:Walker", 1), ("standins:Walker", 3), ("standins:Herd", 2), ("standins:Herd", 4)],
    ids=["one row a worker", "three rows a worker", "groups of two", "a group of four"],
)
def envs(request: pytest.FixtureRequest) -> Iterator[manyarms.VectorEnv]:
    name, per_worker = request.param
    options = {} if "Herd" in name else {"goal": 0.6, "cameras": []}
    made = manyarms.make_vec(name, ROWS, rows_per_worker=per_worker, max_chunk=8, max_episode_steps=LIMIT, **options)
    keep_until_module_ends(request.node.nodeid, made.worker_pids)
    yield made
    made.close()


def width(envs: manyarms.VectorEnv) -> int:
    return envs.simulator_spec.actions[""].shape[0]


def value_of(envs: manyarms.VectorEnv, observations: Any) -> np.ndarray:
    return observations["value" if "value" in envs.simulator_spec.observations else "position"]


PLANS = st.lists(st.lists(st.integers(1, 8), min_size=ROWS, max_size=ROWS), min_size=1, max_size=6)


@given(seed=st.integers(0, 1 << 30), plan=PLANS)
@settings(max_examples=15)
def test_ragged_chunks_run_as_a_plain_loop_would(envs: manyarms.VectorEnv, seed: int, plan: list[list[int]]) -> None:
    """Rows with chunks of different lengths, early ends and time limits, received in whatever order."""
    rng = np.random.default_rng(seed)
    references = [Reference("value" in envs.simulator_spec.observations) for _ in range(ROWS)]
    envs.begin(range(ROWS), [EpisodeId(seed=seed + row) for row in range(ROWS)])
    first = envs.recv(min_rows=ROWS)
    assert first.rows.tolist() == list(range(ROWS))
    assert not first.num_steps.any()
    for row, reference in enumerate(references):
        reference.reset(seed + row)
        np.testing.assert_array_equal(value_of(envs, first.observations)[row], reference.observation())
    live = list(range(ROWS))
    for lengths in plan:
        sizes = [lengths[row] for row in live]
        actions = rng.uniform(-1, 1, (len(live), max(sizes), width(envs))).astype(np.float32)
        envs.send(live, actions, sizes)
        still_live = []
        seen = 0
        while seen < len(live):
            chunk = envs.recv(min_rows=1)
            seen += len(chunk)
            for i, row in enumerate(chunk.rows.tolist()):
                position = live.index(row)
                rewards, terminated, truncated = references[row].run(actions[position, : sizes[position]])
                assert chunk.num_steps[i] == len(rewards)
                np.testing.assert_array_equal(chunk.rewards[i, : len(rewards)], rewards)
                assert not chunk.rewards[i, len(rewards) :].any()
                assert (chunk.terminated[i], chunk.truncated[i]) == (terminated, truncated)
                np.testing.assert_array_equal(value_of(envs, chunk.observations)[i], references[row].observation())
                if not (terminated or truncated):
                    still_live.append(row)
        live = sorted(still_live)
        if not live:
            break


@given(seed=st.integers(0, 1 << 30), sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6))
@settings(max_examples=10)
def test_step_chunk_equals_step_by_step(envs: manyarms.VectorEnv, seed: int, sizes: list[int]) -> None:
    """The same actions by chunks and one by one, with the default autoreset: the same steps until the first end."""
    rng = np.random.default_rng(seed)
    chunks = [rng.uniform(-1, 1, (ROWS, size, width(envs))).astype(np.float32) for size in sizes]
    envs.reset(seed=seed)
    by_chunk = []
    for actions in chunks:
        by_chunk.append(envs.step_chunk(actions))
        if by_chunk[-1].ended.any():
            break
    envs.reset(seed=seed)
    for actions, chunk in zip(chunks, by_chunk, strict=False):
        ended = np.zeros(ROWS, bool)
        for k in range(actions.shape[1]):
            observations, rewards, terminated, truncated, _ = envs.step(actions[:, k])
            np.testing.assert_array_equal(rewards[~ended], chunk.rewards[~ended, k])
            last = ~ended & ((chunk.num_steps == k + 1) | terminated | truncated)
            np.testing.assert_array_equal(value_of(envs, observations)[last], value_of(envs, chunk.observations)[last])
            np.testing.assert_array_equal(terminated[last], chunk.terminated[last])
            np.testing.assert_array_equal(truncated[last], chunk.truncated[last])
            ended |= terminated | truncated
            assert not chunk.rewards[ended][:, k + 1 :].any()


def test_held_rows_of_a_group_do_not_move(envs: manyarms.VectorEnv) -> None:
    if "value" not in envs.simulator_spec.observations:
        assert not any(worker.lockstep for worker in envs._supervisor.workers)
        return
    assert set(envs.call("held")) == {0}
