"""Action queues and schedules against the simplest thing that could be right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyarms import EpisodeId
from manyarms.errors import RolloutError
from manyarms.policies import ActionChunk
from manyarms.rollout.queues import ActionQueues
from manyarms.rollout.schedule import Schedule, repetitions

ROWS = 4

pushes = st.tuples(
    st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True),
    st.integers(1, 7),
    st.one_of(st.none(), st.integers(1, 9)),
)
pops = st.one_of(st.none(), st.integers(1, 5))


@given(st.lists(st.one_of(pushes, pops), max_size=30))
def test_queues_hand_out_what_was_pushed_in_order_up_to_the_horizon(steps: list) -> None:
    queues = ActionQueues(ROWS)
    model: dict[int, list[float]] = {row: [] for row in range(ROWS)}
    counter = 0.0
    for step in steps:
        if isinstance(step, tuple):
            rows, length, horizon = step
            actions = np.arange(len(rows) * length, dtype=np.float64).reshape(len(rows), length, 1) + counter
            counter += actions.size
            queues.push(rows, ActionChunk.of(actions), horizon)
            for row, chunk in zip(rows, actions[:, :, 0].tolist(), strict=True):
                model[row] = chunk[:horizon]
        full = [row for row in range(ROWS) if model[row]]
        assert queues.is_empty(range(ROWS)).tolist() == [row not in full for row in range(ROWS)]
        if not isinstance(step, tuple) and full:
            taken, lengths = queues.pop(full, step)
            for i, row in enumerate(full):
                want, model[row] = model[row][:step], ([] if step is None else model[row][step:])
                assert lengths[i] == len(want)
                got = taken[""][i, :, 0].tolist()
                assert got[: len(want)] == want
                assert set(got[len(want) :]) <= {want[-1]}, "what is beyond a row's own repeats its last action"


def test_popping_an_empty_queue_is_an_error() -> None:
    with pytest.raises(IndexError, match="rows \\[1\\]"):
        ActionQueues(2).pop([1])


@settings(max_examples=200)
@given(st.data(), st.integers(1, 12), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 6)))
def test_results_are_accepted_in_schedule_order_however_rows_finish(
    data: st.DataObject, count: int, rows: int, max_ahead: int | None
) -> None:
    enough_after = data.draw(st.integers(1, count))
    accepted: list[int] = []

    def enough(result: int) -> bool:
        accepted.append(result)
        return len(accepted) == enough_after

    episodes = [EpisodeId(seed=i) for i in range(count)]
    schedule: Schedule[int] = Schedule(episodes, enough=enough, max_ahead=max_ahead, max_attempts=99)
    playing = []
    yielded: list[int] = []
    while not schedule.done:
        while len(playing) < rows:
            turn = schedule.next()
            if turn is None:
                break
            if max_ahead is not None:
                assert turn.position - len(yielded) < max(max_ahead, 1)
            playing.append(turn)
        turn = playing.pop(data.draw(st.integers(0, len(playing) - 1)))
        if data.draw(st.booleans()) and turn.attempts < 3:
            schedule.retry(turn, "for the test")
        else:
            yielded += list(schedule.finish(turn, turn.episode.seed or 0))
    assert yielded == accepted == list(range(enough_after))
    assert schedule.next() is None


def test_an_episode_that_keeps_aborting_is_an_error_that_names_it() -> None:
    schedule: Schedule[int] = Schedule([EpisodeId("open_drawer", seed=7)], max_attempts=2)
    turn = schedule.next()
    assert turn is not None
    schedule.retry(turn, "")
    assert schedule.next() is turn
    with pytest.raises(RolloutError, match=r"open_drawer, seed 7.*2 times") as caught:
        schedule.retry(turn, "killed by SIGKILL")
    assert "SIGKILL" in str(caught.value)


def test_rows_get_only_tasks_they_can_play() -> None:
    episodes = [EpisodeId("a", seed=0), EpisodeId("b", seed=1), EpisodeId("a", seed=2)]
    schedule: Schedule[int] = Schedule(episodes)
    first = schedule.next(("b",))
    assert first is not None
    assert first.position == 1
    assert schedule.next(("b",)) is None
    assert [turn.position for turn in (schedule.next(("a", "b")), schedule.next(None)) if turn] == [0, 2]


def test_an_aborted_episode_is_tried_again_before_any_other() -> None:
    episodes = [EpisodeId("a", seed=0), EpisodeId("b", seed=1), EpisodeId("a", seed=2)]
    schedule: Schedule[int] = Schedule(episodes)
    first, third = schedule.next(("a",)), schedule.next(("a",))
    assert first is not None
    assert third is not None
    schedule.retry(first, "killed")
    order = [turn.position for turn in (schedule.next(None), schedule.next(None)) if turn]
    assert order == [0, 1], "the second, which had waited for a row of its own, comes after it"


def test_repetitions_differ_by_index_only() -> None:
    group = repetitions(EpisodeId("a", 3), 3)
    assert [episode.index for episode in group] == [0, 1, 2]
    assert len({episode.key for episode in group}) == 3
