"""Reading configs: YAML and ``key=value`` words, checked against the dataclasses, with words for what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from manyarms.errors import ConfigError, ManyarmsError, UnknownName, did_you_mean
from manyarms.learning.config import TrainConfig
from manyarms.learning.foreign import reason_for
from manyarms.learning.recipes import read, recipes


@dataclass(frozen=True)
class Settings:
    """A config as it was read."""

    config: TrainConfig
    text: str
    """All of it as YAML, defaults and interpolations filled in."""
    warnings: tuple[str, ...]


def load(source: str, overrides: Sequence[str] = ()) -> Settings:
    """Read a YAML file (and those its `base` names), or a recipe by its name, and put ``key=value`` words on top."""
    name, given = read(source)
    for word in overrides:
        given = OmegaConf.merge(given, _override(word))
    assert isinstance(given, DictConfig)
    whole = isinstance(given.get("runner") or {}, Mapping | DictConfig)  # otherwise it is refused below
    if whole and not OmegaConf.select(given, "runner.logger.experiment_name"):
        OmegaConf.update(given, "runner.logger.experiment_name", Path(name).stem)
    return _checked(given, name)


def from_mapping(values: Mapping[str, Any], name: str) -> Settings:
    """Check settings that were made by a program."""
    return _checked(OmegaConf.create(dict(values)), name)


def _override(word: str) -> Any:
    key, equals, _ = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"{word!r} is not of the form key=value", do="for example algorithm.gamma=0.95")
    try:
        return OmegaConf.from_dotlist([word])
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"the value of {key!r} cannot be read", why=str(error).splitlines()[0]) from None


def _checked(given: DictConfig, name: str) -> Settings:
    plain = OmegaConf.to_container(given, resolve=False)
    assert isinstance(plain, dict)
    warnings: list[str] = []
    for key in list(_unknown(plain, TrainConfig)):
        reason = reason_for(key)
        if reason is None:
            place, _, last = key.rpartition(".")
            do = did_you_mean(last, [k.rpartition(".")[2] for k in _keys(TrainConfig) if k.rpartition(".")[0] == place])
            elsewhere = [k for k in _keys(TrainConfig) if k.rpartition(".")[2] == last]
            raise UnknownName(f"{name}: there is no setting {key!r}", do=f"{elsewhere[0]}?" if elsewhere else do)
        warnings.append(f"{key} has no effect here: {reason}")
        _drop(plain, key)
    try:
        _refuse_gaps(plain, name)
        merged = OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.create(plain))
        config = OmegaConf.to_object(merged)
        text = OmegaConf.to_yaml(merged, resolve=True)
    except ManyarmsError:
        raise
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        says = str(error).splitlines()[0]
        raise ConfigError(
            f"{name}: {key or 'a setting'} cannot be so", why=says, do=_kind_of(key) if key else ""
        ) from None
    assert isinstance(config, TrainConfig)
    return Settings(config, text, tuple(warnings))


def _refuse_gaps(given: Mapping[Any, Any], name: str) -> None:
    """Refuse a config in which something is still left open (``???``)."""
    gaps = sorted(OmegaConf.missing_keys(given))
    if gaps:
        raise ConfigError(f"{name} leaves {', '.join(gaps)} open", do=" ".join(f"{gap}=…" for gap in gaps))


def _unknown(given: Mapping[Any, Any], kind: type, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys that no dataclass has; below a plain dict everything goes."""
    hints = get_type_hints(kind)
    for key, value in given.items():
        dotted = f"{prefix}{key}"
        if key not in hints:
            yield dotted
        elif is_dataclass(hints[key]) and isinstance(hints[key], type) and isinstance(value, Mapping):
            yield from _unknown(value, hints[key], f"{dotted}.")
        elif is_dataclass(hints[key]) and value is not None and not str(value).startswith("${"):
            raise ConfigError(f"{dotted} is {value!r}, but it is a group of settings", do=f"{dotted}.<setting>=…")


def _keys(kind: type, prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(kind)
    for entry in fields(kind):
        yield f"{prefix}{entry.name}"
        if is_dataclass(hints[entry.name]):
            yield from _keys(hints[entry.name], f"{prefix}{entry.name}.")


def _kind_of(key: str) -> str:
    """Say what a setting must be, as far down as the dataclasses know it."""
    kind: Any = TrainConfig
    known = ""
    for part in key.replace("[", ".").split("."):
        hints = get_type_hints(kind) if is_dataclass(kind) else {}
        if part not in hints:
            break
        kind, known = hints[part], f"{known}.{part}".lstrip(".")
    words = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
    return f"{known} is of type {words}"


def _drop(tree: dict[Any, Any], key: str) -> None:
    *way, last = key.split(".")
    for part in way:
        tree = tree[part]
    del tree[last]


__all__ = ["Settings", "from_mapping", "load", "recipes"]
