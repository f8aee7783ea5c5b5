"""begin, send, recv: rows are independent, and misuse is told apart from trouble."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import manyarms
from manyarms import EpisodeId
from manyarms.errors import ConfigError, RowStateError


def actions(rows: int, length: int = 1, width: int = 2) -> np.ndarray:
    return np.zeros((rows, length, width), np.float32)


def test_rows_come_back_as_they_are_ready_and_a_straggler_holds_nobody_up() -> None:
    with manyarms.make_vec("standins:Sleeper", 3, naps={"1": 1.0}) as envs:
        envs.begin(range(3), EpisodeId(seed=0))
        envs.recv(min_rows=3)
        envs.send(range(3), np.zeros((3, 1, 1), np.float32))
        first = envs.recv(min_rows=2)
        assert first.rows.tolist() == [0, 2]
        envs.send([0, 2], np.zeros((2, 1, 1), np.float32))
        again = envs.recv(min_rows=2)
        assert again.rows.tolist() == [0, 2], "the straggler must still be busy"
        assert envs.recv(min_rows=1).rows.tolist() == [1]


def test_recv_returns_what_is_there_when_the_time_is_over(tmp_path: Path) -> None:
    with manyarms.make_vec("standins:Held", 2, folder=str(tmp_path)) as envs:
        envs.begin(range(2), EpisodeId(seed=0))
        envs.recv(min_rows=2)
        (tmp_path / "hold-1").touch()
        envs.send([1], np.zeros((1, 1, 2), np.float32))
        assert len(envs.recv(timeout=0.05)) == 0
        envs.send([0], np.zeros((1, 1, 2), np.float32))
        rows: list[int] = []
        while not rows:  # as long as row 0 may take on a busy machine
            rows = envs.recv(min_rows=2, timeout=0.2).rows.tolist()
        assert rows == [0]
        (tmp_path / "hold-1").unlink()
        assert envs.recv().rows.tolist() == [1]


def test_observations_are_views_until_the_row_is_sent_again() -> None:
    with manyarms.make_vec("standins:Walker", 4) as envs:
        envs.begin(range(4), EpisodeId(seed=1))
        ready = envs.recv(min_rows=4)
        assert np.shares_memory(ready.observations["position"], envs.observations["position"])
        envs.send([1, 2], actions(2))
        part = envs.recv(min_rows=2)
        assert part.rows.tolist() == [1, 2]
        assert np.shares_memory(part.observations["position"], envs.observations["position"])


def test_the_same_identity_gives_the_same_start_in_any_row() -> None:
    with manyarms.make_vec("standins:Walker", 3) as envs:
        envs.begin([2, 0], EpisodeId(task="far", seed=9))
        ready = envs.recv(min_rows=2)
        assert ready.observations["position"][0].tolist() == ready.observations["position"][1].tolist()
        assert ready.observations["objects_length"].tolist() == [5, 5]


def test_a_saved_state_is_a_start() -> None:
    with manyarms.make_vec("standins:Walker", 2) as envs:
        envs.begin([0], EpisodeId(seed=4))
        envs.recv()
        envs.send([0], actions(1, 5))
        position = envs.recv().observations["position"][0].copy()
        (state,) = envs.save_state([0])
        envs.begin([1], EpisodeId(seed=8, init_state=state))
        assert envs.recv().observations["position"][0].tolist() == position.tolist()


def test_a_state_that_the_tabletop_saved_is_a_start() -> None:
    with manyarms.make_vec("tabletop/push_button", 1, cameras=[]) as envs:
        envs.reset(seed=77)
        place = envs.observations["task_low_dim_state"][0].copy()
        envs.begin([0], EpisodeId(seed=5, init_state=envs.save_state()[0]))
        assert np.array_equal(envs.recv().observations["task_low_dim_state"][0], place)


def test_what_is_refused_leaves_rows_under_way_alone() -> None:
    with manyarms.make_vec("standins:Sleeper", 2, naps={"0": 0.2}, autoreset_mode="same_step") as envs:
        envs.reset()
        envs.step(np.zeros((2, 1), np.float32))
        envs.send([0], np.zeros((1, 3, 1), np.float32))
        with pytest.raises(RowStateError, match="not been received"):
            envs.step(np.zeros((2, 1), np.float32))
        chunk = envs.recv()
        assert (chunk.num_steps.tolist(), chunk.rewards.tolist()) == ([3], [[2.0, 3.0, 4.0]])


def test_loading_a_state_changes_nothing_for_rows_under_way() -> None:
    settings = {"naps": {"0": 0.3}, "max_episode_steps": 2, "autoreset_mode": "same_step"}
    with manyarms.make_vec("standins:Sleeper", 2, **settings) as envs:
        envs.begin([0, 1], EpisodeId())
        envs.recv(min_rows=2)
        (state,) = envs.save_state([1])
        envs.send([0], np.zeros((1, 2, 1), np.float32))
        envs.load_state([state], [1])
        chunk = envs.recv()
        assert chunk.truncated.tolist() == [True]
        assert chunk.observations.tolist() == [[2.0]], "the next episode has begun, though nobody asked for it"


def test_tasks_with_states_of_different_sizes_share_rows() -> None:
    with manyarms.make_vec("standins:Walker", 2) as envs:
        envs.begin([0, 1], [EpisodeId("near", 1), EpisodeId("far", 1)])
        ready = envs.recv(min_rows=2)
        assert ready.observations["objects"].shape == (2, 5)
        assert ready.observations["objects_length"].tolist() == [3, 5]
        assert not ready.observations["objects"][0, 3:].any()
        envs.begin([1], EpisodeId("near", 1))
        shorter = envs.recv()
        assert shorter.observations["objects_length"].tolist() == [3]
        assert not shorter.observations["objects"][0, 3:].any(), "what the longer task left must be cleared"


def test_tasks_and_states_can_be_given_to_reset() -> None:
    with manyarms.make_vec("standins:Walker", 2) as envs:
        observations, infos = envs.reset(seed=0, options={"tasks": ["near", "far"]})
        assert observations["objects_length"].tolist() == [3, 5]
        assert infos["task"].tolist() == ["near", "far"]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda envs: envs.send([0], actions(1)), "no running episode"),
        (lambda envs: envs.recv(), "nothing has been sent"),
        (lambda envs: envs.step(np.zeros((2, 2), np.float32)), "no running episode"),
        (lambda envs: envs.begin([5], EpisodeId()), "no row 5"),
        (lambda envs: envs.begin([0, 0], EpisodeId()), "named twice"),
        (lambda envs: envs.begin(np.array([True, False]), EpisodeId()), "whole numbers(.|\n)*flatnonzero"),
        (lambda envs: envs.begin([0, 1], [EpisodeId()]), "1 episodes were given for 2 rows"),
        (lambda envs: (envs.begin([0], EpisodeId()), envs.begin([0], EpisodeId())), "not been received"),
        (lambda envs: (envs.begin([0], EpisodeId()), envs.recv(), envs.send([0], actions(1), [3])), "lengths"),
        (lambda envs: (envs.begin([0], EpisodeId()), envs.recv(), envs.send([0], actions(2))), "2 rows were given"),
        (lambda envs: (envs.begin([0], EpisodeId()), envs.recv(min_rows=0)), "at least one row"),
        (lambda envs: (envs.begin([0], EpisodeId()), envs.recv(), envs.send([0], {})), "actions for 0 rows"),
        (lambda envs: (envs.reset(), envs.load_state(envs.save_state()[:1])), "1 states were given for 2 rows"),
        (lambda envs: envs.reset(seed=[1]), "1 seeds"),
        (lambda envs: envs.reset(options={"reset_mask": [True, False]}), "reset_mask"),
        (lambda envs: (envs.reset(seed=0), envs.step_chunk(actions(2), cameras=["back"])), "no camera 'back'"),
        (lambda envs: (envs.close(), envs.reset()), "closed"),
        (lambda envs: (envs.reset(), envs.close(), envs.step(np.zeros((2, 2), np.float32))), "closed"),
    ],
)
def test_misuse_is_refused_with_a_reason(misuse, message: str) -> None:  # type: ignore[no-untyped-def]
    with manyarms.make_vec("standins:Walker", 2) as envs, pytest.raises((ConfigError, RowStateError), match=message):
        misuse(envs)


def test_part_of_a_group_waits_for_the_rest_and_says_so() -> None:
    with manyarms.make_vec("standins:Herd", 3, rows_per_worker=3, longest=50) as envs:
        envs.begin(range(3), [EpisodeId(seed=i) for i in range(3)])
        envs.recv(min_rows=3)
        envs.send([0], actions(1, 1, 1))
        with pytest.raises(RowStateError, match="rows 0 wait for rows 1, 2"):
            envs.recv()
        envs.send([1, 2], actions(2, 1, 1))
        assert envs.recv(min_rows=3).rows.tolist() == [0, 1, 2]


def test_a_row_of_a_group_begins_anew_while_its_neighbours_wait() -> None:
    with manyarms.make_vec("standins:Herd", 2, rows_per_worker=2, longest=50) as envs:
        envs.begin([0, 1], [EpisodeId(seed=1), EpisodeId(seed=2)])
        envs.recv(min_rows=2)
        envs.send([0], actions(1, 1, 1))
        envs.begin([1], EpisodeId(seed=3))
        assert envs.recv().rows.tolist() == [1], "the reset goes first, the step waits for the row it needs"
        envs.send([1], actions(1, 1, 1))
        assert envs.recv(min_rows=2).rows.tolist() == [0, 1]


def test_a_group_that_resets_as_one_waits_until_all_have_ended() -> None:
    with manyarms.make_vec("standins:Herd", 2, rows_per_worker=2, partial_reset=False, max_episode_steps=4) as envs:
        envs.begin([0, 1], [EpisodeId(seed=1), EpisodeId(seed=2)])
        envs.recv(min_rows=2)
        envs.send([0, 1], actions(2, 4, 1), [4, 1])
        chunk = envs.recv(min_rows=2)
        assert chunk.ended.tolist() == [True, False]
        envs.begin([0], EpisodeId(seed=5))
        envs.send([1], actions(1, 4, 1))
        chunk = envs.recv()
        assert chunk.rows.tolist() == [1]
        assert chunk.ended[0]
        envs.begin([1], EpisodeId(seed=6))
        assert envs.recv(min_rows=2).rows.tolist() == [0, 1]


def test_part_of_a_group_that_resets_as_one_cannot_be_reset_in_mid_episode() -> None:
    with manyarms.make_vec("standins:Herd", 2, rows_per_worker=2, partial_reset=False, longest=50) as envs:
        envs.reset(seed=0)
        with pytest.raises(RowStateError, match="only be reset together"):
            envs.reset(options={"reset_mask": np.array([True, False])})


def test_reset_after_an_interrupted_call_starts_afresh() -> None:
    with manyarms.make_vec("standins:Walker", 2) as envs:
        envs.begin([0, 1], EpisodeId(seed=0))
        observations, _ = envs.reset(seed=3)
        again, _ = envs.reset(seed=3)
        assert observations["position"].tolist() == again["position"].tolist()
