"""Algorithms by the name that `algorithm.adv_type` gives: the modules here, plug-ins, import strings.

A plug-in is an entry point ``manyarms.algorithms``; an import string names a class of the user's own.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, TypeVar

from manyarms.errors import ConfigError, UnknownName, did_you_mean
from manyarms.simulators.registry import import_object, is_import_string

if TYPE_CHECKING:
    from manyarms.algorithms.base import Algorithm

Kind = TypeVar("Kind", bound="type[Algorithm]")

ENTRY_POINT_GROUP = "manyarms.algorithms"

_BUILT_IN: dict[str, type[Algorithm]] = {}


def algorithm(name: str) -> Callable[[Kind], Kind]:
    """Register a class under what `adv_type` calls it."""

    def register(kind: Kind) -> Kind:
        _BUILT_IN[name] = kind
        return kind

    return register


def built_in() -> Mapping[str, type[Algorithm]]:
    """Return the algorithms of this package by name."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return _BUILT_IN


def plug_ins() -> dict[str, Any]:
    """Return the entry points of installed plug-ins by name."""
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def find_algorithm(name: str) -> type[Algorithm]:
    """Return an algorithm's class; a plug-in is imported when it is asked for by name only."""
    from manyarms.algorithms.base import Algorithm

    known, points = built_in(), plug_ins()
    if name in known:
        return known[name]
    if name not in points and not is_import_string(name):
        raise ConfigError(f"adv_type is {name!r}", do=did_you_mean(name, [*known, *points]))
    try:
        found = points[name].load() if name in points else import_object(name)
    except ImportError as error:
        raise ConfigError(f"there is no algorithm {name!r}", why=str(error)) from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(
            f"{name} is not an algorithm", why="it is not a subclass of manyarms.algorithms.base.Algorithm"
        )
    return found


def make_algorithm(adv_type: str = "gae", **settings: Any) -> Algorithm:
    """Return an algorithm with settings, as `algorithm:` in YAML would."""
    kind = find_algorithm(adv_type)
    known = [field.name for field in fields(kind)]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise UnknownName(f"{adv_type} has no setting {unknown[0]!r}", do=did_you_mean(unknown[0], known))
    return kind(adv_type=adv_type, **settings)


__all__ = ["algorithm", "find_algorithm", "make_algorithm"]
