"""What a simulator is: the contract between a worker and the physics it runs.

This module is imported by workers in other interpreters: standard library and numpy only, Python 3.8 and later.

A simulator is one class with a ``spec`` and five methods (`Simulator`). One that can only step all its scenes
together derives from `LockstepSimulator` instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

#: What follows a ragged field's name in the observation: how much of the padded array is filled.
LENGTH_SUFFIX = "_length"

SPACES = ("box", "discrete", "multi_discrete", "multi_binary")


class SpecError(ValueError):
    """A spec that contradicts itself, or a setting that it cannot have; `option` is the one that nothing takes."""

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class UnknownTask(LookupError):
    """A simulator has no such task; `known` are the names to choose from."""

    def __init__(self, task: str, known: Sequence[str], why: str = "") -> None:
        super().__init__(why or "no task named %r" % task)
        self.task = task
        self.known = sorted(known)


class UnknownOption(TypeError):
    """A simulator has no such option; `known` are the names to choose from."""

    def __init__(self, option: str, known: Sequence[str]) -> None:
        super().__init__("there is no option %r" % option)
        self.option = option
        self.known = sorted(known)


class ObservationMismatch(ValueError):
    """A simulator wrote an observation that is not what its spec says."""


@dataclass(frozen=True, eq=False)
class Field:
    """One array of an observation, an action or an info: its shape, its dtype and its bounds."""

    shape: Tuple[int, ...] = ()
    dtype: str = "float32"
    low: Any = None
    """Lower bound, a number or an array of `shape`; None: unbounded."""
    high: Any = None
    """Upper bound, inclusive."""
    space: str = "box"
    """Which Gymnasium space it stands for: box, discrete, multi_discrete or multi_binary."""
    camera: Optional[str] = None
    """The camera this image comes from; `Simulator.observe` writes it only when that camera is asked for."""
    ragged: bool = False
    """The first axis is a maximum: tasks fill a part of it (see `put`) and the rest is zero."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype).str.lstrip("<|="))
        if any(n < 0 for n in self.shape):
            raise SpecError("field shape %r has a negative size" % (self.shape,))
        if self.space not in SPACES:
            raise SpecError("field space %r is not one of %s" % (self.space, ", ".join(SPACES)))
        if np.dtype(self.dtype).hasobject or np.dtype(self.dtype).kind not in "biuf":
            raise SpecError("field dtype %r cannot live in shared memory: use bool, int or float" % self.dtype)
        if self.ragged and len(self.shape) != 1:
            raise SpecError("only one-dimensional fields can be ragged, got shape %r" % (self.shape,))

    def to_json(self) -> Dict[str, Any]:
        """Return the field in plain values, bounds collapsed to one number where all are equal."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "low": _collapse(self.low),
            "high": _collapse(self.high),
            "space": self.space,
            "camera": self.camera,
            "ragged": self.ragged,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Field":
        return cls(**{**value, "shape": tuple(value["shape"])})


def _collapse(bound: Any) -> Any:
    """Return a bound as a number, nested lists or None (unbounded)."""
    if bound is None:
        return None
    array = np.asarray(bound)
    if array.size and (array == array.flat[0]).all():
        value = array.flat[0].item()
        return None if isinstance(value, float) and np.isinf(value) else value
    return array.tolist()


@dataclass(frozen=True)
class Task:
    """One thing a simulator can be asked to do."""

    name: str
    descriptions: Tuple[str, ...] = ()
    """The same task in several sentences, for policies that read."""

    def to_json(self) -> Dict[str, Any]:
        return {"name": self.name, "descriptions": list(self.descriptions)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Task":
        return cls(value["name"], tuple(value["descriptions"]))


@dataclass(frozen=True, eq=False)
class Spec:
    """All that the main side must know about a simulator before it runs.

    A name with slashes nests (``"robot/joints"``); one field named ``""`` makes the observation or action that array
    itself instead of a dict of arrays.
    """

    observations: Dict[str, Field]
    actions: Dict[str, Field]
    infos: Dict[str, Field] = field(default_factory=dict)
    """Facts reported with a fixed shape and dtype; others travel as JSON."""
    control_rate: Optional[float] = None
    """Actions a second of simulated time."""
    horizon: Optional[int] = None
    """Steps after which an episode is truncated; None: never."""
    tasks: Tuple[Task, ...] = ()
    can_save: bool = False
    """Whether `save_state` and `load_state` work."""
    partial_reset: bool = True
    """Lock-step groups: whether one row can be reset while its neighbours are in mid-episode."""

    def __post_init__(self) -> None:
        for role, group in (("observation", self.observations), ("action", self.actions)):
            if not group:
                raise SpecError("a simulator needs at least one %s field" % role)
            if "" in group and len(group) > 1:
                raise SpecError("%s: the unnamed field must be the only one, got %s" % (role, sorted(group)))
        if any(f.ragged for f in self.actions.values()):
            raise SpecError("action fields cannot be ragged")

    @property
    def cameras(self) -> Tuple[str, ...]:
        """The cameras that observation fields come from, in order of first use."""
        return tuple(dict.fromkeys(f.camera for f in self.observations.values() if f.camera))

    def layout(self) -> Dict[str, Field]:
        """Return the observation fields with the length of each ragged one beside it."""
        result: Dict[str, Field] = {}
        for name, value in self.observations.items():
            result[name] = value
            if value.ragged:
                result[name + LENGTH_SUFFIX] = Field((), "int32", 0, value.shape[0])
        return result

    def to_json(self) -> Dict[str, Any]:
        value: Dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for role in ("observations", "actions", "infos"):
            value[role] = {name: f.to_json() for name, f in value[role].items()}
        value["horizon"] = None if self.horizon is None else int(self.horizon)
        value["control_rate"] = None if self.control_rate is None else float(self.control_rate)
        value["can_save"], value["partial_reset"] = bool(self.can_save), bool(self.partial_reset)
        value["tasks"] = [task.to_json() for task in self.tasks]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Spec":
        parts: Dict[str, Any] = dict(value)
        for role in ("observations", "actions", "infos"):
            parts[role] = {name: Field.from_json(f) for name, f in parts[role].items()}
        parts["tasks"] = tuple(Task.from_json(task) for task in parts["tasks"])
        return cls(**parts)


class StepResult(NamedTuple):
    """What one action did."""

    reward: float
    success: bool = False
    terminated: bool = False
    truncated: bool = False
    """The simulator ended the episode by a clock of its own; time limits given to us are kept by the worker."""


#: What a chunk did: the reward of each action taken, success in any of them, and how the last one ended.
ChunkResult = Tuple[List[float], bool, bool, bool]


def run_chunk(step: Callable[[Any], StepResult], actions: Sequence[Any]) -> ChunkResult:
    """Step through actions, up to the first that ends the episode."""
    rewards: List[float] = []
    success = terminated = truncated = False
    for action in actions:
        reward, succeeded, terminated, truncated = step(action)
        rewards.append(reward)
        if succeeded:
            success = True
        if terminated or truncated:
            break
    return rewards, success, terminated, truncated


class Start(NamedTuple):
    """How an episode begins."""

    task: Optional[str] = None
    seed: Optional[int] = None
    init_state: Any = None
    """An index into the task's fixed initial states, or what `save_state` gave."""
    options: Optional[Dict[str, Any]] = None


class Simulator:
    """One scene in one process.

    Derive from it, or write a class with the same methods. The worker calls, for every episode, `reset`, then for
    every chunk `step` once an action, then `observe` once. `observe` is apart from `step` so that frames nobody sees
    are never rendered.
    """

    lockstep = False
    spec: Spec

    @classmethod
    def list_tasks(cls) -> Dict[str, str]:
        """Return the names of its tasks -> what is to be done, where that is known without starting anything."""
        return {}

    @classmethod
    def foresee(cls, **options: Any) -> List[str]:
        """Return what an instance with these options would lack here, in words.

        Only what can be told without starting anything; raise `UnknownTask` for a task that there is not.
        """
        return []

    @classmethod
    def preload(cls, **options: Any) -> None:
        """Import what an instance with these options will need.

        Called once, in the process that workers are forked from: start no thread, open no display, device or file.
        """

    def reset(self, task: Optional[str], seed: Optional[int], init_state: Any) -> None:
        """Begin an episode; with no seed, go on with the random numbers of the last one."""
        raise TypeError("%s has no reset()" % type(self).__name__)

    def step(self, action: Any) -> StepResult:
        """Apply one action for one control period."""
        raise TypeError("%s has no step()" % type(self).__name__)

    def step_chunk(self, actions: Sequence[Any]) -> ChunkResult:
        """Apply actions one after the other, up to the first that ends the episode.

        Override it where a loop of your own is faster. Not called when steps inside the chunk are filmed.
        """
        return run_chunk(self.step, actions)

    def observe(self, out: Dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        """Write the observation into `out` in place; render only `cameras`."""
        raise TypeError("%s has no observe()" % type(self).__name__)

    def expect(self, cameras: Sequence[str]) -> None:
        """Hear which cameras the next `step` will be observed through (for simulators that render inside `step`)."""

    def set_options(self, options: Dict[str, Any]) -> None:
        """Receive the `options` of the reset that follows."""

    def info(self) -> Dict[str, Any]:
        """Return further facts on the last reset or step."""
        return {}

    def save_state(self) -> Any:
        """Return the whole state as bytes or an array."""
        raise TypeError("%s cannot save its state" % type(self).__name__)

    def load_state(self, state: Any) -> None:
        """Go back to a saved state."""
        raise TypeError("%s cannot load a state" % type(self).__name__)

    def close(self) -> None:
        """Let go of everything."""


class LockstepSimulator:
    """Several scenes in one process that can only step together.

    Built with ``rows=<group size>``. Rows that have ended, or whose chunk is shorter than their neighbours', are not
    live: they get `hold`'s action and their results are ignored.
    """

    lockstep = True
    spec: Spec

    @classmethod
    def foresee(cls, **options: Any) -> List[str]:
        """Return what an instance with these options would lack here (see `Simulator.foresee`)."""
        return []

    @classmethod
    def preload(cls, **options: Any) -> None:
        """Import what an instance with these options will need (see `Simulator.preload`)."""

    def reset(self, rows: Sequence[int], starts: Sequence[Start]) -> None:
        """Begin an episode in each of `rows` (all of them unless the spec says `partial_reset`)."""
        raise TypeError("%s has no reset()" % type(self).__name__)

    def step(self, actions: Sequence[Any], live: np.ndarray) -> List[StepResult]:
        """Apply one action a row; `live` is a mask."""
        raise TypeError("%s has no step()" % type(self).__name__)

    def observe(self, outs: Mapping[int, Dict[str, np.ndarray]], cameras: Sequence[str]) -> None:
        """Write the observation of each row in `outs`."""
        raise TypeError("%s has no observe()" % type(self).__name__)

    def hold(self, row: int) -> Any:
        """Return the action that keeps a row still: zeros, or the bound nearest to zero."""
        return hold_action(self.spec)

    def info(self, row: int) -> Dict[str, Any]:
        """Return further facts on a row's last reset or step."""
        return {}

    def save_state(self, row: int) -> Any:
        raise TypeError("%s cannot save its state" % type(self).__name__)

    def load_state(self, row: int, state: Any) -> None:
        raise TypeError("%s cannot load a state" % type(self).__name__)

    def close(self) -> None:
        """Let go of everything."""


def hold_action(spec: Spec) -> Any:
    """Return zeros clipped into the action bounds, in the action's structure."""
    flat = {}
    for name, f in spec.actions.items():
        value = np.zeros(f.shape, f.dtype)
        if f.low is not None or f.high is not None:
            value = np.clip(value, f.low, f.high).astype(f.dtype)
        flat[name] = value[()]
    return nest(flat)


def nest(flat: Mapping[str, Any]) -> Any:
    """Turn ``{"a/b": x}`` into ``{"a": {"b": x}}`` and ``{"": x}`` into ``x``."""
    if "" in flat:
        return flat[""]
    tree: Dict[str, Any] = {}
    for path, value in flat.items():
        branch = tree
        *parents, leaf = path.split("/")
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[leaf] = value
    return tree


def flatten(tree: Any, prefix: str = "") -> Dict[str, Any]:
    """Undo `nest`."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat: Dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flatten(value, prefix + "/" + str(key) if prefix else str(key)))
    return flat


def put(out: Mapping[str, np.ndarray], name: str, value: Any) -> None:
    """Write `value` into the observation field `name`, checked against the spec; ragged fields are padded."""
    target = out[name]
    if type(value) is np.ndarray and value.shape == target.shape and value.dtype is target.dtype:
        length = None if len(out) == 1 else out.get(name + LENGTH_SUFFIX)
        if length is None:
            target[...] = value
            return
    _put_checked(out, name, np.asarray(value), target)


def _put_checked(out: Mapping[str, np.ndarray], name: str, array: np.ndarray, target: np.ndarray) -> None:
    length = out.get(name + LENGTH_SUFFIX)
    if length is not None and array.ndim == 1 and array.shape[0] <= target.shape[0]:
        length[()] = array.shape[0]
        target[array.shape[0] :] = 0
        target = target[: array.shape[0]]
    if array.shape != target.shape or not np.can_cast(array.dtype, target.dtype, "same_kind"):
        raise ObservationMismatch(
            "observation%s is %s %s, but the spec says %s %s"
            % (" %r" % name if name else "", array.shape, array.dtype, target.shape, target.dtype)
        )
    np.copyto(target, array, casting="same_kind")


__all__ = [
    "LENGTH_SUFFIX",
    "ChunkResult",
    "Field",
    "LockstepSimulator",
    "ObservationMismatch",
    "Simulator",
    "Spec",
    "SpecError",
    "Start",
    "StepResult",
    "Task",
    "flatten",
    "hold_action",
    "nest",
    "put",
]
