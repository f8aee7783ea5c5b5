"""Text that others may have written, YAML or JSON: read within bounds, and nothing but plain values comes of it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyarms.errors import ConfigError

if TYPE_CHECKING:
    from yaml import Event

#: Far more than any config, and far less than what takes a machine's memory.
MOST_BYTES, MOST_LEVELS, MOST_VALUES = 1 << 20, 32, 10_000

#: What the statistics and the index of the largest model take, many times over.
MOST_BYTES_OF_MODELS = 64 << 20


class Undecodable(ValueError):
    """Text that holds no value, or one beyond bounds."""


def only_file(path: Path) -> Path:
    """Return the path of a file; one of a pipe or a device, which may never end, is an OSError."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path


def read_text(path: Path) -> str:
    """Return the text of a file, of which no more is read than a text of ours may have."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Undecodable(f"it has more than {MOST_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(str(error)) from None


def from_json(text: str) -> Any:
    """Return the value of a JSON text, within the bounds of a config."""
    value = parsed(text)
    _count(value)
    return value


def parsed(text: str | bytes) -> Any:
    """Return the value of a JSON text of any size, such as a model's config or a run's metrics."""
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise Undecodable(str(error)) from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    if only_file(path).stat().st_size > MOST_BYTES_OF_MODELS:
        raise Undecodable(f"{path.name} has more than {MOST_BYTES_OF_MODELS} bytes")
    value = parsed(path.read_bytes())
    if not isinstance(value, dict):
        raise Undecodable(f"{path.name} is not a JSON object")
    return value


def from_yaml(text: str) -> Any:
    """Return the value of a YAML text."""
    import yaml

    check_yaml(text)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise Undecodable(str(error)) from None


def check_yaml(text: str) -> str:
    """Refuse YAML that is none, names types, or is beyond bounds once its aliases stand for what they name.

    Return what its value is: a mapping, a sequence, a scalar, or nothing.
    """
    import yaml

    bounds = _Bounds()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            bounds.take(event)
    except yaml.YAMLError as error:
        raise Undecodable(str(error)) from None
    return bounds.kind


class _Bounds:
    """Counts the values of a YAML text while it is read, so that nothing of it has to be made."""

    def __init__(self) -> None:
        self.kind = "nothing"
        self._values = 0
        self._open: list[tuple[str | None, int]] = []
        """The anchor of every level, and how many values came before it."""
        self._sizes: dict[str, int] = {}
        """How many values an anchor stands for."""

    def take(self, event: Event) -> None:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in self._open):
                raise Undecodable(f"*{event.anchor} stands within itself")
            self._values += self._sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            self._begin(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            if anchor is not None:
                self._sizes[anchor] = self._values - before
        if self._values > MOST_VALUES:
            raise _too_many()
        if len(self._open) > MOST_LEVELS:
            raise _too_deep()

    def _begin(self, event: Any) -> None:
        import yaml

        if event.tag not in (None, "!"):
            raise Undecodable(f"it names a type, {event.tag}")
        if not self._values:
            self.kind = event.__class__.__name__.removesuffix("Event").removesuffix("Start").lower()
        if isinstance(event, yaml.ScalarEvent):
            check_characters(event.value)
            if event.value.count("${") > MOST_LEVELS:
                raise _too_deep()
        else:
            self._open.append((event.anchor, self._values))
        self._values += 1


def check_characters(text: str) -> None:
    """Refuse characters that no file and no name of a file can hold."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise Undecodable(f"{text[:80]!a} holds a character that cannot be written")


def refuse_unfilled(value: Any, option: str, flag: str) -> None:
    """Refuse an option out of a checkpoint which training had from an environment variable."""
    if isinstance(value, str) and "${oc.env:" in value:
        raise ConfigError(
            f"option {option!r} is still {value!r}",
            why="training took it from an environment variable, and no checkpoint holds what is in those",
            do=f"give it anew: {flag} {option.partition('[')[0]}=…",
        )


def _count(value: Any, level: int = 0, before: int = 0) -> int:
    """Return how many values there are, those `before` among them; refuse too many."""
    if level > MOST_LEVELS:
        raise _too_deep()
    count = before + 1
    if count > MOST_VALUES:
        raise _too_many()
    if isinstance(value, str):
        check_characters(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_characters(key)
            count = _count(inner, level + 1, count)
    elif isinstance(value, list):
        for inner in value:
            count = _count(inner, level + 1, count)
    return count


def _too_deep() -> Undecodable:
    return Undecodable(f"it is nested more than {MOST_LEVELS} levels deep")


def _too_many() -> Undecodable:
    return Undecodable(f"it stands for more than {MOST_VALUES} values")
