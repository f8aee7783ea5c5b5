"""The tabletop as a simulator: ``tabletop/open_drawer``."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np

from ..base import Field, Simulator, Spec, SpecError, StepResult, Task, put
from ..choices import check_choices, take_options, width_and_height
from .control import MODES, Controller, InvalidAction
from .expert import Expert
from .rendering import QUALITIES, Cameras
from .scene import CAMERAS, CONTROL_PERIOD
from .task import TabletopTask, discover, find
from .world import World, matrix_to_quat

_KINDS = ("rgb", "depth", "mask")

#: Their dtypes and bounds.
_IMAGES: Dict[str, Tuple[str, Any, Any]] = {
    "rgb": ("uint8", 0, 255),
    "depth": ("float32", 0.0, 1.0),
    "mask": ("float32", None, None),
}

#: Fields of the robot, as RLBench names them.
_STATE_FIELDS: Dict[str, Tuple[int, ...]] = {
    "joint_velocities": (7,),
    "joint_positions": (7,),
    "joint_forces": (7,),
    "gripper_pose": (7,),
    "gripper_matrix": (4, 4),
    "gripper_joint_positions": (2,),
    "gripper_touch_forces": (6,),
    "gripper_open": (),
}


@dataclass(frozen=True)
class Options:
    """How the tabletop is seen and moved."""

    cameras: Sequence[str] = ("front", "wrist")
    """Which are rendered, of front, wrist, left_shoulder, right_shoulder, overhead."""
    image_size: Union[int, Sequence[int]] = (128, 128)
    """Width and height in pixels."""
    depth: bool = False
    mask: bool = False
    render_quality: str = "fast"
    """"fast" leaves out shadows and smooth edges, "good" has them, "full" has finer ones."""
    arm_mode: str = "ik"
    """What actions mean: ik, planning, delta_ee, joint_position, joint_velocity."""
    variation: Optional[int] = None
    """Which is played; by default the seed says."""
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """What the tasks let one choose, such as reach_target's `radius`."""
    shaped_rewards: bool = False
    """Also reward every bit of progress towards the goal, and charge for what is lost again."""
    expert: bool = False
    """Add the field `expert_action`: what the scripted policy would do next."""

    def __post_init__(self) -> None:
        check_choices(
            (
                ("arm_mode", self.arm_mode, tuple(MODES)),
                ("render_quality", self.render_quality, tuple(QUALITIES)),
                *(("camera", camera, CAMERAS) for camera in self.cameras),
            )
        )
        width_and_height(self.image_size, 1024)

    @property
    def size(self) -> Tuple[int, int]:
        """Width and height."""
        return width_and_height(self.image_size, 1024)

    @property
    def kinds(self) -> Tuple[str, ...]:
        """What is taken of each camera."""
        return tuple(kind for kind, on in zip(_KINDS, (True, self.depth, self.mask)) if on)


class TabletopSimulator(Simulator):
    """A Panda-shaped arm at a table, and one or several tasks: those in `tasks/`, or others by import string."""

    def __init__(
        self,
        task: str = "",
        tasks: Sequence[str] = (),
        max_episode_steps: Optional[int] = None,
        **options: Any,
    ) -> None:
        """Open a scene; `options` are those of `Options`. With several `tasks`, every reset says which is played."""
        self.options = take_options(Options, options)
        classes = {found.name: found for found in map(find, tasks or [task or "reach_target"])}
        self._names = list(classes)
        shares = _shared_out(self.options.task_options, classes)
        self._scenes = {name: _Scene(known(**shares[name]), self.options.arm_mode) for name, known in classes.items()}
        self._limit = max_episode_steps
        self._cameras = Cameras(self.options.size, self.options.render_quality)
        self._rng = np.random.default_rng()
        self._info: Dict[str, Any] = {}
        self._steps = 0
        self._enter(self._names[0])
        self._begin(0)
        self.spec = self._describe()
        if self.options.cameras:
            self.render(self.options.cameras[0])  # says now what is missing

    @classmethod
    def list_tasks(cls) -> Dict[str, str]:
        return {name: task().all_descriptions()[0] for name, task in discover().items()}

    @classmethod
    def foresee(cls, task: str = "", tasks: Sequence[str] = (), **options: Any) -> List[str]:
        for name in tasks or [task or "reach_target"]:
            find(name)
        return []

    @classmethod
    def preload(cls, **options: Any) -> None:
        discover()

    def _enter(self, name: str) -> None:
        """Go over to the scene of a task."""
        scene = self._scenes[name]
        self._name, self._task, self._world, self._controller = name, scene.task, scene.world, scene.controller

    def _describe(self) -> Spec:
        width, height = self.options.size
        fields: Dict[str, Field] = {}
        for camera in self.options.cameras:
            for kind in self.options.kinds:
                shape = (height, width, 3) if kind == "rgb" else (height, width)
                dtype, low, high = _IMAGES[kind]
                fields[camera + "_" + kind] = Field(shape, dtype, low, high, camera=camera)
        fields.update({name: Field(shape) for name, shape in _STATE_FIELDS.items()})
        sizes = {scene.task.state(scene.world).shape[0] for scene in self._scenes.values()}
        fields["task_low_dim_state"] = Field((max(sizes),), ragged=len(sizes) > 1)
        action = MODES[self.options.arm_mode]()
        if self.options.expert:
            fields["expert_action"] = Field(action.shape)
        return Spec(
            observations=fields,
            actions={"": action},
            control_rate=1.0 / CONTROL_PERIOD,
            horizon=self._limit or max(scene.task.horizon for scene in self._scenes.values()),
            tasks=tuple(Task(name, scene.task.all_descriptions()) for name, scene in self._scenes.items()),
            can_save=True,
        )

    # -- episodes -----------------------------------------------------------------------------------------------------

    def reset(self, task: Optional[str], seed: Optional[int], init_state: Any) -> None:
        if task is not None:
            name = task if task in self._scenes else find(task).name
            if name not in self._scenes:
                raise SpecError("this row plays %s; %s needs a row of its own" % (", ".join(self._names), name))
            self._enter(name)
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        episode = int(self._rng.integers(2**31))
        if isinstance(init_state, dict) and "physics" in init_state:
            self.load_state(init_state)
            self._steps = 0
            self._info = self._introduce()
            return
        wanted = init_state.get("variation") if isinstance(init_state, dict) else init_state
        self._begin(episode, None if wanted is None else int(wanted))
        self._info = self._introduce()

    def _begin(self, episode: int, variation: Optional[int] = None) -> None:
        """Lay out the episode of a number: the same number gives the same scene, in any process."""
        rng = np.random.default_rng(episode)
        drawn = int(rng.integers(len(self._task.variations)))
        chosen = next((v for v in (variation, self.options.variation) if v is not None), drawn)
        if not 0 <= chosen < len(self._task.variations):
            raise SpecError("%s has variations 0 to %d" % (self._name, len(self._task.variations) - 1))
        self._episode, self._played, self._steps = episode, chosen, 0
        self._world.restart()
        self._task.lay_out(self._world, rng, chosen)
        self._world.forward()
        self._progress = self._task.progress(self._world) if self.options.shaped_rewards else 0.0
        self._controller.rng = np.random.default_rng(episode + 1)
        self._expert: Optional[Expert] = None

    def _introduce(self) -> Dict[str, Any]:
        return {
            "descriptions": self._task.descriptions(self._played),
            "variation": self._played,
            "variation_name": self._task.variations[self._played],
        }

    def step(self, action: Any) -> StepResult:
        self._info = {}
        self._steps += 1
        if self.options.arm_mode == "planning":
            self._controller.held = [name for name in self._task.graspable if self._world.grasped(name)]
        try:
            self._controller.apply(action)
        except InvalidAction as error:
            self._info = {"invalid_action": str(error)}
            self._controller.tick()
        success = self._task.succeeded(self._world)
        reward = float(success)
        if self.options.shaped_rewards:
            before, self._progress = self._progress, self._task.progress(self._world)
            reward += self._progress - before
        return StepResult(reward, success, success, self._steps >= (self._limit or self._task.horizon))

    def info(self) -> Dict[str, Any]:
        return self._info

    # -- what is seen -------------------------------------------------------------------------------------------------

    def observe(self, out: Dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        world, data = self._world, self._world.data
        position, rotation = world.tip_pose()
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = rotation, position
        out["joint_velocities"][:] = data.qvel[world.arm_dofs]
        out["joint_positions"][:] = data.qpos[world.arm_qpos]
        out["joint_forces"][:] = data.qfrc_actuator[world.arm_dofs]
        out["gripper_pose"][:3] = position
        out["gripper_pose"][3:] = matrix_to_quat(rotation)
        out["gripper_matrix"][:] = matrix
        out["gripper_joint_positions"][:] = data.qpos[world.finger_qpos]
        out["gripper_touch_forces"][:] = world.touch_forces()
        out["gripper_open"][...] = world.openness() > 0.9
        put(out, "task_low_dim_state", self._task.state(world).astype(np.float32))
        if "expert_action" in out:
            out["expert_action"][:] = self.expert_action()
        for camera in cameras:
            if self.options.kinds == ("rgb",):
                self._cameras.look_into(world.model, data, camera, out[camera + "_rgb"])
            else:
                for kind, image in self._cameras.look(world.model, data, camera, self.options.kinds).items():
                    out[camera + "_" + kind][...] = image

    def render(self, camera: str = "front") -> np.ndarray:
        """Return a frame, whether or not cameras are observed."""
        return self._cameras.look(self._world.model, self._world.data, camera, ("rgb",))["rgb"].copy()

    def expert_action(self) -> np.ndarray:
        """Return what the scripted policy would do now."""
        if self._expert is None:
            self._expert = Expert(self._task, self._world, self._played, self.options.arm_mode)
        return self._expert.act()

    # -- state --------------------------------------------------------------------------------------------------------

    def save_state(self) -> Any:
        return {
            "task": self._name,
            "episode": self._episode,
            "variation": self._played,
            "steps": self._steps,
            "physics": self._world.save(),
            "planner": self._controller.rng.bit_generator.state,
        }

    def load_state(self, state: Any) -> None:
        if state["task"] not in self._scenes:
            raise SpecError("this state is of %s, this row plays %s" % (state["task"], ", ".join(self._names)))
        self._enter(state["task"])
        self._begin(state["episode"], state["variation"])
        self._steps = state["steps"]
        self._world.load(state["physics"])
        self._controller.rng.bit_generator.state = state["planner"]
        if self.options.shaped_rewards:
            self._progress = self._task.progress(self._world)

    def close(self) -> None:
        self._cameras.close()


class _Scene:
    """A task's world and what moves the arm in it."""

    def __init__(self, task: TabletopTask, mode: str) -> None:
        self.task = task
        self.world = World(task.xml())
        self.controller = Controller(self.world, mode, np.random.default_rng(0))
        self.world.restart()
        task.lay_out(self.world, np.random.default_rng(0), 0)
        self.world.forward()


def _shared_out(options: Mapping[str, Any], tasks: Mapping[str, Type[TabletopTask]]) -> Dict[str, Dict[str, Any]]:
    """Give every task those options that it has; one that none of them has is an error."""
    has = {name: set(inspect.signature(task).parameters) for name, task in tasks.items()}
    for option in options:
        if not any(option in known for known in has.values()):
            raise SpecError("%s has no option %r" % (", ".join(tasks), option), option)
    return {name: {o: value for o, value in options.items() if o in known} for name, known in has.items()}


__all__ = ["TabletopSimulator"]
