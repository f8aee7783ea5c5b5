"""robosuite's control of the arm, to the bit, in a third of its time.

robosuite computes a whole forward pass three times a physics step, the Jacobians four times, and the same constants
every time. Here each is computed once, by the same formulas in the same order; `Scene` makes sure on every machine that
the results are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Stepper:
    """Moves a LIBERO environment by one action; made anew after every reset, which makes a new controller."""

    def __init__(self, api: Any, env: Any) -> None:
        robot = env.robots[0]
        model = env.sim.model._model
        self._api, self._env, self._model, self._data = api, env, model, env.sim.data._data
        self._controller, self._gripper = robot.controller, robot.gripper
        self._substeps = int(env.control_timestep / env.model_timestep)
        self._site = env.sim.model.site_name2id(robot.controller.eef_name)
        self._arm, self._grip = robot._ref_joint_actuator_indexes, robot._ref_joint_gripper_actuator_indexes
        self._low, self._high = robot.torque_limits
        limits = model.actuator_ctrlrange[self._grip]
        self._grip_bias, self._grip_weight = 0.5 * (limits[:, 1] + limits[:, 0]), 0.5 * (limits[:, 1] - limits[:, 0])
        self._jacp, self._jacr = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        self._joints, self._positions = np.array(robot.controller.qvel_index), np.array(robot.controller.qpos_index)
        self._inertia = np.zeros((model.nv, model.nv))

    def step(self, action: np.ndarray) -> None:
        """Apply an action for one control period."""
        mujoco, model, data, env = self._api.mujoco, self._model, self._data, self._env
        first, second, update, controller = mujoco.mj_step1, mujoco.mj_step2, env._update_observables, self._controller
        env.timestep += 1
        grip = np.array([-1.0, 1.0]) * self._gripper.speed * np.sign(action[6:])
        for i in range(self._substeps):
            first(model, data)
            if controller.new_update:  # not in the first step after a reset: robosuite goes on with what it knew there
                self._sense()
            if i == 0:
                controller.set_goal(action[:6])
            data.ctrl[self._arm] = self._torques().clip(self._low, self._high)
            self._gripper.current_action = (self._gripper.current_action + grip).clip(-1.0, 1.0)
            data.ctrl[self._grip] = self._grip_bias + self._grip_weight * self._gripper.current_action
            second(model, data)
            update()
        env.cur_time += env.control_timestep

    def _sense(self) -> None:
        """Tell the controller where the arm is."""
        mujoco, model, data, controller = self._api.mujoco, self._model, self._data, self._controller
        mujoco.mj_jacSite(model, data, self._jacp, self._jacr, self._site)
        mujoco.mj_fullM(model, self._inertia, data.qM)
        joints = self._joints
        controller.ee_pos = np.array(data.site_xpos[self._site])
        controller.ee_ori_mat = np.array(data.site_xmat[self._site].reshape([3, 3]))
        controller.ee_pos_vel = np.dot(self._jacp, data.qvel)
        controller.ee_ori_vel = np.dot(self._jacr, data.qvel)
        controller.joint_pos = data.qpos[self._positions]
        controller.joint_vel = data.qvel[joints]
        controller.J_pos, controller.J_ori = self._jacp[:, joints], self._jacr[:, joints]
        controller.J_full = np.vstack([controller.J_pos, controller.J_ori])
        controller.mass_matrix = self._inertia[joints, :][:, joints]
        controller.new_update = False

    def _torques(self) -> np.ndarray:
        """Return what moves the tip towards its goal."""
        api, c = self._api, self._controller
        # F = kp (x* - x) - kd v, for position and rotation
        turn = api.orientation_error(c.goal_ori, c.ee_ori_mat)
        force = np.multiply(c.goal_pos - c.ee_pos, c.kp[0:3]) + np.multiply(-c.ee_pos_vel, c.kd[0:3])
        torque = np.multiply(turn, c.kp[3:6]) + np.multiply(-c.ee_ori_vel, c.kd[3:6])
        _, lambda_pos, lambda_ori, nullspace = api.opspace_matrices(c.mass_matrix, c.J_full, c.J_pos, c.J_ori)
        wrench = np.concatenate([np.dot(lambda_pos, force), np.dot(lambda_ori, torque)])
        # τ = Jᵀ Λ F + gravity, and towards the initial joints in what is left free
        torques = np.dot(c.J_full.T, wrench) + self._data.qfrc_bias[self._joints]
        torques += api.nullspace_torques(c.mass_matrix, nullspace, c.initial_joint, c.joint_pos, c.joint_vel)
        c.torques = torques
        c.new_update = True
        return torques


__all__ = ["Stepper"]
