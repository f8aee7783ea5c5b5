"""A stand-in for rlbench.task_environment."""

from __future__ import annotations

import numpy as np

from .backend.exceptions import TaskEnvironmentError
from .backend.observation import Observation
from .world import CAMERAS, faults

_MAX_DEMO_ATTEMPTS = 10
_DEMO_STEPS = 6


class Demo:
    """Observations of an expert."""

    def __init__(self, observations):
        self._observations = observations

    def __len__(self):
        return len(self._observations)

    def __getitem__(self, i):
        return self._observations[i]


class TaskEnvironment:
    def __init__(
        self,
        pyrep,
        robot,
        scene,
        task,
        action_mode,
        dataset_root,
        obs_config,
        static_positions=False,
        attach_grasped_objects=True,
        shaped_rewards=False,
    ):
        self._scene = scene
        self._task = scene.task = task
        self._action_mode = action_mode
        self._shaped_rewards = shaped_rewards
        self._variation_number = 0
        self._begun = False

    def sample_variation(self):
        self._variation_number = np.random.randint(0, self._task.variation_count())
        return self._variation_number

    def set_variation(self, v):
        if v >= self.variation_count():
            raise TaskEnvironmentError("Requested variation %d" % v)
        self._variation_number = v

    def variation_count(self):
        return self._task.variation_count()

    def reset(self, demo=None):
        if not self._begun:
            np.random.uniform()  # a task that draws when it is initialised
            self._begun = True
        self._scene.reset(self._variation_number)
        words = self._task.name.replace("_", " ")
        return [words, "%s, variation %d" % (words, self._variation_number)], self.get_observation()

    def get_observation(self):
        return self._observe({})

    def _observe(self, misc):
        images = {
            "%s_%s" % (camera, kind): self._scene.image(camera, kind)
            for camera in CAMERAS
            for kind in ("rgb", "depth", "mask", "point_cloud")
        }
        return Observation(**images, **self._scene.state(), misc={"variation_index": self._variation_number, **misc})

    def step(self, action):
        self._action_mode.action(self._scene, action)
        success, terminate = self._task.success()
        reward = float(success)
        if self._shaped_rewards:
            reward = self._task.reward()
            if reward is None:
                raise RuntimeError("User requested shaped rewards, but task has no defined reward() function.")
        return self.get_observation(), reward, terminate

    def get_demos(
        self,
        amount,
        live_demos=False,
        image_paths=False,
        callable_each_step=None,
        max_attempts=_MAX_DEMO_ATTEMPTS,
        random_selection=True,
        from_episode_number=0,
    ):
        if not live_demos:
            raise RuntimeError("Can't ask for a stored demo when no dataset root provided.")
        looped = self._scene.arm.joints[0].is_control_loop_enabled()
        self._scene.arm.set_control_loop_enabled(True)
        if "no_demos" in faults():
            raise RuntimeError("Could not collect demos. Maybe a problem with the task?")
        demos = [self._play() for _ in range(amount)]
        self._scene.arm.set_control_loop_enabled(looped)
        return demos

    def _play(self):
        self.reset()
        world = self._scene
        start = world.tip.copy()
        frames = [self.get_observation()]
        for i in range(1, _DEMO_STEPS + 1):
            world.move_tip(start + (world.target - start) * i / _DEMO_STEPS)
            frames.append(self._observe({"joint_position_action": np.append(world.joints, 1.0)}))
        return Demo(frames)
