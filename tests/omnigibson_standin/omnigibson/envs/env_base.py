"""A stand-in for omnigibson.envs.env_base."""

from __future__ import annotations

import json
import os

import omnigibson as og
from omnigibson.kit import fail_at, note
from omnigibson.macros import macros
from omnigibson.tasks import BehaviorTask
from omnigibson.transition_rules import enabled
from omnigibson.world import Robot, Scene


class Environment:
    def __init__(self, configs, in_vec_env=False):
        self.config = configs
        env = configs["env"]
        self.device = env["device"] or "cpu"
        steps = [1.0 / env[name + "_frequency"] for name in ("physics", "rendering", "action")]
        sim = og.sim or og.launch(*steps, device=self.device)
        assert [sim.physics_dt, sim.rendering_dt, sim.sim_step_dt] == steps, "frequency mismatch"
        assert sim.device == self.device, "Device mismatch!"
        self._automatic_reset = env["automatic_reset"]
        self._current_step = 0
        self.load()

    def load(self):
        note("config " + json.dumps(self.config))
        note("rules %s" % " ".join(enabled()))
        note("window %g" % macros.robots.manipulation_robot.GRASP_WINDOW)
        scene, task = self.config["scene"], dict(self.config["task"])
        assert scene["type"] == "InteractiveTraversableScene"
        assert task.pop("type") == "BehaviorTask"
        self._find_scene(scene["scene_model"], task)
        self._scene = Scene(scene)
        fail_at("scene_error", "Failed to load the scene")
        (robot,) = self.config["robots"]
        self._robots = [Robot(self._scene, robot)]
        self._scene.robot = self._robots[0]
        self._task = BehaviorTask(**task)
        self._task.initialize_activity(self)

    def _find_scene(self, model, task):
        if task["online_object_sampling"]:
            return
        folders = [each for each in os.listdir(og.gm.DATA_PATH) if each.endswith("task-instances")]
        found = [os.path.join(og.gm.DATA_PATH, folder, "scenes", model) for folder in folders]
        assert any(map(os.path.isdir, found)), "Scene %s does not exist" % model

    def post_play_load(self):
        self._scene.update_initial_file()
        self.load_observation_space()
        self.reset()

    def load_observation_space(self):
        sensors = self._robots[0].sensors
        shapes = {name: (sensor.image_height, sensor.image_width, 4) for name, sensor in sensors.items()}
        note("space %s" % json.dumps([list(shape) for shape in shapes.values()]))
        note("apertures %s" % json.dumps([sensor.horizontal_aperture for sensor in sensors.values()]))
        return shapes

    def close(self):
        pass

    def get_obs(self):
        note("observe %d" % self._scene.idx)
        robot = self._robots[0]
        seen, info = robot.get_obs()
        return {robot.name: seen}, {robot.name: info}

    def _pre_step(self, action):
        self._robots[0].apply_action(action)

    def _post_step(self, action, get_obs=True):
        seen, info_on_it = self.get_obs() if get_obs else (None, None)
        reward, done, info = self._task.step(self, action)
        info["episode_length"] = self._current_step
        info["obs_info"] = info_on_it
        if done and self._automatic_reset:
            info["last_observation"] = seen
            seen = self.reset()  # a tuple
        conditions = info["done"]["termination_conditions"]
        terminated, truncated = conditions["predicate"]["done"], conditions["timeout"]["done"]
        self._current_step += 1
        return seen, reward, terminated, truncated, info

    def step(self, action, n_render_iterations=1):
        self._pre_step(action)
        og.sim.step()
        for _ in range(n_render_iterations - 1):
            og.sim.render()
        return self._post_step(action)

    def reset(self, get_obs=True, **kwargs):
        self._task.reset(self)
        self._current_step = 0
        if get_obs:
            og.sim.step()  # which steps the neighbours too
            for _ in range(3):
                og.sim.render()
            seen, info = self.get_obs()
            return seen, {"obs_info": info}
        return None

    @property
    def episode_steps(self):
        return self._current_step

    @property
    def task(self):
        return self._task

    @property
    def scene(self):
        return self._scene

    @property
    def robots(self):
        return self._robots
