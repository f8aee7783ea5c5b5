"""Help that fits a screen: what a command does, the flags most people use, examples; ``--help-all`` has every flag."""

from __future__ import annotations

import ast
import inspect
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

_WIDEST = 100
_COLUMN = 24

_LETTERS = {int: "INT", float: "FLOAT", Path: "PATH"}


@dataclass(frozen=True)
class Guide:
    """What the help of a command shows besides its flags; it stands in the config as ``guide``."""

    examples: tuple[str, ...] = ()
    """Commands as they are typed, each with what it does behind a #."""
    everyday: tuple[str, ...] = ()
    """The flags most people use, for --help; default: all of them."""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """All flags by what they are for, for --help-all; those that are in no group come last."""


@dataclass(frozen=True)
class Flag:
    """One field of a config, as it is typed."""

    field: str
    spellings: tuple[str, ...]
    """--num-envs; none: it has a place instead of a name."""
    metavar: str
    """What follows it; nothing behind a switch."""
    text: str
    choices: tuple[str, ...] = ()
    many: bool = False
    required: bool = False

    @property
    def head(self) -> str:
        """What stands in the left column."""
        return " ".join(filter(None, [", ".join(self.spellings), self.metavar]))

    @property
    def in_usage(self) -> str:
        """How a word without a name stands in the usage."""
        return self.metavar if self.required or self.metavar.startswith("[") else f"[{self.metavar}]"


def guide_of(config: type) -> Guide:
    """Return what a config's help shows besides its flags."""
    return getattr(config, "guide", Guide())


def flags_of(config: type) -> list[Flag]:
    """Return every flag of a config, in its order."""
    hints, texts = get_type_hints(config, include_extras=True), _texts(config)
    return [_flag(entry, hints[entry.name], texts.get(entry.name, "")) for entry in fields(config)]


def page(config: type, program: str, everything: bool = False) -> str:
    """Return a command's help; `program` is how it is called."""
    guide, flags = guide_of(config), flags_of(config)
    words, named = [flag for flag in flags if not flag.spellings], [flag for flag in flags if flag.spellings]
    left_out = guide.everyday and not everything
    usage = " ".join(["usage:", program, *(flag.in_usage for flag in words), "[flags]"])
    parts = [usage, _wrapped(inspect.getdoc(config) or ""), _listed(words)]
    if left_out:
        by_name = {flag.field: flag for flag in flags}
        parts.append("flags that most people use:\n" + _listed([by_name[name] for name in guide.everyday]))
    elif everything and guide.groups:
        parts += [f"{title}:\n{_listed(group)}" for title, group in _grouped(named, guide.groups)]
    elif named:
        parts.append("flags:\n" + _listed(named))
    if guide.examples:
        parts.append("examples:\n" + "\n".join(f"  {line}" for line in guide.examples))
    if left_out:
        parts.append(f"all flags: {program} --help-all")
    return "\n\n".join(filter(None, parts))


def _grouped(flags: Sequence[Flag], groups: Mapping[str, Sequence[str]]) -> list[tuple[str, list[Flag]]]:
    found = [(title, [flag for flag in flags if flag.field in names]) for title, names in groups.items()]
    rest = [flag for flag in flags if not any(flag.field in names for names in groups.values())]
    return [(title, group) for title, group in [*found, ("more", rest)] if group]


def _listed(flags: Sequence[Flag]) -> str:
    width = min(shutil.get_terminal_size((_WIDEST, 0)).columns, _WIDEST)
    lines: list[str] = []
    for flag in flags:
        text = textwrap.wrap(flag.text, max(20, width - _COLUMN - 2), break_on_hyphens=False) or [""]
        head = f"  {flag.head}"
        if len(head) > _COLUMN:
            lines.append(head)
            head = ""
        lines += [f"{head:<{_COLUMN}}  {text[0]}".rstrip(), *(" " * (_COLUMN + 2) + line for line in text[1:])]
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    width = min(shutil.get_terminal_size((_WIDEST, 0)).columns, _WIDEST)
    return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in text.splitlines())


def _flag(entry: Any, hint: Any, text: str) -> Flag:
    kind, marks = (hint.__origin__, hint.__metadata__) if hasattr(hint, "__metadata__") else (hint, ())
    default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
    told = {name: value for mark in marks for name in ("metavar", "aliases") if (value := getattr(mark, name, None))}
    kinds = [each for each in get_args(kind) or (kind,) if each is not NoneType]
    plain = kinds[0] if get_origin(kind) in (Union, UnionType) else kind
    many = get_origin(plain) is tuple
    choices = tuple(map(str, get_args(plain))) if get_origin(plain) is Literal else ()
    name = entry.name.replace("_", "-")
    spellings: tuple[str, ...] = (*told.get("aliases", ()), f"--{name}")
    if plain is bool:
        negative = (f"--no-{name}",) if default is True else ()
        spellings = negative if negative and tyro.conf.FlagCreatePairsOff in marks else (*spellings, *negative)
    if tyro.conf.Positional in marks:
        spellings = ()
    return Flag(
        entry.name,
        spellings,
        told.get("metavar") or _metavar(plain, choices, "" if spellings else entry.name),
        _with_default(text, default),
        choices,
        many,
        required=default is MISSING,
    )


def _metavar(kind: Any, choices: Sequence[str], name: str) -> str:
    if kind is bool:
        return ""
    if choices:
        return f"{{{','.join(choices)}}}"
    if get_origin(kind) is tuple:
        inner = [_metavar(each, (), "") for each in get_args(kind) if each is not Ellipsis]
        return " ".join(inner) + ("…" if Ellipsis in get_args(kind) else "")
    return name.upper() or _LETTERS.get(kind, "TEXT")


def _with_default(text: str, default: Any) -> str:
    """Say what a flag is when nobody gives it, unless its text does or there is nothing to say."""
    if default is MISSING or isinstance(default, bool) or default in (None, "", (), {}) or "default:" in text.lower():
        return text
    value = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return f"{text} (default: {value})".strip()


def _texts(config: type) -> dict[str, str]:
    """Return the strings that stand under the fields of a dataclass and of those it is based on."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for statement, after in zip(tree.body, tree.body[1:], strict=False):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found
