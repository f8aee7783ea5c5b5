"""A stand-in for omnigibson.tasks.behavior_task."""

from __future__ import annotations

from typing import Any

import omnigibson as og
from omnigibson.goals import Goals, ground_options

from .task_base import BaseTask


class BehaviorTask(BaseTask):
    def __init__(
        self,
        activity_name=None,
        activity_definition_id=0,
        activity_instance_id=0,
        predefined_problem=None,
        online_object_sampling=False,
        use_presampled_robot_pose=True,
        randomize_presampled_pose=False,
        sampling_whitelist=None,
        sampling_blacklist=None,
        highlight_task_relevant_objects=False,
        termination_config=None,
        reward_config=None,
        include_obs=True,
    ):
        assert og.gm.ENABLE_OBJECT_STATES
        assert not (online_object_sampling and use_presampled_robot_pose), (
            "Cannot use presampled robot pose if online_object_sampling is True!"
        )
        self.activity_name = activity_name
        self.activity_definition_id = activity_definition_id
        self.use_presampled_robot_pose = use_presampled_robot_pose
        super().__init__(termination_config, reward_config, include_obs)

    def initialize_activity(self, env):
        goals = env.scene.goals = Goals(env.scene, self.activity_name, self.activity_definition_id)
        env.scene.things = {name: thing for name, thing in goals.scope.items() if thing.exists}
        env.scene.present = {name for name in env.scene.things if not name.startswith("agent.")}
        self.object_scope: Any = dict(goals.scope)
        if og.__version__.startswith("3.9"):
            self.object_scope = {name: thing if thing.exists else None for name, thing in goals.scope.items()}
            self._evaluate_predicate = lambda name, *entities: None
        self.ground_goal_state_options = ground_options(goals)
        self.activity_natural_language_goal_conditions = goals.words
        self._goals = goals
        goals.begin()
        name = "%s_refresh" % self.activity_name  # the same for all scenes: the last one takes it from the others
        og.sim.add_callback_on_add_obj(name=name, callback=self._update_bddl_scope_from_added_obj)
        og.sim.add_callback_on_remove_obj(name=name, callback=self._update_bddl_scope_from_removed_obj)
        og.sim.add_callback_on_system_init(name=name, callback=self._update_bddl_scope_from_system_init)
        og.sim.add_callback_on_system_clear(name=name, callback=self._update_bddl_scope_from_system_clear)

    def _update_bddl_scope_from_added_obj(self, obj):
        self._know(obj.name, True)

    def _update_bddl_scope_from_removed_obj(self, obj):
        self._know(obj.name, False)

    def _update_bddl_scope_from_system_init(self, system):
        self._know(system.name, True)

    def _update_bddl_scope_from_system_clear(self, system):
        self._know(system.name, False)

    def _know(self, name, exists):
        """Note by its name whether a thing exists; which scene it is in is not asked."""
        thing = self._goals.scope[name]
        thing.exists = exists
        if og.__version__.startswith("3.9"):
            self.object_scope[name] = thing if exists else None

    def reset(self, env):
        super().reset(env)
        if self.use_presampled_robot_pose:
            poses = {name.lower(): value for name, value in env.scene.get_task_metadata(key="robot_poses").items()}
            pose = (poses.get("robot") or poses["r1pro"])[0]
            env.robots[0].set_position_orientation(pose["position"], pose["orientation"])  # of the world

    def get_potential(self, env):
        return self._goals.potential()

    def _check(self, env):
        reached, status = self._goals.reached()
        late = env.episode_steps >= self._termination_config["max_steps"]
        conditions = {
            "timeout": {"done": late, "success": False},
            "predicate": {"done": reached, "success": reached},
        }
        return conditions, status
