"""LIBERO as a simulator: ``libero/libero_object/0``, ``libero/object``, ``libero`` with tasks by name.

It runs in an interpreter of its own, which scripts/install_libero.sh makes. One model a task is built (seconds), if
possible before workers are forked, which then share it; a reset lays it out anew (milliseconds).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from ..about import MissingPart
from ..base import Field, Simulator, Spec, SpecError, StepResult, Task, put
from ..choices import check_choices, check_least, take_options, width_and_height
from ..graphics import has_gpu
from . import install
from .expert import Expert
from .scene import NO_OP, Renderer, Scene
from .tasks import SUITES, Suites, SuiteTask

#: What we call a camera -> what the model does; observations are named ``<camera of the model>_image``.
CAMERAS: Dict[str, str] = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}

LAYOUTS = ("fixed", "sampled")

#: As an episode's `init_state`: begin from a layout that the seed draws, not from a fixed state.
_SAMPLED = "sampled"

#: LIBERO's names for what its sensors give, and their sizes.
_SENSORS = {
    "robot0_joint_pos": 7,
    "robot0_eef_pos": 3,
    "robot0_eef_quat": 4,
    "robot0_gripper_qpos": 2,
}

#: Numbers in ``object-state`` an object: its pose, and its pose as the gripper sees it.
_PER_OBJECT = 14

_CONTROL_RATE = 20.0

#: Below this share of the machine's memory that is free, models of tasks that are not played are given up.
_SPARE_MEMORY = 0.15

#: Models built before this process was forked, by task.
_prepared: Dict[str, Scene] = {}


@dataclass(frozen=True)
class Options:
    """How LIBERO is seen and started."""

    cameras: Sequence[str] = ("agentview", "wrist")
    """Which are rendered, of agentview, wrist."""
    image_size: Union[int, Sequence[int]] = 128
    """Width and height in pixels."""
    faithful: Optional[bool] = None
    """Render as LIBERO does, to the pixel; False leaves out shadows, reflections and smooth edges; by default where
    rendering is done by a GPU."""
    rotate: bool = True
    """Turn images by 180 degrees, as openpi and OpenVLA expect them; False: upside down, as LIBERO gives them."""
    settle_steps: int = 10
    """Steps with an open gripper before an episode begins, in which things fall into place."""
    layout: str = "fixed"
    """Where things lie at the start: one of the task's fixed initial states, or sampled anew."""
    expert: bool = False
    """Add the field `expert_action`: what a scripted policy would do next; for tasks that fill a basket."""
    keep_tasks: int = 10
    """How many tasks' models are kept in memory, as long as there is memory."""

    def __post_init__(self) -> None:
        check_choices(
            (
                ("layout", self.layout, LAYOUTS),
                *(("camera", camera, tuple(CAMERAS)) for camera in self.cameras),
            )
        )
        width_and_height(self.image_size, 2048)
        check_least(self, settle_steps=0, keep_tasks=1)

    @property
    def size(self) -> Tuple[int, int]:
        """Width and height."""
        return width_and_height(self.image_size, 2048)


class LiberoSimulator(Simulator):
    """A Panda arm in one of LIBERO's scenes, and one or several tasks of its suites."""

    def __init__(
        self,
        task: str = "",
        tasks: Sequence[str] = (),
        max_episode_steps: Optional[int] = None,
        **options: Any,
    ) -> None:
        """Build the first task; `options` are those of `Options`. With several tasks, every reset says which is played.

        An episode is truncated after `max_episode_steps`, by default after as many as its suite is evaluated with.
        """
        self.options = take_options(Options, options)
        backend = install.prepare()
        self._suites = Suites(install.root())
        self._tasks = {found.name: found for found in find_tasks(self._suites, task, tasks)}
        self._api = install.load()
        on_a_gpu = backend == "egl" and has_gpu()
        self._faithful = on_a_gpu if self.options.faithful is None else self.options.faithful
        self._limit = max_episode_steps
        self._rng = np.random.default_rng()
        self._scenes: "OrderedDict[str, Scene]" = OrderedDict()
        self._renderer: Optional[Renderer] = None
        self._expert: Optional[Expert] = None
        self._info: Dict[str, Any] = {}
        self._steps = 0
        self._enter(next(iter(self._tasks)))
        self.spec = self._describe()
        if self.options.cameras:
            self.render(self.options.cameras[0])  # says now what is missing
        if self.options.expert:
            Expert(self._scene)

    @classmethod
    def list_tasks(cls) -> Dict[str, str]:
        """Return the suites, and where LIBERO is installed their tasks as well."""
        try:
            return {**SUITES, **Suites(install.root()).in_words()}
        except MissingPart:
            return dict(SUITES)

    @classmethod
    def foresee(cls, task: str = "", tasks: Sequence[str] = (), **options: Any) -> List[str]:
        try:
            find_tasks(Suites(install.root()), task, tasks)
        except MissingPart as error:
            return [str(error)]
        return []

    @classmethod
    def preload(cls, task: str = "", tasks: Sequence[str] = (), **options: Any) -> None:
        # Models are built without a graphics context, which would not survive a fork.
        install.prepare()
        api = install.load()
        kept = Options(**{name: value for name, value in options.items() if name == "keep_tasks"}).keep_tasks
        for found in find_tasks(Suites(install.root()), task, tasks)[:kept]:
            if _prepared and not install.has_memory(_SPARE_MEMORY):
                break
            _prepared[found.name] = Scene(api, found)

    def _enter(self, name: str) -> None:
        """Go over to a task: to its model if it is there, else to a new one."""
        if name in self._scenes and self._scene is self._scenes[name]:
            return
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        if name not in self._scenes:
            while self._scenes and not self._has_room():
                self._scenes.popitem(last=False)[1].close()
            self._scenes[name] = _prepared.pop(name, None) or Scene(self._api, self._tasks[name])
        self._scenes.move_to_end(name)
        self._scene = self._scenes[name]

    def _has_room(self) -> bool:
        return len(self._scenes) < self.options.keep_tasks and install.has_memory(_SPARE_MEMORY)

    def _describe(self) -> Spec:
        width, height = self.options.size
        fields: Dict[str, Field] = {}
        for camera in self.options.cameras:
            fields[image_name(camera)] = Field((height, width, 3), "uint8", 0, 255, camera=camera)
        fields.update({name: Field((size,)) for name, size in _SENSORS.items()})
        problems = {name: self._api.parse(found.bddl_file) for name, found in self._tasks.items()}
        sizes = {_PER_OBJECT * sum(map(len, problem["objects"].values())) for problem in problems.values()}
        fields["object-state"] = Field((max(sizes),), ragged=len(sizes) > 1)
        fields["state"] = Field((8,))
        if self.options.expert:
            fields["expert_action"] = Field((7,))
        return Spec(
            observations=fields,
            actions={"": Field((7,), "float32", -1.0, 1.0)},
            control_rate=_CONTROL_RATE,
            horizon=self._limit or max(found.cap for found in self._tasks.values()),
            tasks=tuple(Task(name, (found.language,)) for name, found in self._tasks.items()),
            can_save=True,
        )

    # -- episodes -----------------------------------------------------------------------------------------------------

    def reset(self, task: Optional[str], seed: Optional[int], init_state: Any) -> None:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        drawn = int(self._rng.integers(2**31))
        if isinstance(init_state, dict):
            self.load_state(init_state)
            self._steps = 0
            self._info = self._introduce(None)
            return
        if task is not None:
            self._enter(self._named(task))
        self._expert = None
        state, index = self._first_state(init_state, drawn)
        self._scene.reset(drawn if seed is None else seed, state)
        for _ in range(self.options.settle_steps):
            self._scene.step(NO_OP)
        self._steps = 0
        self._info = self._introduce(index)

    def _named(self, text: str) -> str:
        """Return the name of a task of this row."""
        found = self._suites.find(text)
        if len(found) > 1 or found[0].name not in self._tasks:
            raise SpecError("this row plays %s; %s needs a row of its own" % (", ".join(self._tasks), text))
        return found[0].name

    def _first_state(self, wanted: Any, drawn: int) -> Any:
        """Return the state an episode begins from and its number, where it has one."""
        if isinstance(wanted, (list, np.ndarray)):
            return np.asarray(wanted, np.float64), None
        states = self._scene.init_states
        if wanted is None and self.options.layout == "sampled":
            wanted = _SAMPLED
        if wanted == _SAMPLED:
            return None, None
        if wanted is None:
            wanted = drawn % len(states)
        if not 0 <= int(wanted) < len(states):
            raise SpecError("%s has initial states 0 to %d, got %r" % (self._scene.task.name, len(states) - 1, wanted))
        return states[int(wanted)], int(wanted)

    def _introduce(self, index: Optional[int]) -> Dict[str, Any]:
        task = self._scene.task
        info = {"descriptions": [task.language], "suite": task.suite, "task": task.name}
        return info if index is None else {**info, "init_state": index}

    def step(self, action: Any) -> StepResult:
        self._info = {}
        self._steps += 1
        success = self._scene.step(np.array(action, np.float64))
        # The goal ends an episode, as in LIBERO; its own clock would not show, and raise one step later.
        over = self._steps >= (self._limit or self._scene.task.cap)
        return StepResult(float(success), success, success, over)

    def info(self) -> Dict[str, Any]:
        return self._info

    # -- what is seen -------------------------------------------------------------------------------------------------

    def observe(self, out: Dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        seen = self._scene.sense()
        for name in _SENSORS:
            out[name][:] = seen[name]
        put(out, "object-state", seen["object-state"].astype(np.float32))
        out["state"][:3] = seen["robot0_eef_pos"]
        out["state"][3:6] = axis_angle(seen["robot0_eef_quat"])
        out["state"][6:] = seen["robot0_gripper_qpos"]
        if "expert_action" in out:
            out["expert_action"][:] = self.expert_action()
        for camera in cameras:
            out[image_name(camera)][...] = self.render(camera)

    def render(self, camera: str = "agentview") -> np.ndarray:
        """Return a frame, whether or not cameras are observed."""
        if self._renderer is None:
            self._renderer = Renderer(self._api.mujoco, self._scene.model, self.options.size, self._faithful)
        image = self._scene.look(self._renderer, CAMERAS[camera])
        return image[::-1, ::-1].copy() if self.options.rotate else image.copy()

    def expert_action(self) -> np.ndarray:
        """Return what the scripted policy would do now."""
        if self._expert is None:
            self._expert = Expert(self._scene)
        return self._expert.act()

    # -- state --------------------------------------------------------------------------------------------------------

    def save_state(self) -> Any:
        return {"task": self._scene.task.name, "steps": self._steps, **self._scene.save()}

    def load_state(self, state: Any) -> None:
        self._enter(self._named(state["task"]))
        self._expert = None
        self._scene.load(state)
        self._steps = state["steps"]

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        while self._scenes:
            self._scenes.popitem()[1].close()


def find_tasks(suites: Suites, task: str, tasks: Sequence[str]) -> List[SuiteTask]:
    """Return the tasks that an id and the option `tasks` name, each once."""
    prefix = task + "/" if task and tasks else ""
    found = [each for name in (tasks or [task]) for each in suites.find(prefix + str(name))]
    return list(dict.fromkeys(found))


def image_name(camera: str) -> str:
    """Return what LIBERO calls the image of a camera."""
    return CAMERAS[camera] + "_image"


def axis_angle(quat: np.ndarray) -> np.ndarray:
    """Return a rotation (x, y, z, w) as its axis times its angle in 0..2π, by the formula of openpi and OpenVLA."""
    w = min(1.0, max(-1.0, float(quat[3])))
    # θ = 2 acos w; axis = xyz / √(1 - w²)
    sine = float(np.sqrt(1.0 - w * w))
    return quat[:3] * (2.0 * float(np.arccos(w)) / sine) if sine > 0.0 else np.zeros(3)
