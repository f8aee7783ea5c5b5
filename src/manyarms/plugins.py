"""From a name to code: the one place where simulators, policies, algorithms, rewards and trackers are looked up.

A name is built in, or that of an installed plug-in (an entry point of the group ``manyarms.simulators``,
``manyarms.policies``, …), or an import string: ``package.module:Name`` or ``path/to/file.py:Name``. Import strings are
taken from users: what they name on the command line, in their own Python or in their own config is their own program.
A checkpoint, a recording, a run folder or a dataset is data: it names what is installed and nothing else, until its
user says otherwise with `--trust-code`. The whole boundary: docs/security.md.

Workers import this in other interpreters: standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from manyarms.errors import ConfigError, UnknownName, did_you_mean

#: What lifts the refusals for a file from somebody else.
WAY_OUT = "if you trust whoever made it: --trust-code (trust_code=True in Python)"


class Group(NamedTuple):
    """One kind of thing that has names."""

    one: str
    """How messages call one of them, with its article."""
    built_in: str = ""
    """Where our own are, as an import string: a mapping, name -> ``module:Name [extra]`` as entry points have it."""
    with_tasks: bool = False
    """Whether a task may follow a name: ``<name>/<task>``."""

    @property
    def noun(self) -> str:
        return self.one.partition(" ")[2]


#: Group -> what is known of it; the group of entry points is ``manyarms.<group>``.
GROUPS = {
    "algorithms": Group("an algorithm", "manyarms.algorithms:BUILT_IN"),
    "policies": Group("a policy", "manyarms.policies.registry:BUILT_IN"),
    "rewards": Group("a reward"),
    "simulators": Group("a simulator", "manyarms.simulators.registry:BUILT_IN", with_tasks=True),
    "trackers": Group("a logger backend", "manyarms.reporting.trackers:BUILT_IN"),
}


class UnknownPlugin(UnknownName, ConfigError):
    """Nothing that is installed has this name; `known` are the names to choose from."""

    def __init__(self, group: str, name: str, known: List[str]) -> None:
        super().__init__(f"there is no {GROUPS[group].noun} {name!r}", do=did_you_mean(name, known))
        self.name = name
        self.known = known


def resolve(group: str, name: str, *, trusted: bool, source: Union[str, os.PathLike[str]] = "a file") -> Any:
    """Return what a name stands for.

    `trusted` is for names that the user has given, who may write an import string; any other name comes from a file,
    `source`, and must be installed.
    """
    if not trusted:
        check_installed(group, name, source)
    noun = GROUPS[group].noun
    try:
        return load(group, name)
    except ImportError as error:
        if is_import_string(name):
            raise UnknownName(f"there is no {noun} {name!r}", why=str(error)) from error
        extra = _split_extra(built_in(group).get(name, ""))[1]
        do = f"pip install 'manyarms[{extra}]'" if extra else "install it"
        raise ConfigError(f"{noun} {name!r} needs {error.name or error}", do=do) from error


def check_installed(
    group: str, name: object, source: Union[str, os.PathLike[str]], among: Optional[Collection[str]] = None
) -> None:
    """Refuse a name in a file that is none of something installed; `among` are the ones that this file may name."""
    kind = GROUPS[group]
    known = names(group) if among is None else among
    own = name.partition("/")[0] if isinstance(name, str) and kind.with_tasks else name
    if isinstance(name, str) and ":" not in name and own in known:
        return
    raise ConfigError(
        f"{os.fspath(source)} names {kind.one} that is not installed: {name!r}",
        why="a file is data: it may name what is built in and installed plug-ins, not code of its own",
        do=WAY_OUT,
    )


def load(group: str, name: str) -> Any:
    """Import what a trusted name stands for; an `ImportError` is left as it is, for whoever can say what is missing."""
    if is_import_string(name):
        return import_object(name)
    ours = built_in(group)
    if name in ours:
        return _load_entry(ours[name])
    points = plug_ins(group)
    if name in points:
        return _load_entry(points[name].value)
    raise UnknownPlugin(group, name, sorted({*ours, *points}))


def names(group: str) -> List[str]:
    """Return every name of a group: our own and those of installed plug-ins."""
    return sorted({*built_in(group), *plug_ins(group)})


def built_in(group: str) -> Mapping[str, str]:
    """Return our own of a group by name; none of them is imported."""
    module, _, attribute = GROUPS[group].built_in.partition(":")
    return getattr(importlib.import_module(module), attribute, {}) if module else {}


def plug_ins(group: str) -> Dict[str, Any]:
    """Return the entry points of installed plug-ins by name; none of them is imported."""
    from importlib import metadata

    key = f"manyarms.{group}"
    points: Any = (
        metadata.entry_points(group=key) if sys.version_info >= (3, 10) else metadata.entry_points().get(key, ())
    )
    return {point.name: point for point in points}


def is_import_string(text: str) -> bool:
    """Tell ``package.module:Name`` and ``dir/file.py:Name`` from ``gym/package:Env-v0``."""
    module, colon, attribute = text.rpartition(":")
    if not colon or not module or not attribute.replace(".", "_").isidentifier():
        return False
    return module.endswith(".py") or module.replace(".", "_").isidentifier()


def import_object(text: str) -> Any:
    """Import what ``package.module:Name`` or ``file.py:Name`` names."""
    module_name, _, path = text.rpartition(":")
    if not module_name:
        raise ImportError(f"{text!r} is not an import string: write 'package.module:name'")
    value = load_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
    for part in path.split("."):
        if not hasattr(value, part):
            raise ImportError(f"{module_name} has no attribute {path!r}")
        value = getattr(value, part)
    return value


def load_file(path: str) -> Any:
    """Import a Python file under a name of its own, so that ``if __name__ == "__main__"`` does not run."""
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise ImportError(f"there is no file {path}")
    name = "manyarms_file_" + os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _load_entry(value: str) -> Any:
    """Import what an entry point says: ``module``, ``module:Name`` or ``module:Name [extra]``."""
    target = _split_extra(value)[0]
    return import_object(target) if ":" in target else importlib.import_module(target)


def _split_extra(value: str) -> Tuple[str, str]:
    target, _, extra = value.replace(" ", "").partition("[")
    return target, extra.rstrip("]")
