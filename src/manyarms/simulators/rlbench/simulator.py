"""RLBench as a simulator: ``rlbench/reach_target``.

One CoppeliaSim a process. RLBench renders at the end of every step whatever its configuration asks for, so everything
is switched off except where somebody will look (`expect`, `observe`): a chunk then renders, and reads the robot's
state, once.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import sys
from contextlib import ExitStack
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from ..base import Field, Simulator, Spec, SpecError, StepResult, Task, UnknownTask
from ..choices import snake_case, take_options
from . import about, install
from .options import MODES, Eyes, Options, with_unit_quaternion
from .tasks import TASKS, task_names, tasks_on_disk

#: The tasks for which RLBench defines more than success.
_SHAPED = ("reach_target", "slide_block_to_target", "take_lid_off_saucepan")

_HORIZON = 200

#: Each is 40 attempts of RLBench's own to place the task.
_RESET_ATTEMPTS = 3

#: In metres.
_SHORTEST_PATH = 1e-4

#: How a worker ends that needs a new CoppeliaSim.
_EXIT_CODE = 70


class RLBenchSimulator(Simulator):
    """An arm at a table in CoppeliaSim, and one or several of RLBench's 106 tasks."""

    _live = False

    def __init__(
        self,
        task: str = "",
        tasks: Sequence[str] = (),
        max_episode_steps: Optional[int] = None,
        **options: Any,
    ) -> None:
        """Launch CoppeliaSim; `options` are those of `Options`. With several `tasks`, every reset says which is played.

        RLBench keeps no time: an episode is truncated after `max_episode_steps`, 200 by default.
        """
        self.options = take_options(Options, options)
        if RLBenchSimulator._live:
            raise SpecError("a process can hold one CoppeliaSim: leave rows_per_worker at 1")
        self._home = install.Home()
        self._env: Any = None
        self._ready = self._shaken = False
        self._task: Any = None
        self._name = ""
        self._news: Dict[str, Any] = {}
        """What is to be told with the next observation."""
        self._refusals = 0
        self._watching: Sequence[str] = ()
        """The cameras that are on while the next step is taken."""
        self._seen: Any = None
        """What the last step saw through them."""
        # A CoppeliaSim that has not come up may hang or crash when shut down, before anyone has heard why: only the
        # home is given back.
        with ExitStack() as undo:
            undo.callback(self._home.remove)
            install.prepare(bool(self.options.cameras))
            self._api = install.load()
            self._known = task_names()
            self._names = list(dict.fromkeys(self._named(name) for name in (tasks or [task or about.task])))
            self._check_rewards()
            self._eyes = Eyes(self._api, self.options)
            self._launch()
            self.spec = self._describe(max_episode_steps)
            undo.pop_all()
        self._ready = True

    @classmethod
    def list_tasks(cls) -> Dict[str, str]:
        return {name: name.replace("_", " ") for name in TASKS}

    @classmethod
    def foresee(cls, task: str = "", tasks: Sequence[str] = (), **options: Any) -> List[str]:
        known = sorted({*TASKS, *tasks_on_disk()})
        for name in tasks or [task or about.task]:
            if snake_case(name) not in known:
                raise UnknownTask(name, known)
        return []

    @classmethod
    def preload(cls, **options: Any) -> None:
        # Not RLBench itself: it loads CoppeliaSim and Qt, which are not made to be forked. This is most of its imports.
        for name in ("gymnasium", "scipy.spatial.transform", "PIL.Image", "pyquaternion", "natsort"):
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)

    # -- setting up ---------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> str:
        """Return a task's name in snake case, for either spelling."""
        found = snake_case(name)
        if found not in self._known:
            raise UnknownTask(name, self._known)
        return found

    def _check_rewards(self) -> None:
        unshaped = [name for name in self._names if name not in _SHAPED]
        if self.options.shaped_rewards and unshaped:
            raise SpecError(
                "RLBench has no shaped rewards for %s, only for %s" % (", ".join(unshaped), ", ".join(_SHAPED))
            )

    def _launch(self) -> None:
        api, options = self._api, self.options
        mode = MODES[options.arm_mode]
        arguments = dict(mode.arguments)
        if "planning" in options.arm_mode:
            arguments["collision_checking"] = options.collision_checking
        arm_mode = getattr(api.arms, mode.class_name)(**arguments)
        self._env = api.Environment(
            action_mode=api.MoveArmThenGripper(arm_mode, api.Discrete()),
            obs_config=self._eyes.config,
            headless=True,
            static_positions=options.static_positions,
            robot_setup=options.robot,
            shaped_rewards=options.shaped_rewards,
            arm_max_velocity=options.arm_max_velocity,
            arm_max_acceleration=options.arm_max_acceleration,
        )
        RLBenchSimulator._live = True
        folder = os.getcwd()
        try:
            self._env.launch()
        except RuntimeError as error:
            raise install.explain(error) from error
        finally:
            os.chdir(folder)
        install.unthrottle(api.sim, options.idle_fps)

    def _enter(self, name: str) -> None:
        """Go over to a task."""
        if name == self._name:
            return
        self._name = ""
        try:
            self._task = self._env.get_task(self._api.name_to_task_class(name))
            # The first reset of a task draws more random numbers than later ones: it belongs to no episode.
            state = np.random.get_state(), random.getstate()
            self._descriptions = self._first_placed()
            np.random.set_state(state[0])
            random.setstate(state[1])
        except RuntimeError as error:
            raise install.explain(error) from error
        self._name = name

    def _first_placed(self) -> List[str]:
        """Lay out a task for the first time, with the first random numbers that let it be; return its descriptions."""
        for seed in range(_RESET_ATTEMPTS - 1):
            _seed(seed)
            try:
                return self._task.reset()[0]
            except self._api.TaskEnvironmentError:
                continue
        _seed(_RESET_ATTEMPTS - 1)
        return self._task.reset()[0]

    def _describe(self, max_episode_steps: Optional[int]) -> Spec:
        room = self.options.state_size
        tasks: List[Task] = []
        sizes = set()
        self._eyes.close()
        seen: Any = None
        for name in self._names:
            if room is None or not tasks:
                self._enter(name)
                seen = self._first_look()
                sizes.add(np.size(seen.task_low_dim_state))
                tasks.append(Task(name, tuple(self._descriptions)))
            else:
                tasks.append(Task(name))
        task_state = Field((room or max(sizes),), ragged=room is not None or len(sizes) > 1)
        mode = MODES[self.options.arm_mode]
        self._action_field = mode.field(self.options.robot)
        return Spec(
            observations=self._eyes.fields(seen, task_state),
            actions={"": self._action_field},
            control_rate=mode.control_rate,
            horizon=max_episode_steps or _HORIZON,
            tasks=tuple(tasks),
        )

    def _first_look(self) -> Any:
        """Look through every camera, so that what is missing is said now."""
        try:
            return self._look(self.options.cameras)
        except NotImplementedError:  # this robot's gripper has no touch sensors
            self._eyes.states.remove("gripper_touch_forces")
            return self._look(self.options.cameras)

    # -- episodes -----------------------------------------------------------------------------------------------------

    def reset(self, task: Optional[str], seed: Optional[int], init_state: Any) -> None:
        name = self._named(task) if task is not None else self._name or self._names[0]
        if name not in self._names:
            raise SpecError("this row plays %s; %s needs a row of its own" % (", ".join(self._names), name))
        wanted = init_state.get("variation") if isinstance(init_state, dict) else init_state
        if wanted is None:
            wanted = self.options.variation
        try:
            self._enter(name)
        except (RuntimeError, self._api.TaskEnvironmentError) as error:
            self._give_up(error)
        count = self._task.variation_count()
        if wanted is not None and not 0 <= int(wanted) < count:
            raise SpecError("%s has variations 0 to %d" % (name, count - 1))
        if seed is not None:
            _seed(seed)
        self._refusals = 0
        self._seen = None
        self._news = self._begin(None if wanted is None else int(wanted))

    def _begin(self, wanted: Optional[int]) -> Dict[str, Any]:
        """Lay out an episode; one that cannot be laid out gives way to the next that the random numbers hold."""
        attempts = 1 if self._shaken else _RESET_ATTEMPTS
        tried = 0
        while True:
            tried += 1
            try:
                if wanted is None:
                    variation = int(self._task.sample_variation())
                else:
                    self._task.set_variation(wanted)
                    variation = wanted
                descriptions, _ = self._task.reset()
                break
            except RuntimeError as error:  # CoppeliaSim's own; one more reset may mend it
                attempts = min(attempts, 1 if self._shaken else tried + 1)
                self._shaken = True
                if tried >= attempts:
                    self._give_up(error)
            except self._api.TaskEnvironmentError as error:
                if tried >= attempts:
                    self._give_up(error)
        self._shaken = False
        info: Dict[str, Any] = {"descriptions": list(descriptions), "variation": variation}
        if tried > 1:
            info["reset_attempts"] = tried
        return info

    def _give_up(self, error: Exception) -> None:
        """End this worker: only a new process gets a new CoppeliaSim."""
        if isinstance(error, RuntimeError):
            error = install.explain(error)
        if not self._ready or "MANYARMS_WORKER" not in os.environ:
            raise error
        print("RLBench cannot go on with %s: %s" % (self._name or "its task", error), file=sys.stderr, flush=True)
        self._home.remove()
        os._exit(_EXIT_CODE)

    def expect(self, cameras: Sequence[str]) -> None:
        # RLBench looks at the end of every step: with its switches set now, the step brings what will be observed.
        if cameras:
            self._eyes.open(cameras)
        self._watching = cameras

    def step(self, action: Any) -> StepResult:
        self._seen = None
        try:
            return self._apply(action)
        finally:
            if self._watching:
                self._eyes.close()

    def _apply(self, action: Any) -> StepResult:
        action = np.array(action, np.float64)
        # RLBench moves the arm before it looks at the length, and hangs on NaN.
        if action.shape != self._action_field.shape:
            size = self._action_field.shape[0]
            raise ValueError("an action of %s has %d numbers, got %s" % (self.options.arm_mode, size, action.shape))
        if not np.isfinite(action).all():
            return self._refuse("the action is not finite")
        if MODES[self.options.arm_mode].pose:
            action = with_unit_quaternion(action)
        if "planning" in self.options.arm_mode:
            self._lengthen(action)
        try:
            seen, reward, terminated = self._task.step(action)
        except self._api.InvalidActionError as error:
            return self._refuse(str(error))
        except RuntimeError as error:
            self._shaken = True
            raise install.explain(error) from error
        if self._watching:
            self._seen = seen
        success = self._succeeded() if self.options.shaped_rewards else reward > 0.0
        return StepResult(float(reward), bool(success), bool(terminated))

    def _lengthen(self, action: np.ndarray) -> None:
        """Move a target where the arm is already by a hair: PyRep divides by a path's length, and hangs on NaN."""
        delta = self.options.arm_mode.startswith("delta")
        here = np.zeros(3) if delta else np.asarray(self._env._robot.arm.get_tip().get_pose()[:3])
        if np.linalg.norm(action[:3] - here) < _SHORTEST_PATH:
            action[2] = here[2] + _SHORTEST_PATH

    def _refuse(self, why: str) -> StepResult:
        """Report an action that was not carried out; the episode goes on."""
        self._refusals += 1
        self._news["invalid_action"] = why
        # A shaped reward is that of where the arm still is: most are below 0, and to be refused must not pay.
        return StepResult(float(self._task._task.reward()) if self.options.shaped_rewards else 0.0)

    def _succeeded(self) -> bool:
        """Ask the task itself: a shaped reward does not say."""
        return bool(self._task._task.success()[0])

    def info(self) -> Dict[str, Any]:
        news, self._news = self._news, {}
        return {**news, "invalid_actions": self._refusals} if self._refusals else news

    # -- what is seen -------------------------------------------------------------------------------------------------

    def observe(self, out: Dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        fresh = self._seen is not None and set(cameras) <= set(self._watching)
        self._eyes.write(self._seen if fresh else self._look(cameras), out, cameras)

    def render(self, camera: str = "") -> np.ndarray:
        """Return a frame of one of the cameras that were asked for at the start."""
        if not self.options.cameras:
            raise SpecError(
                "this RLBench was started without cameras, and they cannot be added: give cameras=['front']"
            )
        camera = camera or self.options.cameras[0]
        self._check_cameras([camera])
        return getattr(self._look([camera]), camera + "_rgb")

    def _check_cameras(self, cameras: Sequence[str]) -> None:
        """Refuse cameras that were taken out of the scene when it was built."""
        unknown = [camera for camera in cameras if camera not in self.options.cameras]
        if unknown:
            known = ", ".join(self.options.cameras) or "none"
            raise SpecError("no camera named %s: this RLBench was started with %s" % (", ".join(unknown), known))

    def _look(self, cameras: Sequence[str]) -> Any:
        with self._eyes.opened(cameras):
            try:
                return self._task.get_observation()
            except NotImplementedError:
                raise
            except RuntimeError as error:
                self._shaken = True
                raise install.explain(error) from error

    # -- demonstrations -----------------------------------------------------------------------------------------------

    def variation_count(self) -> int:
        """Return how many variations the task that is played has."""
        return int(self._task.variation_count())

    def demos(
        self, amount: int = 1, variation: Optional[int] = None, seed: Optional[int] = None, cameras: Sequence[str] = ()
    ) -> List[Dict[str, Any]]:
        """Have RLBench's own experts play, and return what they saw and did; begin an episode before you step again."""
        self._check_cameras(cameras)
        if seed is not None:
            _seed(seed)
        demos = []
        for _ in range(amount):
            if variation is None:
                played = int(self._task.sample_variation())
            else:
                self._task.set_variation(variation)
                played = variation
            with self._eyes.opened(cameras):
                demo = self._one_demo()
            dtypes = {name: self.spec.observations[name].dtype for name in self._eyes.names(cameras)}
            demos.append({"variation": played, **unroll(demo, dtypes)})
        return demos

    def _one_demo(self) -> Any:
        """Have an expert play once. RLBench has it move by positions, and goes back to our mode only if it succeeds."""
        arm, robot = self._env._action_mode.arm_action_mode, self._env._robot
        with ExitStack() as if_it_fails:
            if_it_fails.callback(arm.set_control_mode, robot)
            demo = self._task.get_demos(1, live_demos=True)[0]
            if_it_fails.pop_all()
        return demo

    def close(self) -> None:
        try:
            if self._env is not None:
                self._env.shutdown()
                RLBenchSimulator._live = False
        finally:
            self._env = None
            self._home.remove()


def unroll(demo: Any, dtypes: Mapping[str, str]) -> Dict[str, Any]:
    """Stack a demonstration's fields, time first; the action at t leads to the observation at t + 1."""
    frames = [demo[i] for i in range(len(demo))]
    observations = {
        name: np.stack([np.asarray(getattr(frame, name)) for frame in frames]).astype(dtype)
        for name, dtype in dtypes.items()
    }
    unrolled: Dict[str, Any] = {"observations": observations}
    commands: List[Any] = [(frame.misc or {}).get("joint_position_action") for frame in frames[1:]]
    if commands and all(command is not None for command in commands):
        unrolled["joint_position_actions"] = np.stack(commands).astype(np.float32)
    return unrolled


def _seed(seed: int) -> None:
    """Seed what RLBench and its tasks draw from, which is global."""
    np.random.seed(seed % 2**32)
    random.seed(seed)
