"""The tabletop as a simulator: ``tabletop/open_drawer``."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np

from ..base import Field, Simulator, Spec, SpecError, StepResult, Task, put
from ..choices import check_choices, take_options, width_and_height
from .control import MODES, Controller, refusal
from .expert import Expert
from .observation import ROBOT_FIELDS, observe_robot
from .planning import Planner
from .rendering import QUALITIES, Cameras
from .scene import CAMERAS, CONTROL_PERIOD
from .task import TabletopTask, begin, check_rows, discover, find
from .world import World
from .worlds import BatchOfOne

_KINDS = ("rgb", "depth", "mask")

#: Their dtypes and bounds.
_IMAGES: Dict[str, Tuple[str, Any, Any]] = {
    "rgb": ("uint8", 0, 255),
    "depth": ("float32", 0.0, 1.0),
    "mask": ("float32", None, None),
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
        self._name, self._task, self._world, self._worlds = name, scene.task, scene.world, scene.worlds
        self._controller, self._planner = scene.controller, scene.planner

    def _describe(self) -> Spec:
        width, height = self.options.size
        fields: Dict[str, Field] = {}
        for camera in self.options.cameras:
            for kind in self.options.kinds:
                shape = (height, width, 3) if kind == "rgb" else (height, width)
                dtype, low, high = _IMAGES[kind]
                fields[camera + "_" + kind] = Field(shape, dtype, low, high, camera=camera)
        fields.update({name: Field(shape) for name, shape in ROBOT_FIELDS.items()})
        sizes = {scene.task.state(scene.worlds).shape[1] for scene in self._scenes.values()}
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
        """Lay out the episode of a number."""
        wanted = self.options.variation if variation is None else variation
        self._played = begin(self._task, self._world, episode, wanted)
        self._episode, self._steps = episode, 0
        self._progress = self._made_progress()
        self._planner.rng = np.random.default_rng(episode + 1)
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
            self._planner.held = [name for name in self._task.graspable if self._world.grasped(name)]
        refused = self._controller.apply(np.asarray(action)[None])
        if refused is not None and refused[0]:
            self._info = {"invalid_action": refusal(int(refused[0]), action)}
        success = bool(self._task.succeeded(self._worlds)[0])
        reward = float(success)
        if self.options.shaped_rewards:
            before, self._progress = self._progress, self._made_progress()
            reward += self._progress - before
        return StepResult(reward, success, success, self._steps >= (self._limit or self._task.horizon))

    def _made_progress(self) -> float:
        """Return how far the episode has come; it matters to shaped rewards only."""
        return float(self._task.progress(self._worlds)[0]) if self.options.shaped_rewards else 0.0

    def info(self) -> Dict[str, Any]:
        return self._info

    # -- what is seen -------------------------------------------------------------------------------------------------

    def observe(self, out: Dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        observe_robot(self._worlds, {name: out[name][None] for name in ROBOT_FIELDS})
        put(out, "task_low_dim_state", self._task.state(self._worlds)[0].astype(np.float32))
        if "expert_action" in out:
            out["expert_action"][:] = self.expert_action()
        world = self._world
        for camera in cameras:
            if self.options.kinds == ("rgb",):
                self._cameras.look_into(world.model, world.data, camera, out[camera + "_rgb"])
            else:
                for kind, image in self._cameras.look(world.model, world.data, camera, self.options.kinds).items():
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
            "planner": self._planner.rng.bit_generator.state,
        }

    def load_state(self, state: Any) -> None:
        if state["task"] not in self._scenes:
            raise SpecError("this state is of %s, this row plays %s" % (state["task"], ", ".join(self._names)))
        self._enter(state["task"])
        self._begin(state["episode"], state["variation"])
        self._steps = state["steps"]
        self._world.load(state["physics"])
        self._planner.rng.bit_generator.state = state["planner"]
        self._progress = self._made_progress()

    def close(self) -> None:
        self._cameras.close()


class _Scene:
    """A task's world and what moves the arm in it."""

    def __init__(self, task: TabletopTask, mode: str) -> None:
        self.task = task
        self.world = World(task.xml())
        self.worlds = BatchOfOne(self.world)
        self.planner = Planner(self.world)
        self.controller = Controller(self.worlds, mode, [self.planner])
        begin(task, self.world, 0)
        check_rows(task, self.world)


def _shared_out(options: Mapping[str, Any], tasks: Mapping[str, Type[TabletopTask]]) -> Dict[str, Dict[str, Any]]:
    """Give every task those options that it has; one that none of them has is an error."""
    has = {name: set(inspect.signature(task).parameters) for name, task in tasks.items()}
    for option in options:
        if not any(option in known for known in has.values()):
            raise SpecError("%s has no option %r" % (", ".join(tasks), option), option)
    return {name: {o: value for o, value in options.items() if o in known} for name, known in has.items()}


__all__ = ["TabletopSimulator"]
