"""What the options of several simulators share: checks, and the two spellings of a task's name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Iterable, Mapping, Sequence, Tuple, Type, TypeVar, Union

from .base import SpecError, UnknownOption

_LEAST = 8

T = TypeVar("T")


def take_options(kind: Type[T], options: Mapping[str, Any]) -> T:
    """Make a simulator's options of what was given; a name that it does not know says which there are."""
    known = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise UnknownOption(name, known)
    return kind(**options)


def check_choices(chosen: Iterable[Tuple[str, Any, Sequence[Any]]]) -> None:
    """Refuse a value that is none of its choices; `chosen` are names, values and choices."""
    for name, value, choices in chosen:
        if value not in choices:
            raise SpecError("%s is %r: choose from %s" % (name, value, ", ".join(choices)))


def check_least(options: Any, **least: float) -> None:
    """Refuse options below their least values."""
    for name, bound in least.items():
        if getattr(options, name) < bound:
            raise SpecError("%s is %r: it must be at least %d" % (name, getattr(options, name), bound))


def width_and_height(image_size: Union[int, Sequence[int]], most: int) -> Tuple[int, int]:
    """Return an image's size; one number stands for both."""
    width, height = (image_size, image_size) if isinstance(image_size, int) else image_size
    if not all(_LEAST <= side <= most for side in (width, height)):
        raise SpecError("image_size is %r: width and height must be from %d to %d" % (image_size, _LEAST, most))
    return int(width), int(height)


def snake_case(name: str) -> str:
    """Turn ``OpenDrawer`` into ``open_drawer``; leave what is so already."""
    letters = []
    for i, letter in enumerate(name):
        if letter.isupper() and i and not name[i - 1].isupper() and name[i - 1] != "_":
            letters.append("_")
        letters.append(letter.lower())
    return "".join(letters)
