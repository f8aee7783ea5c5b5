"""Unlike simulators under common names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import manyarms
from manyarms import SimulatorConfig
from manyarms.errors import StartError

NAMES = {"front_rgb": "image", "front": "scene", "task_low_dim_state": "goal"}


def tabletop(**options: Any) -> dict[str, Any]:
    return {"arm_mode": "delta_ee", "cameras": ["front"], "image_size": 24, **options}


def test_a_renamed_simulator_shows_the_same_under_other_names() -> None:
    with (
        manyarms.make_vec("tabletop/push_button", 1, **tabletop(), rename=NAMES) as ours,
        manyarms.make_vec("tabletop/push_button", 1, **tabletop()) as plain,
    ):
        for envs in (ours, plain):
            envs.reset(seed=3)
            envs.step_chunk(np.full((1, 4, 7), 0.2, np.float32))
        assert "front_rgb" not in ours.observations
        assert ours.simulator_spec.cameras == ("scene",)
        for own, name in (("front_rgb", "image"), ("task_low_dim_state", "goal"), ("gripper_pose", "gripper_pose")):
            assert np.array_equal(ours.observations[name], plain.observations[own])


def test_only_cameras_that_are_asked_for_are_rendered_under_their_new_names() -> None:
    with manyarms.make_vec("tabletop/push_button", 1, **tabletop(), rename=NAMES) as envs:
        envs.reset(seed=0)
        first = envs.observations["image"].copy()
        hold = np.zeros((1, 8, 7), np.float32)
        hold[..., 2] = -1.0
        assert np.array_equal(envs.step_chunk(hold, cameras=()).observations["image"], first)
        assert not np.array_equal(envs.step_chunk(hold, cameras=["scene"]).observations["image"], first)


def test_unlike_simulators_share_the_names_of_one_policy() -> None:
    """Rows that look through different cameras: what both call `image` is one field, each row's own."""
    several = [
        SimulatorConfig("tabletop/push_button", options=tabletop(), rename={**NAMES, "gripper_pose": "body"}),
        SimulatorConfig(
            "tabletop/reach_target",
            options=tabletop(cameras=["overhead"]),
            rename={"overhead_rgb": "image", "overhead": "scene", "gripper_pose": "body", "task_low_dim_state": "goal"},
        ),
    ]
    with manyarms.make_vec(several, 2) as envs:
        envs.reset(seed=0)
        pictures = envs.observations["image"]
        assert pictures.any(axis=(1, 2, 3)).all()
        assert not np.array_equal(pictures[0], pictures[1])
        assert envs.simulator_spec.cameras == ("scene",)
        assert "overhead_rgb" not in envs.observations


def test_ragged_fields_keep_their_lengths() -> None:
    options = tabletop(tasks=["push_button", "stack_blocks"], cameras=[])
    with manyarms.make_vec("tabletop", 1, **options, rename={"task_low_dim_state": "goal"}) as envs:
        envs.reset(seed=0, options={"tasks": ["push_button"]})
        short = int(envs.observations["goal_length"][0])
        envs.reset(seed=0, options={"tasks": ["stack_blocks"]})
        assert short < int(envs.observations["goal_length"][0])


@pytest.mark.parametrize(
    ("names", "message"),
    [({"fornt_rgb": "image"}, "no field or camera 'fornt_rgb'"), ({"front_rgb": "gripper_pose"}, "the same name")],
)
def test_wrong_names_are_refused(names: dict[str, str], message: str) -> None:
    with pytest.raises(StartError, match=message):
        manyarms.make_vec("tabletop/push_button", 1, **tabletop(), rename=names)
