"""Every simulator of ours, and the stand-ins, hold to the conformance suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from manyarms.testing import CHECKS, Subject

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


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS.keys())
def test_conformance(subject: Subject, check: Callable[[Subject], None]) -> None:
    check(subject)
