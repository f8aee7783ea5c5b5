"""OmniGibson's configuration."""

from __future__ import annotations

from typing import Any, Dict

from .options import Options
from .releases import Release
from .robot import robot_config

#: Actions a second.
CONTROL_RATE = 30


def configuration(options: Options, release: Release, activity: str, scene_model: str, limit: int) -> Dict[str, Any]:
    """Return what each scene of a group is made with; episodes may last `limit` steps."""
    width, height = options.size
    return {
        "env": {
            "action_frequency": CONTROL_RATE,
            "rendering_frequency": CONTROL_RATE,
            "physics_frequency": 120,
            "device": options.device,
            # With it on, OmniGibson returns a tuple for an observation.
            "automatic_reset": False,
            "flatten_obs_space": False,
            "flatten_action_space": False,
        },
        "scene": {
            "type": "InteractiveTraversableScene",
            "scene_model": scene_model,
            "load_room_types": None if options.rooms is None else list(options.rooms),
            "include_robots": False,
        },
        "robots": [robot_config(release, options.cameras, width, height, options.grasping_mode)],
        "task": {
            "type": "BehaviorTask",
            "activity_name": activity,
            "activity_definition_id": options.definition,
            "activity_instance_id": 0,
            "online_object_sampling": options.online_object_sampling,
            # OmniGibson would put all robots into the first scene: there they would collide until we take them out.
            "use_presampled_robot_pose": False,
            # It looks at its clock before the step is counted: a limit of 5 truncates the sixth.
            "termination_config": {"max_steps": limit - 1},
            "reward_config": {"r_potential": 1.0},
            "include_obs": False,
        },
    }


__all__ = ["CONTROL_RATE", "configuration"]
