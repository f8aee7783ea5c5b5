"""BEHAVIOR-1K as a simulator: ``behavior/turning_on_radio``.

One Isaac Sim a process, with as many scenes as the worker has rows (`rows_per_worker`). They share one physics, so they
step together, and whatever moves one scene on moves all. So every row is looked at before the others move on without
it, and rows that wait are held where they were last sent.
"""

from __future__ import annotations

import importlib
import random
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy as np

from ..base import Field, LockstepSimulator, Spec, SpecError, Start, StepResult, Task, UnknownTask, put
from ..choices import check_choices, check_least, take_options, width_and_height
from . import about, install
from .releases import Release, release_of, set_rules, weigh_robots
from .robot import ACTION, CAMERAS, HEAD_APERTURE, NAME, Senses, action_field, robot_config
from .scenes import Clean, Instances, QScore, part, put_robot, put_things, read, settle
from .tasks import CHALLENGE, activities, description_of, scene_of

_HORIZON = 2000

#: As often as OmniGibson itself renders after a reset, until images show what is there.
_RENDERS_AFTER_RESET = 3

#: Actions a second.
CONTROL_RATE = 30

GRASPING_MODES = ("assisted", "sticky", "physical")
SPLITS = ("train", "eval")


@dataclass(frozen=True)
class Options:
    """How BEHAVIOR is seen, started and scored."""

    cameras: Sequence[str] = tuple(CAMERAS)
    """Which are rendered, of head, left_wrist, right_wrist."""
    image_size: Union[int, Sequence[int]] = 224
    """Width and height in pixels."""
    scene_model: Optional[str] = None
    """The house; by default the one that the activity's instances are made for."""
    rooms: Optional[Sequence[str]] = None
    """Types of rooms to load; by default all of the house."""
    definition: int = 0
    """Which definition of the activity is played."""
    instances: Union[str, Sequence[int]] = "train"
    """What episodes begin from: instances of the split train or eval, or these."""
    online_object_sampling: bool = False
    """Have OmniGibson place the objects itself when the scene is loaded; instances are then not used."""
    challenge_rules: bool = False
    """Play by the rules of the challenge, which OmniGibson does not keep by itself; evaluations do."""
    partial_reset: Optional[bool] = None
    """Whether rows are reset one by one; by default where this OmniGibson can."""
    grasping_mode: str = "assisted"
    gpu_dynamics: bool = False
    """Simulate on the GPU, which fluids and cloth need."""
    device: Optional[str] = None
    """Where OmniGibson keeps its tensors; by default the CPU."""
    render_passes: int = 1
    """How often a look renders; Isaac Sim's images may lag behind, and more passes catch up."""
    descriptions: Optional[str] = None
    """A file of lines {"task_name": …, "task": …} with the words that a policy was trained on."""
    launch_attempts: int = 3
    launch_pause: float = 5.0
    """Seconds before the second attempt; doubled for each further one."""

    def __post_init__(self) -> None:
        check_choices(
            (
                ("grasping_mode", self.grasping_mode, GRASPING_MODES),
                *(("camera", camera, tuple(CAMERAS)) for camera in self.cameras),
                *((("instances", self.instances, SPLITS),) if isinstance(self.instances, str) else ()),
            )
        )
        width_and_height(self.image_size, 2048)
        check_least(self, definition=0, render_passes=1, launch_attempts=1, launch_pause=0)

    @property
    def size(self) -> Tuple[int, int]:
        """Width and height."""
        return width_and_height(self.image_size, 2048)


class BehaviorSimulator(LockstepSimulator):
    """R1 Pro robots in houses of their own, all at the same activity."""

    _live = False

    def __init__(self, rows: int, task: str = "", max_episode_steps: Optional[int] = None, **options: Any) -> None:
        """Start Isaac Sim with `rows` scenes; `options` are those of `Options`.

        An episode is truncated after `max_episode_steps`, 2000 by default.
        """
        self.options = take_options(Options, options)
        if BehaviorSimulator._live:
            raise SpecError("a process can hold one Isaac Sim: give rows_per_worker to have several scenes in it")
        self._rows = range(rows)
        self._limit = max_episode_steps or _HORIZON
        data = install.prepare()
        self._warnings = install.choose_gpu()
        """What is to be told with the first observation."""
        with ExitStack() as undo:
            self._app_data = install.AppData()
            undo.callback(self._app_data.leave)
            self._og = install.load()
            release = release_of(self._og.__version__)
            install.check_isaac(release)
            self._activity = self._named(task or about.task)
            self._description = description_of(self._activity, self.options.descriptions)
            self._senses = Senses(release)
            scene = self.options.scene_model or scene_of(data, release, self._activity, self.options.definition)
            self._instances = Instances(data, release, scene, self._activity, self.options.definition)
            if not self.options.online_object_sampling:
                self._instances.choose(self.options.instances)
            self._begin_counting(rows)
            config = configuration(self.options, release, self._activity, scene, self._limit)
            config["robots"][0].update(self._instances.stand(release.robot[1]))
            self._start(config, release)
            self.spec = self._describe()
            undo.pop_all()

    @classmethod
    def list_tasks(cls) -> Dict[str, str]:
        return dict(CHALLENGE)

    # -- setting up ---------------------------------------------------------------------------------------------------

    @classmethod
    def foresee(cls, task: str = "", **options: Any) -> List[str]:
        cls._named(task or about.task)
        return install.missing()

    @staticmethod
    def _named(name: str) -> str:
        known = activities()
        if known and name not in known:
            raise UnknownTask(name, known)
        return name

    def _begin_counting(self, rows: int) -> None:
        self._rngs = [np.random.default_rng(row) for row in range(rows)]
        self._placed: List[Optional[int]] = [None] * rows
        """The instance that each scene goes back to when it is reset."""
        self._scores: List[Optional[QScore]] = [None] * rows
        self._steps = [0] * rows
        self._held = [0] * rows
        """Steps that each row had to wait since its episode began."""
        self._disturbed = [0] * rows
        """Resets of neighbours since each row's episode began."""
        self._commands = [np.zeros(action_field().shape, np.float32) for _ in range(rows)]
        self._news: List[Dict[str, Any]] = [{} for _ in range(rows)]
        self._seen: List[Any] = [None] * rows
        self._unseen: Set[int] = set()
        """Rows that have moved on since they were looked at."""
        self._pictured = False
        """Whether the cameras' images show where things are now."""
        self._watching: Sequence[str] = self.options.cameras

    def _start(self, config: Dict[str, Any], release: Release) -> None:
        og, options = self._og, self.options
        install.set_macros(
            og,
            {
                "HEADLESS": True,
                "ENABLE_FLATCACHE": True,
                "ENABLE_OBJECT_STATES": True,
                "ENABLE_TRANSITION_RULES": True,
                "USE_GPU_DYNAMICS": options.gpu_dynamics,
                "USE_NUMPY_CONTROLLER_BACKEND": True,
                "RENDER_VIEWER_CAMERA": False,
            },
        )
        if options.challenge_rules:
            set_rules(release)
        BehaviorSimulator._live = True
        self._envs = install.launch(
            og,
            lambda: og.VectorEnvironment(len(self._rows), config),
            options.launch_attempts,
            options.launch_pause,
        )
        self._can = install.abilities(self._envs)
        self._partial = self._can.partial_reset if options.partial_reset is None else options.partial_reset
        if self._partial and not self._can.partial_reset:
            raise SpecError("this OmniGibson cannot reset single scenes (its reset has no env_indices)")
        self._convert = importlib.import_module("omnigibson.utils.python_utils").recursively_convert_to_torch
        self._origins = [self._array(env.scene.get_position_orientation()[0]) for env in self._envs.envs]
        for env in self._envs.envs:
            self._set_cameras(env)
        part(og.sim, self._envs.envs)
        if options.challenge_rules:
            weigh_robots(og.sim, self._envs.envs, release)
        self._clean = [Clean(env) for env in self._envs.envs]

    def _set_cameras(self, env: Any) -> None:
        width, height = self.options.size
        names = {camera: CAMERAS[camera] for camera in self.options.cameras}
        for camera, sensor in install.sensors_of(env.robots[0], names).items():
            if camera == "head":
                sensor.horizontal_aperture = HEAD_APERTURE
            sensor.image_height, sensor.image_width = height, width
        env.load_observation_space()

    def _describe(self) -> Spec:
        width, height = self.options.size
        fields = {
            camera + "_rgb": Field((height, width, 3), "uint8", 0, 255, camera=camera)
            for camera in self.options.cameras
        }
        fields["proprio"] = Field((self._senses.size,))
        fields["state"] = Field((23,))
        return Spec(
            observations=fields,
            actions={"": action_field()},
            infos={"q_score": Field((), "float64")},
            control_rate=CONTROL_RATE,
            horizon=self._limit,
            tasks=(Task(self._activity, (self._description,)),),
            partial_reset=self._partial,
        )

    # -- episodes -----------------------------------------------------------------------------------------------------

    def reset(self, rows: Sequence[int], starts: Sequence[Start]) -> None:
        instances = {row: self._instance_for(row, start) for row, start in zip(rows, starts)}
        neighbours = [row for row in self._rows if row not in instances]
        self._look([row for row in neighbours if row in self._unseen], self._watching)
        for row in neighbours:  # else they would drive on, at their last speed, while others are reset
            self._envs.envs[row].robots[0].apply_action(self._tensor(self.hold(row)))
            self._disturbed[row] += 1
        self._bring_back(rows)
        self._place(instances)
        self._restart(rows)
        for row, instance in instances.items():
            self._news[row] = self._introduce(row, instance)
            self._steps[row] = self._held[row] = self._disturbed[row] = 0
            self._scores[row] = QScore(self._envs.envs[row].task)

    def _instance_for(self, row: int, start: Start) -> Optional[int]:
        """Return the instance that an episode begins from: the one it names, or one that its seed stands for."""
        if start.task is not None and start.task != self._activity:
            raise SpecError("this group plays %s; %s needs a group of its own" % (self._activity, start.task))
        if start.seed is not None:
            self._rngs[row] = np.random.default_rng(start.seed)
        drawn = int(self._rngs[row].integers(2**31))
        if start.init_state is not None:
            number = int(start.init_state)
            self._instances.path(number)
            return number
        numbers = self._instances.numbers
        return numbers[drawn % len(numbers)] if numbers else None

    def _bring_back(self, rows: Sequence[int]) -> None:
        """Give scenes the things back that are gone, before any is laid out.

        OmniGibson 3.9 stops Isaac Sim for that, and whatever is in it forgets where it was.
        """
        for row in rows:
            if not self._clean[row].complete:
                self._clean[row].restore()
                self._placed[row] = None

    def _place(self, instances: Mapping[int, Optional[int]]) -> None:
        """Lay out the scenes that are not to begin from where they began last."""
        new = {row: number for row, number in instances.items() if number is not None and number != self._placed[row]}
        for row, number in new.items():
            env = self._envs.envs[row]
            self._placed[row] = None
            self._clean[row].restore()
            put_things(env, read(self._instances.path(number), self._convert))
            put_robot(env)
        if new:
            settle(self._og.sim, [self._envs.envs[row] for row in new])
        for row, number in new.items():
            scene = self._envs.envs[row].scene
            scene.update_initial_file()
            scene.reset()
            self._placed[row] = number

    def _restart(self, rows: Sequence[int]) -> None:
        """Reset scenes, and step once for all of them: with observations, each reset would step those before it."""
        random.seed(0)  # what OmniGibson draws must follow neither from the past nor from the neighbours
        np.random.seed(0)
        self._envs.reset(get_obs=False, **({"env_indices": list(rows)} if self._partial else {}))
        for row in rows:
            put_robot(self._envs.envs[row])
        self._og.sim.step()
        self._pictured = False
        self._look(rows, self.options.cameras, _RENDERS_AFTER_RESET)
        for row in rows:
            self._commands[row] = self._senses.at_rest(self._proprio(row))

    def _introduce(self, row: int, instance: Optional[int]) -> Dict[str, Any]:
        news: Dict[str, Any] = {"descriptions": [self._description]}
        if self._warnings:
            news["warnings"], self._warnings = self._warnings, []
        if instance is not None:
            news["instance"] = instance
        if self._held[row]:
            news["held_steps"] = self._held[row]
        return news

    def step(self, actions: Sequence[Any], live: np.ndarray) -> List[StepResult]:
        waiting = [row for row in self._rows if not live[row]]
        self._look([row for row in waiting if row in self._unseen], self._watching)
        for row in waiting:
            self._held[row] += 1
        batch = [np.array(action, np.float32) for action in actions]
        seen, rewards, terminated, _, infos = self._envs.step(batch, **dict.fromkeys(self._can.skips, False))
        self._pictured = "render" not in self._can.skips
        results = []
        for row in self._rows:
            if not live[row]:
                results.append(StepResult(0.0))
                continue
            self._commands[row] = batch[row]
            if "get_obs" in self._can.skips:
                self._unseen.add(row)
            else:
                self._seen[row] = seen[row][NAME]
            results.append(self._judge(row, float(rewards[row]), bool(terminated[row]), infos[row]["done"]))
        return results

    def _judge(self, row: int, reward: float, terminated: bool, done: Mapping[str, Any]) -> StepResult:
        """Report a step; OmniGibson's own clock is not asked, since it goes on while a row is held."""
        self._steps[row] += 1
        success = bool(done["success"])
        over = self._steps[row] >= self._limit
        status = {name: [int(index) for index in found] for name, found in done["goal_status"].items()}
        self._news[row] = {"goal_status": status}
        score = self._scores[row]
        if (terminated or over) and score is not None:
            self._news[row].update(q_score=score.now(success), episode_length=self._steps[row])
            if self._disturbed[row]:
                self._news[row]["neighbour_resets"] = self._disturbed[row]
        return StepResult(reward, success, terminated, over)

    def hold(self, row: int) -> np.ndarray:
        action = self._commands[row].copy()
        action[ACTION["base"]] = 0.0
        return action

    def info(self, row: int) -> Dict[str, Any]:
        news, self._news[row] = self._news[row], {}
        return news

    def goals(self, row: int) -> List[str]:
        """Return the goal's conditions in words, as bddl puts them."""
        return [str(text) for text in self._envs.envs[row].task.activity_natural_language_goal_conditions]

    # -- what is seen -------------------------------------------------------------------------------------------------

    def observe(self, outs: Mapping[int, Dict[str, np.ndarray]], cameras: Sequence[str]) -> None:
        self._watching = cameras
        self._look([row for row in outs if row in self._unseen], cameras)
        for row, out in outs.items():
            seen = self._seen[row]
            proprio = self._proprio(row)
            put(out, "proprio", proprio)
            put(out, "state", self._senses.state(proprio))
            for camera in cameras:
                image = next(value for name, value in seen.items() if CAMERAS[camera] in name)
                put(out, camera + "_rgb", self._array(image["rgb"])[..., :3])  # without its alpha

    def _look(self, rows: Sequence[int], cameras: Sequence[str], passes: int = 0) -> None:
        """Take in what rows see now; render only if someone will look at the images."""
        if not rows:
            return
        if cameras and not self._pictured:
            for _ in range(passes or self.options.render_passes):
                self._og.sim.render()
            self._pictured = True
        for row in rows:
            self._seen[row] = self._envs.envs[row].get_obs()[0][NAME]
        if cameras or not self.options.cameras:
            self._unseen.difference_update(rows)

    def _proprio(self, row: int) -> np.ndarray:
        proprio = self._array(self._seen[row]["proprio"]).astype(np.float32)
        self._senses.check(proprio)
        return self._senses.in_scene(proprio, self._origins[row])

    def _array(self, value: Any) -> np.ndarray:
        """Return a tensor, wherever it is, as an array."""
        return np.asarray(value.cpu().numpy() if hasattr(value, "cpu") else value)

    def _tensor(self, action: np.ndarray) -> Any:
        return self._convert({"action": action.tolist()})["action"]

    def close(self) -> None:
        """End Isaac Sim, and with it, usually, the process."""
        try:
            self._og.shutdown()
        finally:
            self._app_data.leave()


def configuration(options: Options, release: Release, activity: str, scene_model: str, limit: int) -> Dict[str, Any]:
    """Return what each scene of a group is made with; episodes may last `limit` steps."""
    width, height = options.size
    return {
        "env": {
            "action_frequency": CONTROL_RATE,
            "rendering_frequency": CONTROL_RATE,
            "physics_frequency": 120,
            "device": options.device,
            # With it on, OmniGibson returns a tuple for an observation.
            "automatic_reset": False,
            "flatten_obs_space": False,
            "flatten_action_space": False,
        },
        "scene": {
            "type": "InteractiveTraversableScene",
            "scene_model": scene_model,
            "load_room_types": None if options.rooms is None else list(options.rooms),
            "include_robots": False,
        },
        "robots": [robot_config(release, options.cameras, width, height, options.grasping_mode)],
        "task": {
            "type": "BehaviorTask",
            "activity_name": activity,
            "activity_definition_id": options.definition,
            "activity_instance_id": 0,
            "online_object_sampling": options.online_object_sampling,
            # OmniGibson would put all robots into the first scene: there they would collide until we take them out.
            "use_presampled_robot_pose": False,
            # It looks at its clock before the step is counted: a limit of 5 truncates the sixth.
            "termination_config": {"max_steps": limit - 1},
            "reward_config": {"r_potential": 1.0},
            "include_obs": False,
        },
    }
