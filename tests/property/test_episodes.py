"""Episodes of the runner against a plain loop over the same simulator and policy, for all kinds of settings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import manyarms
from conftest import keep_until_module_ends
from manyarms import EpisodeId, VectorEnv
from manyarms.rollout import Runner, RunnerConfig
from rollouts import Swaying, assert_same, contents, played_alone
from standins import Walker

LIMIT = 23


@pytest.fixture(scope="module")
def envs() -> Iterator[VectorEnv]:
    with manyarms.make_vec("standins:Walker", 4, rows_per_worker=2, max_episode_steps=LIMIT, goal=0.9) as envs:
        keep_until_module_ends(__name__, envs.worker_pids)
        yield envs


@settings(max_examples=40)
@given(
    chunk=st.integers(1, 9),
    horizon=st.one_of(st.none(), st.integers(1, 11)),
    steps_per_call=st.one_of(st.none(), st.integers(1, 6)),
    stages=st.integers(1, 4),
    min_rows=st.one_of(st.none(), st.integers(1, 6)),
    seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=9, unique=True),
)
def test_every_episode_is_what_a_plain_loop_gives(
    envs: VectorEnv,
    chunk: int,
    horizon: int | None,
    steps_per_call: int | None,
    stages: int,
    min_rows: int | None,
    seeds: list[int],
) -> None:
    config = RunnerConfig(horizon, steps_per_call, stages, min_rows)
    episodes = [EpisodeId(("near", "far")[seed % 2], seed) for seed in seeds]
    played = list(Runner(envs, Swaying(chunk), config).play(episodes))
    assert [episode.id for episode in played] == episodes
    for episode in played:
        alone = played_alone(Walker(cameras=(), goal=0.9), Swaying(chunk), episode.id, horizon, LIMIT)
        assert_same(alone, contents(episode))
        assert episode.text == f"go {episode.id.task}"
        taken = min(chunk, horizon or chunk)
        assert (episode.num_steps[:-1] == taken).all(), "only the last decision may be cut short"
        assert 1 <= episode.num_steps[-1] <= taken
        assert episode.mask.sum() == episode.length <= LIMIT
        assert not episode.rewards[~episode.mask].any()
        assert episode.terminated or episode.truncated
        assert episode.truncated == (episode.length == LIMIT)
        assert len(episode.taken_actions()[""]) == episode.length
        np.testing.assert_array_equal(episode.extras["values"], episode.observations["position"][:, 0])


@settings(max_examples=15)
@given(enough=st.integers(1, 6), stages=st.integers(1, 4), max_ahead=st.one_of(st.none(), st.integers(1, 8)))
def test_stopping_when_enough_keeps_the_first_in_schedule_order(
    envs: VectorEnv, enough: int, stages: int, max_ahead: int | None
) -> None:
    kept = 0

    def is_enough(_: object) -> bool:
        nonlocal kept
        kept += 1
        return kept == enough

    runner = Runner(envs, Swaying(), RunnerConfig(pipeline_stage_num=stages, max_ahead=max_ahead))
    endless = (EpisodeId("near", seed) for seed in iter(int, 1))
    counted = (EpisodeId("near", i) for i, _ in enumerate(endless))
    assert [episode.id.seed for episode in runner.play(counted, is_enough)] == list(range(enough))
    assert len(list(runner.play([EpisodeId("far", 5)]))) == 1, "the next run starts cleanly"
