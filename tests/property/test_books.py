"""The books of a runner against plain lists, one per episode, whatever comes back when and wherever it lies."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyarms import EpisodeId
from manyarms.policies import ActionChunk
from manyarms.rollout import Episode, books
from manyarms.rollout.schedule import Turn

ROWS = 3

#: Which rows decide, how long their chunks are, how many steps of each are taken in one or two calls, who ends then.
turns = st.tuples(
    st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True).map(sorted),
    st.integers(1, 4),
    st.lists(st.integers(1, 4), min_size=ROWS, max_size=ROWS),
    st.booleans(),
    st.lists(st.booleans(), min_size=ROWS, max_size=ROWS),
)


class Model:
    """What an episode should hold."""

    def __init__(self, number: int) -> None:
        self.id = EpisodeId("task", number)
        self.seen: list[float] = []
        self.chosen: list[np.ndarray] = []
        self.rewards: list[list[float]] = []

    def check(self, episode: Episode, final: float) -> None:
        longest = max(len(chunk) for chunk in self.chosen)
        padded = [np.pad(chunk, (0, longest - len(chunk))) for chunk in self.chosen]
        assert episode.id == self.id
        assert np.asarray(episode.observations["seen"]).tolist() == [[value] for value in self.seen]
        assert np.asarray(episode.actions[""])[..., 0].tolist() == np.stack(padded).tolist()
        assert np.asarray(episode.extras["values"]).tolist() == self.seen
        assert episode.num_steps.tolist() == [len(taken) for taken in self.rewards]
        assert episode.rewards.tolist() == [[*taken, *[0.0] * (longest - len(taken))] for taken in self.rewards]
        assert float(episode.final_observation["seen"][0]) == final
        assert set(episode.observations) == set(episode.final_observation) == {"seen"}


def _array(values: Any, kind: str) -> Any:
    array = np.array(values, np.float64)
    return array if kind == "numpy" else torch.from_numpy(array)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@settings(max_examples=120, deadline=None)
@given(steps=st.lists(turns, min_size=1, max_size=12), room=st.integers(1, 3))
def test_episodes_hold_what_was_seen_chosen_and_earned(kind: str, steps: list, room: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(books, "_DECISIONS_PER_ROW", room)
        patched.setattr(books, "_SEGMENT_BYTES", 0)
        _play(kind, steps)


def _play(kind: str, steps: list) -> None:
    kept = books.Books(ROWS, ("seen",))
    models: dict[int, Model] = {}
    finished: list[tuple[Episode, Model, float]] = []
    shown = _array(np.zeros((ROWS, 1)), kind)  # written again and again, as a simulator does
    clock = 0.0
    for deciding, length, wanted, twice, ends in steps:
        for row in deciding:
            if row not in models:
                models[row] = Model(len(models) + 10 * len(finished))
                kept.assign(row, Turn(0, models[row].id, 1))
                kept.open(row, "words", {"row": row})
        rows = np.array(deciding)
        clock += 1.0
        shown[:] = _array([[clock + row / 10] for row in range(ROWS)], kind)
        found = kept.look({"seen": shown, "other": shown}, rows)
        assert np.asarray(found["seen"]).tolist() == np.asarray(found["other"]).tolist()
        chunk = np.arange(len(rows) * length, dtype=np.float64).reshape(len(rows), length, 1) + 100 * clock
        kept.decide(rows, ActionChunk.of(_array(chunk, kind), values=found["seen"][:, 0] * 1.0))
        taken = np.minimum(np.array(wanted)[rows], length)
        for i, row in enumerate(deciding):
            models[row].seen.append(clock + row / 10)
            models[row].chosen.append(chunk[i, :, 0])
            models[row].rewards.append([])
        calls = [np.maximum(taken - 1, 1), taken - np.maximum(taken - 1, 1)] if twice else [taken]
        for count in calls:
            some = count > 0
            rewards = np.random.default_rng(int(clock)).random((len(rows), length))
            kept.advance(rows[some], rewards[some], count[some], np.zeros(int(some.sum()), bool))
            for i, row in enumerate(deciding):
                models[row].rewards[-1] += rewards[i, : count[i]].tolist()
        shown[:] = -clock
        over = np.array([row for row in deciding if ends[row]], np.int64)
        no = np.zeros(len(over), bool)
        for row, episode in zip(
            over.tolist(), kept.finish(over, {"seen": shown, "other": shown}, no, no, [{}] * len(over)), strict=True
        ):
            finished.append((episode, models.pop(row), -clock))
            kept.free(row)
    for episode, model, final in finished:
        model.check(episode, final)
        model.check(pickle.loads(pickle.dumps(episode)), final)
