"""Every command as a function, for programs and notebooks: ``manyarms.bench("gym/CartPole-v1").plot()``.

A function takes what the command's flags are called, in Python's own types: a path may be a string, options a mapping.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, get_args, get_type_hints, overload

import numpy as np

from manyarms.cli import bench as benching
from manyarms.cli import check as checking
from manyarms.cli import demo as showing_off
from manyarms.cli import doctor as examining
from manyarms.cli import eval as evaluating
from manyarms.cli import listing
from manyarms.cli import policy as inspecting
from manyarms.cli import record as recording
from manyarms.cli import replay as replaying
from manyarms.cli import serve as serving
from manyarms.cli import train as training
from manyarms.cli import watch as watching
from manyarms.cli.options import options_of
from manyarms.errors import ConfigError, UnknownName, did_you_mean
from manyarms.reporting.progress import progress

if TYPE_CHECKING:
    from manyarms.learning.loop import TrainResult
    from manyarms.reporting.recording import Recording

#: What arguments may be that have one kind, in words.
_PLAIN = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}

P = ParamSpec("P")
Config = TypeVar("Config")
Result = TypeVar("Result")


def _takes(config: Callable[P, Config]) -> Callable[[Callable[[Config], Result]], Callable[P, Result]]:
    """Give a function of a config the config's own arguments."""

    def taking(function: Callable[[Config], Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> Result:
            return function(_made(function.__name__, config, args, kwargs))

        signature, hints = inspect.signature(config), get_type_hints(config)
        entries = fields(cast("Any", config))
        made = {each.name: each.default_factory() for each in entries if each.default_factory is not MISSING}
        known = [
            entry.replace(annotation=hints[name], default=made.get(name, entry.default))
            for name, entry in signature.parameters.items()
        ]
        called.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=known, return_annotation=inspect.signature(function).return_annotation
        )
        return called

    return taking


def _made(name: str, config: Callable[..., Config], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Config:
    """Make a config of what a caller gave; what it does not know is refused with what is near."""
    known = inspect.signature(config).parameters
    for key in kwargs:
        if key not in known:
            raise UnknownName(f"{name} takes no argument {key!r}", do=did_you_mean(key, known))
    if len(args) > len(known):
        raise ConfigError(f"{name} takes {len(known)} arguments, got {len(args)}")
    given = dict(zip(known, args, strict=False))
    twice = [key for key in given if key in kwargs]
    missing = [key for key, p in known.items() if p.default is p.empty and key not in given and key not in kwargs]
    if twice or missing:
        why = f"{name} got {twice[0]} twice" if twice else f"{name} needs {' and '.join(missing)}"
        raise ConfigError(why, do=f"help(manyarms.{name}) tells what it takes")
    hints = get_type_hints(config)
    fitting = {key: _fitting(value, hints[key]) for key, value in {**given, **kwargs}.items()}
    for key, value in fitting.items():
        _check_kind(f"{name}: {key}", value, hints[key])
    return config(**fitting)


def _fitting(value: Any, hint: Any) -> Any:
    """Return a value as configs hold it."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str) and hint in (Path, Path | None):
        return Path(value)
    if isinstance(value, list):
        return tuple(value)
    return str(value) if isinstance(value, Path) and hint in (str, str | None) else value


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """Refuse a plain value of another kind than is wanted; what is not plain is checked by whoever takes it."""
    several = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds, optional = [kind for kind in several if kind is not NoneType], NoneType in several
    if not all(kind in _PLAIN for kind in kinds):
        return
    if (value is None and optional) or any(_is_of(kind, value) for kind in kinds):
        return
    wanted = " or ".join([*(_PLAIN[kind] for kind in kinds), *["None"] * optional])
    raise ConfigError(f"{name} is {value!r}; it must be {wanted}")


def _is_of(kind: type, value: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)


@_takes(benching.BenchConfig)
def bench(config: benching.BenchConfig) -> benching.BenchResult:
    """Measure how fast a simulator steps in many processes, and where the time goes.

    >>> manyarms.bench("gym/CartPole-v1", num_envs=4, steps=200, profile=True).plot()
    """
    return benching.run(config)


@_takes(listing.ListConfig)
def catalogue(config: listing.ListConfig) -> listing.Listing:
    """List simulators, tasks, policies or configs.

    >>> manyarms.catalogue("tasks", "tabletop")
    """
    return listing.run(config)


@_takes(checking.CheckConfig)
def check(config: checking.CheckConfig) -> checking.CheckResult:
    """Run the conformance suite against a simulator.

    >>> manyarms.check("my_package:MySimulator", steps=6).failures
    """
    with progress(config.simulator, len(checking.CHECKS)) as advance:
        return checking.run(config, hear=lambda name, _: advance(1, name))


@_takes(showing_off.DemoConfig)
def demo(config: showing_off.DemoConfig) -> showing_off.DemoResult:
    """See what manyarms does, in two minutes.

    >>> manyarms.demo(train_seconds=0).plot()
    """
    return showing_off.run(config)


@_takes(evaluating.EvalConfig)
def evaluate(config: evaluating.EvalConfig) -> evaluating.EvalResult:
    """Play tasks with a policy and count successes.

    >>> manyarms.evaluate("tabletop/open_drawer", policy="expert", episodes=4, videos=1).video()
    """
    return evaluating.run(config)


@_takes(examining.DoctorConfig)
def examine(config: examining.DoctorConfig) -> examining.DoctorResult:
    """Check this machine and its simulators, and say how to mend them.

    >>> manyarms.examine(("gym", "tabletop")).healthy
    """
    with progress("checking", len(examining.checks(config))) as advance:
        return examining.run(config, hear=lambda rows: advance(1, rows[-1].name if rows else ""))


@_takes(inspecting.InspectConfig)
def inspect_policy(config: inspecting.InspectConfig) -> inspecting.InspectResult:
    """Tell what a folder with weights is, whether it would load, and what it needs.

    >>> manyarms.inspect_policy("checkpoints/pi0_libero").problems
    """
    return inspecting.run(config)


@_takes(recording.RecordConfig)
def record(config: recording.RecordConfig) -> Recording:
    """Write episodes to disk, as demonstrations or to play back.

    >>> manyarms.record("tabletop/push_button", policy="expert", episodes=4, out="tape").plot()
    """
    return recording.run(config)


@_takes(replaying.ReplayConfig)
def replay(config: replaying.ReplayConfig) -> replaying.ReplayResult:
    """Play recorded episodes back and compare bit for bit.

    >>> manyarms.replay("tape").same
    """
    return replaying.run(config)


@_takes(serving.ServeConfig)
def serve(config: serving.ServeConfig) -> serving.Serving:
    """Serve a policy to many clients from a thread of this process, until it is closed.

    >>> with manyarms.serve("tabletop/reach_target", policy="expert", port=0) as server:
    ...     print(server.url)
    """
    return serving.Serving(config.policy, serving.server_for(config))


@overload
def train(
    config: str | Path,
    *,
    dry_run: Literal[True],
    overrides: Sequence[str] = (),
    resume: bool = False,
    trust_code: bool = False,
    **settings: Any,
) -> training.TrainPlan: ...


@overload
def train(
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    dry_run: Literal[False] = False,
    resume: bool = False,
    trust_code: bool = False,
    **settings: Any,
) -> TrainResult: ...


def train(
    config: str | Path,
    *,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    resume: bool = False,
    trust_code: bool = False,
    **settings: Any,
) -> TrainResult | training.TrainPlan:
    """Post-train a policy with PPO, GRPO or RLOO, as a YAML file or a recipe says.

    Settings replace the config's; those with a dot in their name come in a mapping, or as words in `overrides`.

    >>> manyarms.train("reach_target_ppo", runner={"max_steps": 5}).plot()
    >>> manyarms.train("reach_target_ppo", **{"runner.max_steps": 5, "algorithm.gamma": 0.95})
    """
    command = training.TrainCommand(str(config), tuple(overrides), dry_run, resume, trust_code)
    return training.run(command, options_of(settings))


@_takes(watching.WatchConfig)
def watch(config: watching.WatchConfig) -> watching.Watching:
    """Show a run in the browser, live and afterwards, from a thread of this process until it is closed.

    >>> manyarms.watch("runs/reach_target_ppo", port=0)
    """
    return watching.Watching(config)


__all__ = [
    "bench",
    "catalogue",
    "check",
    "demo",
    "evaluate",
    "examine",
    "inspect_policy",
    "record",
    "replay",
    "serve",
    "train",
    "watch",
]
