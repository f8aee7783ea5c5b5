"""One task of LIBERO, built: LIBERO's own environment, stepped and looked at by us.

LIBERO looks after 24 of the 25 physics steps of an action, not at its end, and what it sees is computed from where
things were one physics step before. So that observations are LIBERO's to the bit, the environment is left a single
observable, which keeps a copy of the physics whenever LIBERO would have looked; sensors and cameras then see that copy,
when somebody asks.
"""

from __future__ import annotations

import gc
import warnings
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from ..about import MissingPart
from ..base import SpecError
from ..graphics import check_backend
from . import install
from .tasks import SuiteTask

#: The gripper open, the arm still.
NO_OP = np.array([0.0] * 6 + [-1.0])

#: Attempts of robosuite's to lay things out without overlap before we give up: LIBERO never would.
_LAYOUT_ATTEMPTS = 50


#: What sensors and cameras read of the physics.
_VISIBLE = (
    *("qpos", "qvel", "xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat"),
    *("cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
)

#: Sensors that are not part of an observation, but of others' formulas.
_NEEDED_BY_OTHERS = ("world_pose_in_gripper",)

#: What the controller goes on from; the rest it looks up, or has from the reset.
_OF_CONTROLLER = ("goal_pos", "goal_ori")

#: The most things that are drawn, as robosuite has it.
_MAX_GEOMS = 1000


class NoLayout(RuntimeError):
    """Things could not be placed without overlap."""


class Scene:
    """A task's model, its physics and its goal."""

    def __init__(self, api: Any, task: SuiteTask) -> None:
        self.task = task
        self._api = api
        try:
            self._control = api.ControlEnv(
                bddl_file_name=task.bddl_file,
                use_camera_obs=False,
                has_offscreen_renderer=False,
                hard_reset=False,
                ignore_done=True,
            )
        except FileNotFoundError as error:
            raise MissingPart("the assets of LIBERO lack something that %s needs: %s" % (task.name, error)) from error
        env = self._env = self._control.env
        self.model, self.data = env.sim.model._model, env.sim.data._data
        # A hard reset appends these once more, so each draws two random numbers in the first episode of a new
        # ControlEnv: that is the layout a seed stands for.
        env.object_property_initializers = env.object_property_initializers * 2
        self._fresh = {name: getattr(self.model, name).copy() for name in ("site_rgba", "body_pos", "body_quat")}
        self._seen = api.MjData(env.sim.model)
        self._seen_rgba = self.model.site_rgba.copy()
        self._visible = [(getattr(self._seen._data, name), getattr(self.data, name)) for name in _VISIBLE]
        self._sensors = {n: o for n, o in env._observables.items() if o.is_active() or n in _NEEDED_BY_OTHERS}
        self._clock = api.Observable("physics", _sensor(self._keep), sampling_rate=env.control_freq)
        env._observables = {"physics": self._clock}
        self.init_states = task.init_states()
        self._stepper: Optional[Stepper] = None
        self._exact = True
        self._check_steps()
        install.trim(api.mujoco)

    def _check_steps(self) -> None:
        """See whether our steps equal robosuite's to the bit; they do not with versions of MuJoCo before 3.3."""
        ours = self._try_out()
        self._exact = False
        if np.array_equal(ours, self._try_out()):
            self._exact = True
        else:
            warnings.warn(
                "manyarms' steps differ from robosuite's with these versions: robosuite's are taken, which are slower",
                RuntimeWarning,
                stacklevel=3,
            )

    def _try_out(self) -> np.ndarray:
        """Return what becomes of some actions."""
        self.reset(0, self.init_states[0])
        for _ in range(3):
            self.step(np.array([0.3, -0.2, -0.5, 0.1, -0.1, 0.2, 1.0]))
        return self.physics()

    # -- episodes -----------------------------------------------------------------------------------------------------

    def reset(self, seed: int, state: Optional[np.ndarray]) -> None:
        """Lay things out: what is fixed to the scene from the seed, everything else from a state, if there is one."""
        np.random.seed(seed % 2**32)
        for name, value in self._fresh.items():
            getattr(self.model, name)[:] = value
        # Not ControlEnv.reset: it tries again for ever, whatever the error.
        for _ in range(_LAYOUT_ATTEMPTS):
            try:
                self._env.reset()
                break
            except self._api.RandomizationError:
                continue
        else:
            raise NoLayout("%s could not be laid out in %d attempts" % (self.task.name, _LAYOUT_ATTEMPTS))
        if state is not None:
            if state.shape != self.init_states[0].shape:
                raise SpecError(
                    "a state of %s has %d numbers (time, positions, velocities), got %s"
                    % (self.task.name, self.init_states.shape[1], state.shape)
                )
            self._control.set_init_state(state)
        self._stepper = Stepper(self._api, self._env)

    def step(self, action: np.ndarray) -> bool:
        """Apply an action; tell whether the goal is reached."""
        if not self._exact:
            return bool(self._control.step(action)[2])
        assert self._stepper is not None
        self._stepper.step(action)
        success = bool(self._env._check_success())
        self._env._post_process()
        return success

    # -- what is seen -------------------------------------------------------------------------------------------------

    def _keep(self, cache: Any = None) -> np.ndarray:
        """Keep what can be seen now."""
        for kept, live in self._visible:
            kept[...] = live
        self._seen_rgba[:] = self.model.site_rgba
        return np.zeros(2)

    def sense(self) -> Dict[str, np.ndarray]:
        """Return what LIBERO's sensors saw when it last looked, and the objects' together as ``object-state``."""
        sim = self._env.sim
        seen: Dict[str, Any] = {}
        live, sim.data = sim.data, self._seen
        try:
            for name, sensor in self._sensors.items():
                seen[name] = np.array(sensor._sensor(seen))
        finally:
            sim.data = live
        of_objects = [seen[n] for n, s in self._sensors.items() if s.modality == "object" and s.is_active()]
        seen["object-state"] = np.concatenate([value.ravel() for value in of_objects])
        return seen

    def look(self, renderer: Any, camera: str) -> np.ndarray:
        """Return what a camera saw when LIBERO last looked."""
        rgba = self.model.site_rgba
        lit = rgba.copy()
        rgba[:] = self._seen_rgba  # a stove that has just been turned on does not glow yet
        try:
            return renderer.look(self._seen._data, camera)
        finally:
            rgba[:] = lit

    # -- state --------------------------------------------------------------------------------------------------------

    def physics(self) -> np.ndarray:
        """Return everything that physics goes on from."""
        mujoco = self._api.mujoco
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(self.model, kind))
        mujoco.mj_getState(self.model, self.data, state, kind)
        return state

    def save(self) -> Dict[str, Any]:
        """Return the whole state."""
        controller, gripper = self._env.robots[0].controller, self._env.robots[0].gripper
        return {
            "physics": self.physics(),
            "model": {name: getattr(self.model, name).copy() for name in self._fresh},
            "controller": {name: np.array(getattr(controller, name)) for name in _OF_CONTROLLER},
            "looks_again": bool(controller.new_update),
            "gripper": np.array(gripper.current_action),
            "clock": [self._clock._time_since_last_sample, self._clock._sampled],
            "seen": [kept.copy() for kept, _ in self._visible],
            "seen_rgba": self._seen_rgba.copy(),
        }

    def load(self, state: Dict[str, Any]) -> None:
        """Go back to a saved state, and to what was seen of it."""
        mujoco = self._api.mujoco
        self.reset(0, None)
        for name, value in state["model"].items():
            getattr(self.model, name)[:] = value
        mujoco.mj_setState(self.model, self.data, state["physics"], mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(self.model, self.data)
        controller, gripper = self._env.robots[0].controller, self._env.robots[0].gripper
        for name, value in state["controller"].items():
            setattr(controller, name, np.array(value))
        controller.new_update = state["looks_again"]
        gripper.current_action = np.array(state["gripper"])
        self._env._post_process()
        self._clock._time_since_last_sample, self._clock._sampled = state["clock"]
        for (kept, _), value in zip(self._visible, state["seen"]):
            kept[...] = value
        self._seen_rgba[:] = state["seen_rgba"]

    def close(self) -> None:
        """Let go of the model, to which LIBERO's parts hold on in circles."""
        self._control.close()
        self.__dict__.clear()
        gc.collect()

    # -- ground truth -------------------------------------------------------------------------------------------------

    @property
    def goal(self) -> List[List[str]]:
        """What must be true at the end: predicates and the names of things."""
        return self._env.parsed_problem["goal_state"]

    def holds(self, goal: List[str]) -> bool:
        """Tell whether a part of the goal is reached."""
        return bool(self._env._eval_predicate(goal))

    def tip(self) -> Tuple[np.ndarray, np.ndarray]:
        """Return where the gripper is, and its rotation matrix."""
        site = self._env.robots[0].eef_site_id
        return self.data.site_xpos[site].copy(), self.data.site_xmat[site].reshape(3, 3).copy()

    def site(self, name: str) -> Tuple[np.ndarray, float]:
        """Return the middle of a region, and how high it reaches."""
        number = self._env.sim.model.site_name2id(name)
        middle, axes = self.data.site_xpos[number].copy(), self.data.site_xmat[number].reshape(3, 3)
        return middle, float(middle[2] + np.abs(axes[2] * self.model.site_size[number]).sum())

    def corners(self, thing: str) -> np.ndarray:
        """Return the corners of the boxes around the parts of a thing that can be touched."""
        found = []
        signs = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, 8).T
        for name in self._env.get_object(thing).contact_geoms:
            geom = self._env.sim.model.geom_name2id(name)
            box = self.model.geom_aabb[geom]
            local = box[:3] + signs * box[3:]
            found.append(local @ self.data.geom_xmat[geom].reshape(3, 3).T + self.data.geom_xpos[geom])
        return np.concatenate(found)


def _sensor(function: Any) -> Any:
    """Make a function what robosuite takes for a sensor."""

    def sensor(cache: Any) -> np.ndarray:
        return function(cache)

    sensor.__modality__ = "physics"  # type: ignore[attr-defined]
    return sensor


class Stepper:
    """robosuite's control of the arm, to the bit, in a third of its time; made anew after every reset.

    robosuite computes a whole forward pass three times a physics step, the Jacobians four times, and the same constants
    every time. Here each is computed once, by the same formulas in the same order; `Scene` makes sure on every machine
    that the results are the same.
    """

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


class Renderer:
    """Renders one model; several in a process take turns with the graphics library."""

    def __init__(self, mujoco: Any, model: Any, size: Tuple[int, int], faithful: bool) -> None:
        check_backend()
        self._mujoco, self._model = mujoco, model
        width, height = size
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        if not faithful:
            model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
        look = model.vis.global_
        look.offwidth, look.offheight = max(width, look.offwidth), max(height, look.offheight)
        self._context: Any = mujoco.GLContext(look.offwidth, look.offheight)
        self._context.make_current()
        self._buffers: Any = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._buffers)
        self._scene = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS)
        if not faithful:
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._scene.flags[flag] = 0
        self._options, self._hand = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._options.geomgroup[0] = 0  # what collides; what is seen is in group 1
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._image = np.empty((height, width, 3), np.uint8)

    def look(self, data: Any, camera: str) -> np.ndarray:
        """Return an image, upside down as OpenGL has it; valid until the next look."""
        mujoco = self._mujoco
        self._context.make_current()
        self._camera.fixedcamid = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._options, self._hand, self._camera, everything, self._scene)
        mujoco.mjr_render(self._viewport, self._scene, self._buffers)
        mujoco.mjr_readPixels(self._image, None, self._viewport, self._buffers)
        return self._image

    def close(self) -> None:
        """Let go of the graphics context."""
        if self._context is not None:
            self._context.make_current()
            self._buffers.free()
            self._context.free()
            self._context = self._buffers = None
