"""Any Gymnasium environment as a simulator: ``gym/CartPole-v1``, or a factory that returns an environment.

Imported by workers in other interpreters: standard library, numpy and gymnasium only, Python 3.8 and later.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..plugins import import_object
from .about import About
from .base import ChunkResult, Field, Simulator, Spec, SpecError, StepResult, Task, UnknownOption, UnknownTask, put

about = About(
    "any registered Gymnasium environment",
    factory="manyarms.simulators.gymnasium:GymnasiumSimulator",
    needs=("gymnasium",),
    install="{python} -m pip install gymnasium",
    task="CartPole-v1",
)

#: The camera that stands for ``env.render()``.
RENDER = "render"

#: Packages whose environments are known to Gymnasium only after they have been imported; others go into `imports`.
REGISTERING = ("gymnasium_robotics", "ale_py", "metaworld", "gym_aloha", "gym_pusht", "minigrid", "highway_env")

_OWN_OPTIONS = ("wrappers", "cameras", "imports", "max_episode_steps")

_SUCCESS_KEYS = ("success", "is_success")


class GymnasiumSimulator(Simulator):
    """One `gymnasium.Env`. Every option that is not named here goes to ``gymnasium.make``."""

    def __init__(
        self,
        task: str = "",
        env: Any = None,
        wrappers: Sequence[Any] = (),
        cameras: Sequence[str] = (),
        imports: Sequence[str] = (),
        max_episode_steps: Optional[int] = None,
        **options: Any,
    ) -> None:
        for name in imports:
            importlib.import_module(name)
        unknown = [camera for camera in cameras if camera != RENDER]
        if unknown:
            raise SpecError("a Gymnasium environment has one camera, %r; got %s" % (RENDER, ", ".join(unknown)))
        if cameras:
            options.setdefault("render_mode", "rgb_array")
        if max_episode_steps:
            options["max_episode_steps"] = max_episode_steps
        if env is None:
            env = self._make(task, options)
        for wrapper in wrappers:
            env = wrap(env, wrapper)
        self.env = env
        self._observation: Any = None
        self._info: Dict[str, Any] = {}
        self._options: Optional[Dict[str, Any]] = None
        self.spec = self._describe(task, bool(cameras))
        self._paths = self._state_paths()
        self._aimed_at: Any = None
        self._targets: List[Tuple[str, Tuple[str, ...], np.ndarray, np.dtype, Tuple[int, ...]]] = []

    def _make(self, task: str, options: Dict[str, Any]) -> Any:
        try:
            return make_env(task, options)
        except TypeError as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if unknown is None or unknown.group(1) not in options:
                raise
            raise UnknownOption(unknown.group(1), [*_OWN_OPTIONS, *_options_of(task)]) from error

    @classmethod
    def preload(cls, task: str = "", imports: Sequence[str] = (), **options: Any) -> None:
        for name in ("gymnasium", *imports):
            importlib.import_module(name)
        registration = importlib.import_module("gymnasium.envs.registration")
        registered = registration.registry.get(task)
        if registered is not None and isinstance(registered.entry_point, str):
            registration.load_env_creator(registered.entry_point)

    @classmethod
    def list_tasks(cls) -> Dict[str, str]:
        """Return what is registered here, also by the packages that must be imported for that."""
        registry = importlib.import_module("gymnasium").registry
        register_installed()
        limits = {name: registered.max_episode_steps for name, registered in sorted(registry.items())}
        return {name: "at most %d steps" % limit if limit else "" for name, limit in limits.items()}

    def _describe(self, task: str, with_render: bool) -> Spec:
        observations = space_fields(self.env.observation_space, "observation")
        if with_render:
            if "" in observations:
                observations = {"observation": observations[""]}
            self.env.reset()
            frame = np.asarray(self.env.render())
            observations[RENDER] = Field(frame.shape, frame.dtype.str, 0, 255, camera=RENDER)
        registered = getattr(self.env, "spec", None)
        rate = (getattr(self.env, "metadata", None) or {}).get("render_fps")
        return Spec(
            observations=observations,
            actions=space_fields(self.env.action_space, "action"),
            control_rate=float(rate) if rate else None,
            horizon=getattr(registered, "max_episode_steps", None),
            tasks=(Task(task),) if task else (),
        )

    def _state_paths(self) -> List[Tuple[str, Tuple[str, ...]]]:
        """Return where in an observation each field is found."""
        names = [name for name in self.spec.observations if name != RENDER]
        if not isinstance(getattr(self.env.observation_space, "spaces", None), dict):
            return [(name, ()) for name in names]
        return [(name, tuple(name.split("/"))) for name in names]

    def set_options(self, options: Dict[str, Any]) -> None:
        self._options = options

    def reset(self, task: Optional[str], seed: Optional[int], init_state: Any) -> None:
        if init_state is not None:
            raise SpecError("a Gymnasium environment takes no initial state: give a seed or reset options")
        self._observation, self._info = self.env.reset(seed=seed, options=self._options)
        self._options = None

    def step(self, action: Any) -> StepResult:
        self._observation, reward, terminated, truncated, info = self.env.step(action)
        self._info = info
        # A plain tuple is half the cost of a StepResult, and this line runs once a step.
        return reward, bool(info) and succeeded(info), terminated, truncated  # type: ignore[return-value]

    def step_chunk(self, actions: Sequence[Any]) -> ChunkResult:
        step = self.env.step
        rewards: List[float] = []
        observation, info = self._observation, self._info
        success = terminated = truncated = False
        for action in actions:
            observation, reward, terminated, truncated, info = step(action)
            rewards.append(reward)
            if info and succeeded(info):
                success = True
            if terminated or truncated:
                break
        self._observation, self._info = observation, info
        return rewards, success, terminated, truncated

    def observe(self, out: Dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        if out is not self._aimed_at:
            self._aim(out)
        observation = self._observation
        for name, keys, target, dtype, shape in self._targets:
            value = observation
            for key in keys:
                value = value[key]
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
                target[...] = value
            else:
                put(out, name, value)
        if cameras:
            put(out, RENDER, self.env.render())

    def _aim(self, out: Dict[str, np.ndarray]) -> None:
        """Look up where each field goes; it is the same place step after step."""
        self._targets = [(name, keys, out[name], out[name].dtype, out[name].shape) for name, keys in self._paths]
        self._aimed_at = out

    def info(self) -> Dict[str, Any]:
        return self._info

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment, or of the wrapper that has it; return an attribute as it is."""
        value = self.env.get_wrapper_attr(name)
        return value(*args, **kwargs) if callable(value) else value

    def set_attr(self, name: str, value: Any) -> None:
        self.env.set_wrapper_attr(name, value)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def succeeded(info: Dict[str, Any]) -> bool:
    """Tell whether an info says that the task is done."""
    for key in _SUCCESS_KEYS:
        if key in info:
            return bool(np.all(info[key]))
    return False


def make_env(task: str, options: Dict[str, Any]) -> Any:
    """Make a registered environment; an unknown name says what there is."""
    import gymnasium

    unknown = (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv)
    try:
        return gymnasium.make(task, **options)
    except unknown as error:
        if not register_installed():
            raise UnknownTask(task, list(gymnasium.registry), str(error)) from error
    try:
        return gymnasium.make(task, **options)
    except unknown as error:
        raise UnknownTask(task, list(gymnasium.registry), str(error)) from error


def _options_of(task: str) -> List[str]:
    """Return the keywords that a registered environment is made with, where it names them."""
    registration = importlib.import_module("gymnasium.envs.registration")
    registered = registration.registry.get(task)
    if registered is None:  # written without its version, or with its module
        return []
    creator = registered.entry_point
    creator = registration.load_env_creator(creator) if isinstance(creator, str) else creator
    return [name for name, entry in inspect.signature(creator).parameters.items() if entry.kind != entry.VAR_KEYWORD]


def register_installed() -> bool:
    """Import the packages that register environments when imported, of those that are here; tell whether any was."""
    found = [name for name in REGISTERING if name not in sys.modules and importlib.util.find_spec(name) is not None]
    for name in found:
        importlib.import_module(name)
    return bool(found)


def wrap(env: Any, wrapper: Any) -> Any:
    """Apply a wrapper: an import string, a pair of import string and keyword arguments, or a callable."""
    arguments: Dict[str, Any] = {}
    if isinstance(wrapper, (list, tuple)):
        wrapper, arguments = wrapper
    if isinstance(wrapper, str):
        wrapper = import_object(wrapper)
    return wrapper(env, **arguments)


def space_fields(space: Any, role: str, prefix: str = "") -> Dict[str, Field]:
    """Describe a Gymnasium space as flat fields."""
    kind = type(space).__name__
    if hasattr(space, "spaces") and isinstance(space.spaces, dict):
        fields: Dict[str, Field] = {}
        for key, part in space.spaces.items():
            if not isinstance(key, str) or not key or "/" in key:
                raise SpecError("%s space: key %r must be a non-empty string without '/'" % (role, key))
            fields.update(space_fields(part, role, prefix + "/" + key if prefix else key))
        return fields
    if hasattr(space, "nvec"):
        start = np.broadcast_to(getattr(space, "start", 0), space.nvec.shape)
        field = Field(space.shape, space.dtype, start, start + space.nvec - 1, "multi_discrete")
    elif kind == "MultiBinary":
        field = Field(space.shape, space.dtype, 0, 1, "multi_binary")
    elif kind == "Discrete":
        start = int(getattr(space, "start", 0))
        field = Field((), space.dtype, start, start + int(space.n) - 1, "discrete")
    elif hasattr(space, "low") and hasattr(space, "high"):
        field = Field(space.shape, space.dtype, space.low, space.high)
    else:
        raise SpecError(
            "%s space %s%s is not supported: Box, Discrete, MultiDiscrete, MultiBinary and Dict are "
            "(wrap the environment with gymnasium.wrappers.FlattenObservation or one of your own)"
            % (role, kind, " of %r" % prefix if prefix else "")
        )
    return {prefix: field}


__all__ = ["RENDER", "GymnasiumSimulator", "UnknownTask", "make_env", "space_fields"]
