"""A stand-in for rlbench.environment."""

from __future__ import annotations

from .observation_config import ObservationConfig
from .task_environment import TaskEnvironment
from .world import World


class Environment:
    def __init__(
        self,
        action_mode,
        dataset_root="",
        obs_config=ObservationConfig(),
        headless=False,
        static_positions=False,
        robot_setup="panda",
        randomize_every=None,
        frequency=1,
        visual_randomization_config=None,
        dynamics_randomization_config=None,
        attach_grasped_objects=True,
        shaped_rewards=False,
        arm_max_velocity=1.0,
        arm_max_acceleration=4.0,
    ):
        self._action_mode = action_mode
        self._obs_config = obs_config
        self._shaped_rewards = shaped_rewards
        self._robot_setup = robot_setup
        self._world = self._robot = None

    def launch(self):
        self._world = self._robot = World(self._robot_setup, self._obs_config)
        self._world.launch()
        self._action_mode.arm_action_mode.set_control_mode(self._robot)

    def shutdown(self):
        if self._world is not None:
            self._world.shutdown()
        self._world = None

    def get_task(self, task_class):
        if self._world is None:
            self.launch()
        return TaskEnvironment(
            None,
            None,
            self._world,
            task_class(self._world),
            self._action_mode,
            "",
            self._obs_config,
            shaped_rewards=self._shaped_rewards,
        )
