"""One policy, many rows: the same episodes whatever the number of environments, stages and dead workers."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import manyarms
from manyarms import EpisodeId
from manyarms.errors import ConfigError, RolloutError
from manyarms.policies import ActionChunk, Observations, make_policy
from manyarms.rollout import Episode, Runner, RunnerConfig, Scene, Steps, starts
from manyarms.rollout.books import Books
from manyarms.rollout.memory import plan_memory
from manyarms.rollout.schedule import Turn
from manyarms.rollout.words import text_of
from manyarms.simulators.base import Field
from rollouts import Swaying, fingerprint

EPISODES = [EpisodeId(("near", "far")[i % 2], 100 + i) for i in range(12)]


def play(num_envs: int, config: RunnerConfig | None = None, **options: Any) -> list[Episode]:
    with manyarms.make_vec("standins:Walker", num_envs, max_episode_steps=25, **options) as envs:
        return list(Runner(envs, Swaying(), config).play(EPISODES))


def test_episodes_are_the_same_for_any_number_of_environments_and_stages() -> None:
    wanted = fingerprint(play(1))
    for num_envs, stages in ((3, 1), (4, 4), (16, 2)):
        found = play(num_envs, RunnerConfig(pipeline_stage_num=stages), rows_per_worker=min(4, num_envs))
        assert fingerprint(found) == wanted


class Killer:
    """Kills the worker of a row now and then, as the out-of-memory killer would."""

    def __init__(self, pids: Any, times: int) -> None:
        self.pids, self.left, self.killed = pids, times, 0
        self.rng = np.random.default_rng(0)

    def begin(self, row: int, episode: EpisodeId, text: str, observation: Mapping[str, np.ndarray]) -> None:
        pass

    def advance(self, row: int, steps: Steps) -> None:
        if self.left and self.rng.random() < 0.2:
            self.left -= 1
            self.killed += 1
            os.kill(self.pids()[row], signal.SIGKILL)

    def end(self, row: int, episode: Episode | None) -> None:
        pass


def test_killed_workers_change_nothing_but_the_number_of_attempts() -> None:
    wanted = fingerprint(play(3))
    with manyarms.make_vec("standins:Walker", 3, max_episode_steps=25) as envs:
        killer = Killer(lambda: envs.worker_pids, times=5)
        runner = Runner(envs, Swaying(), RunnerConfig(max_attempts=10), sinks=[killer])
        found = list(runner.play(EPISODES))
    assert killer.killed == 5
    assert sum(episode.attempts - 1 for episode in found) >= 1
    assert fingerprint(found) == wanted


def test_an_episode_that_always_kills_its_worker_ends_the_run_with_its_name() -> None:
    class Deadly:
        cameras = ()

        def act(self, observations: Observations) -> ActionChunk:
            return ActionChunk.of(np.full((len(observations), 1, 1), 7.0, np.float32))  # standins.Misbehaving.KILL

    with manyarms.make_vec("standins:Misbehaving", 1) as envs:
        runner = Runner(envs, Deadly(), RunnerConfig(max_attempts=2))
        with pytest.raises(RolloutError, match=r"seed 3.*aborted 2 times") as caught:
            list(runner.play([EpisodeId(seed=3)]))
    assert "SIGKILL" in str(caught.value)


def test_lockstep_rows_play_through_with_partial_and_whole_resets() -> None:
    episodes = [EpisodeId(seed=i) for i in range(11)]
    found = {}
    for partial in (True, False):
        for stages in (1, 3):
            with manyarms.make_vec("standins:Herd", 6, rows_per_worker=3, partial_reset=partial) as envs:
                policy = Swaying(3, width=1, field="value")
                config = RunnerConfig(pipeline_stage_num=stages, steps_per_call=2)
                found[partial, stages] = fingerprint(list(Runner(envs, policy, config).play(episodes)))
    first, *others = found.values()
    assert all(other == first for other in others)


def test_the_policy_is_asked_for_whole_stages_while_all_rows_play() -> None:
    with manyarms.make_vec("standins:Walker", 8, rows_per_worker=4, max_episode_steps=40, goal=99.0) as envs:
        policy = Swaying(8)
        list(Runner(envs, policy, RunnerConfig(pipeline_stage_num=2)).play([EpisodeId(seed=i) for i in range(8)]))
    assert policy.batches[:5] == [4] * 5, "no row can be through with its five decisions before"
    assert sum(policy.batches) == 8 * 5


def test_cameras_nobody_looks_through_are_not_rendered() -> None:
    with manyarms.make_vec("standins:Walker", 2, max_episode_steps=6) as envs:
        (first, *_) = Runner(envs, Swaying(2)).play([EpisodeId(seed=i) for i in range(4)])
        assert envs.call("renders") == (0, 0)
        assert "front_rgb" not in first.observations

        class Watching(Swaying):
            cameras = ("wrist",)

        (first, *_) = Runner(envs, Watching(2)).play([EpisodeId(seed=i) for i in range(4)])
        assert sum(envs.call("renders")) > 0
        assert "wrist_rgb" in first.observations
        assert "front_rgb" not in first.observations
        np.testing.assert_array_equal(first.observations["wrist_rgb"][:, 0, 0, 0], [0, 2, 4])


def test_reward_hooks_see_batches_and_their_history_and_add_to_the_last_step() -> None:
    class Hook:
        history = 3
        fields = ("clock",)
        cameras = ()
        seen: list[np.ndarray] = []  # noqa: RUF012

        def __call__(self, scene: Scene) -> np.ndarray:
            assert set(scene.fields) == {"clock"}
            self.seen.append(scene.fields["clock"])
            return scene.steps.astype(float)

    hook = Hook()
    with manyarms.make_vec("standins:Walker", 2, max_episode_steps=6, goal=99.0) as envs:
        plain = list(Runner(envs, Swaying(2)).play(EPISODES[:2]))
        (first, second) = Runner(envs, Swaying(2), RunnerConfig(pipeline_stage_num=1), rewards=[hook]).play(
            EPISODES[:2]
        )
    for episode, without in ((first, plain[0]), (second, plain[1])):
        np.testing.assert_allclose(episode.rewards - without.rewards, [[0, 2], [0, 4], [0, 6]])
    assert [shown.tolist() for shown in hook.seen] == [[[0, 0, 2]] * 2, [[0, 2, 4]] * 2, [[2, 4, 6]] * 2]


def test_the_history_of_a_hook_begins_anew_with_each_episode() -> None:
    class Hook:
        history = 8
        fields = ("clock",)
        cameras = ()
        seen: list[list[int]] = []  # noqa: RUF012

        def __call__(self, scene: Scene) -> np.ndarray:
            self.seen.append(scene.fields["clock"][0].tolist())
            return np.zeros(len(scene))

    hook = Hook()
    with manyarms.make_vec("standins:Walker", 1, max_episode_steps=4, goal=99.0) as envs:
        list(Runner(envs, Swaying(2), rewards=[hook]).play(EPISODES[:2]))
    assert hook.seen == [[0] * 7 + [2], [0] * 6 + [2, 4]] * 2, "nothing of the episode before"


def test_an_episode_that_succeeded_and_went_on_has_succeeded() -> None:
    row, no = np.array([0]), np.array([False])
    for successes, wanted in (((False, True, False), True), ((False, False, False), False)):
        books = Books(1, None)
        books.assign(0, Turn(0, EpisodeId("near", 0), 1))
        books.open(0, "go", {})
        for success in successes:
            books.look({"": np.zeros((1, 1))}, row)
            books.decide(row, ActionChunk.of(np.zeros((1, 1, 1))))
            books.advance(row, np.zeros((1, 1)), np.array([1]), np.array([success]))
        (episode,) = books.finish(row, {"": np.zeros((1, 1))}, no, ~no, [{}])
        assert episode.success == wanted


def test_varied_descriptions_are_drawn_by_the_episode_and_reach_all_of_them() -> None:
    info = {"descriptions": ["open it", "pull it open", "open the drawer"]}
    episodes = [EpisodeId("drawer", seed) for seed in range(60)]
    drawn = [text_of(episode, info, (), vary=True) for episode in episodes]
    assert set(drawn) == set(info["descriptions"])
    assert drawn == [text_of(episode, info, (), vary=True) for episode in episodes]
    assert {text_of(episode, info, ()) for episode in episodes} == {"open it"}


def test_starts_from_fixed_states_have_a_new_seed_each_time_round() -> None:
    begun = list(itertools.islice(starts(["a", "b"], 7, init_states=2), 8))
    assert [(e.task, e.seed, e.init_state) for e in begun] == [
        *[("a", 7, 0), ("b", 7, 0), ("a", 7, 1), ("b", 7, 1)],
        *[("a", 8, 0), ("b", 8, 0), ("a", 8, 1), ("b", 8, 1)],
    ]


def test_the_memory_plan_counts_a_last_chunk_that_is_cut_short() -> None:
    plan = plan_memory(
        {"": np.zeros((1, 4))}, {"": Field((2,))}, keep=None, chunk=8, horizon=None, time_limit=20, episodes=3
    )
    assert plan.decisions == 3
    assert plan.total_bytes == 3 * 3 * plan.decision_bytes


def test_a_hook_that_returns_nonsense_is_named() -> None:
    with manyarms.make_vec("standins:Walker", 1) as envs:
        runner = Runner(envs, Swaying(2), rewards=[lambda scene: np.array([np.nan] * len(scene))])
        with pytest.raises(RolloutError, match="finite"):
            list(runner.play([EpisodeId(seed=1)]))


def test_a_task_no_row_can_play_is_an_error_and_not_a_hang() -> None:
    with manyarms.make_vec("standins:Walker", 1) as envs, pytest.raises(RolloutError, match="elsewhere"):
        list(Runner(envs, Swaying()).play([EpisodeId("near", 1), EpisodeId("elsewhere", 1)]))


def test_settings_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match="replan_horizon"):
        RunnerConfig(replan_horizon=0)


TABLETOP = [EpisodeId(task, seed) for seed in range(3) for task in ("reach_target", "push_button")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "pixel"])
def test_tabletop_episodes_of_a_network_are_the_same_in_any_constellation(name: str) -> None:
    def played(num_envs: int, kills: int = 0, **settings: Any) -> list[tuple[Any, ...]]:
        options: dict[str, Any] = {"tasks": ["reach_target", "push_button"], "arm_mode": "delta_ee", "image_size": 32}
        with manyarms.make_vec("tabletop", num_envs, max_episode_steps=24, **options) as envs:
            policy = make_policy(name, envs.simulator_spec, {"chunk": 4, "deterministic": True, "batch_size": 8})
            killer = Killer(lambda: envs.worker_pids, kills)
            config = RunnerConfig(**settings, max_attempts=20)
            found = list(Runner(envs, policy, config, sinks=[killer]).play(TABLETOP))
            assert killer.killed == kills
            return fingerprint(found)

    wanted = played(1)
    assert played(4, pipeline_stage_num=1) == wanted
    assert played(4, kills=3, pipeline_stage_num=2) == wanted
    assert played(16, pipeline_stage_num=4) == wanted
