"""Every simulator of ours, and the stand-ins, hold to the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from manyarms.testing import CHECKS, Subject, conformance

SUBJECTS = {
    "cartpole": Subject("gym/CartPole-v1"),
    "pendulum": Subject("gym/Pendulum-v1"),
    "nested spaces": Subject("gym_envs:Chatty"),
    "dict actions": Subject("gym_envs:DictAction"),
    "rendered": Subject("gym/MountainCar-v0", {"cameras": ["render"], "imports": ["pygame"]}, steps=4),
    "walker": Subject("standins:Walker"),
    "two rows a worker": Subject("standins:Walker", {"rows_per_worker": 2}),
    "lock-step": Subject("standins:Herd", {"rows_per_worker": 3}),
    "lock-step, whole resets": Subject("standins:Herd", {"rows_per_worker": 3, "partial_reset": False}),
}


@pytest.mark.parametrize("promise", CHECKS, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS.keys())
def test_conformance(subject: Subject, promise: Callable[[Subject], None]) -> None:
    promise(subject)


@pytest.mark.parametrize(
    ("simulator", "options", "promise", "said"),
    [
        ("Trembling", {}, conformance.check_same_seed_gives_the_same_episode, "observation 0 differs"),
        ("Overrunning", {}, conformance.check_a_chunk_equals_its_steps, "the last observation differs"),
        ("AtHome", {}, conformance.check_same_seed_gives_the_same_episode, "observation 0 differs"),
        ("Keeping", {}, conformance.check_saved_states_replay, "a replay from a saved state ends elsewhere"),
        ("Lavish", {}, conformance.check_cameras_render_only_when_asked, "without being asked: .'front_rgb', 'wrist"),
        ("HalfDone", {}, conformance.check_every_task_runs, "task far does not step"),
        ("Overflowing", {}, conformance.check_observations_match_the_spaces, "an observation is not in the"),
        ("Crowded", {"rows_per_worker": 3}, conformance.check_rows_do_not_disturb_each_other, "row 1 differs"),
        ("Rounding", {}, conformance.check_a_chunk_equals_its_steps, "rewards differ"),
        ("LateGiver", {}, conformance.check_a_chunk_equals_its_steps, "rewards differ"),
    ],
)
def test_a_promise_that_is_broken_is_named(
    simulator: str, options: dict[str, Any], promise: Callable[[Subject], None], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        promise(Subject(f"promise_breakers:{simulator}", options, steps=4))


def test_what_drifts_less_than_the_tolerance_holds() -> None:
    subject = Subject("promise_breakers:Trembling", tolerance=1e-3, steps=4)
    conformance.check_same_seed_gives_the_same_episode(subject)
    conformance.check_a_chunk_equals_its_steps(subject)
