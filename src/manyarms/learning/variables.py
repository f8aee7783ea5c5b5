"""What a config takes from environment variables: used as it is, but shown and written as it was asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

_RESOLVER = "oc.env"
_one_at_a_time = threading.Lock()


class FromVariable(str):
    """Text from an environment variable, which remembers the interpolation that asked for it."""

    __slots__ = ("asked",)

    def __new__(cls, value: str, asked: str) -> FromVariable:
        self = super().__new__(cls, value)
        self.asked = asked
        return self

    def __reduce__(self) -> tuple[type[FromVariable], tuple[str, str]]:
        return FromVariable, (str(self), self.asked)

    def __repr__(self) -> str:
        """As messages have it."""
        return repr(self.asked)


def shown(value: Any) -> Any:
    """Return a value, or a tree of them, as it may be shown and written: what was asked for, not what was found."""
    if isinstance(value, FromVariable):
        return value.asked
    if isinstance(value, dict):
        return {key: shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown(inner) for inner in value]
    return value


class Heard:
    """Which variables were asked for while a config was read."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._asked = 0

    def resolve(self, *arguments: Any) -> Any:
        """Stand in for the resolver."""
        value = oc.env(*arguments)
        if arguments[0] in os.environ:  # a default stands in the config itself
            self._asked += 1
            self._values[str(value)] = f"${{{_RESOLVER}:{arguments[0]}}}"
        return value

    def hide(self, text: str) -> str:
        """Return a message without the values of variables."""
        for value in sorted(filter(None, self._values), key=len, reverse=True):
            text = text.replace(value, self._values[value])
        return text

    def mark(self, value: Any, node: Any, asked: str | None = None) -> Any:
        """Return a resolved value with the text in it marked that came from variables; `node` is it unresolved."""
        if is_dataclass(value) and not isinstance(value, type):
            inner = {
                each.name: self._marked(getattr(value, each.name), node, each.name, asked) for each in fields(value)
            }
            return replace(value, **inner)
        if isinstance(value, dict):
            return {key: self._marked(inner, node, key, asked) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._marked(inner, node, index, asked) for index, inner in enumerate(value))
        return FromVariable(value, asked) if isinstance(value, str) and asked else value

    def _marked(self, value: Any, parent: Any, key: Any, asked: str | None) -> Any:
        if not OmegaConf.is_config(parent):
            return self.mark(value, None, asked)
        before = self._asked
        node = parent[key]
        if self._asked > before and not asked:
            plain: Any = OmegaConf.to_container(parent, resolve=False)
            asked = str(plain[key])
        return self.mark(value, node, asked)


@contextmanager
def hearing() -> Iterator[Heard]:
    """Hear which variables interpolations ask for."""
    heard = Heard()
    with _one_at_a_time:
        _register(heard.resolve)
        try:
            yield heard
        finally:
            _register(oc.env)


def _register(resolver: Callable[..., Any]) -> None:
    """Do as OmegaConf 2.4 wants it, or as earlier ones do."""
    newer: Any = getattr(OmegaConf, "register_resolver", None)
    if newer is None:
        OmegaConf.register_new_resolver(_RESOLVER, resolver, replace=True)
    else:
        newer(_RESOLVER, resolver, replace=True, annotation_validation="off")
