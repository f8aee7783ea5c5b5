"""Reading configs: YAML and ``key=value`` words, checked against the dataclasses, with words for what is not known."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from manyarms.algorithms import BUILT_IN, find_algorithm
from manyarms.algorithms.base import OF_LOG_PROBS, Algorithm
from manyarms.decoding import check_characters, check_yaml
from manyarms.errors import ConfigError, ManyarmsError, UnknownName, did_you_mean
from manyarms.learning.config import TrainConfig
from manyarms.learning.foreign import reason_for
from manyarms.learning.recipes import first_line, read, recipes, refusing
from manyarms.learning.variables import FromVariable, hearing

#: What begins an interpolation, and the backslashes before it.
_OPENING = re.compile(r"(\\*)\$\{")


@dataclass(frozen=True)
class Settings:
    """A config as it was read."""

    config: TrainConfig
    text: str
    """All of it as YAML, defaults and interpolations filled in, but for what comes from environment variables."""
    warnings: tuple[str, ...]


def load(source: str, overrides: Sequence[str] = (), values: Mapping[str, Any] | None = None) -> Settings:
    """Read a YAML file (and those its `base` names), or a recipe by its name.

    On top come ``key=value`` words, and on top of those `values`, by their dotted keys.
    """
    name, given = read(source)
    for word in overrides:
        given = _overridden(given, word)
    for key, value in (values or {}).items():
        given = _merged(given, key, value)
    return _checked(given, name, called=Path(name).stem)


def from_mapping(values: Mapping[str, Any], name: str) -> Settings:
    """Check settings that were made by a program."""
    with refusing(f"{name} holds what is no setting"):
        given = OmegaConf.create(dict(values))
    return _checked(given, name)


def _overridden(given: DictConfig, word: str) -> DictConfig:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"{word!r} is not of the form key=value", do="for example algorithm.gamma=0.95")
    with refusing(f"the value of {key!r} cannot be read", _kind_of(key)):
        check_characters(word)
        check_yaml(value)
        merged = OmegaConf.merge(given, OmegaConf.from_dotlist([word]))
    assert isinstance(merged, DictConfig)
    return merged


def _merged(given: DictConfig, key: str, value: Any) -> DictConfig:
    with refusing(f"the value of {key!r} cannot be read", _kind_of(key)):
        added = OmegaConf.create({})
        OmegaConf.update(added, key, value)
        merged = OmegaConf.merge(given, added)
    assert isinstance(merged, DictConfig)
    return merged


def _checked(given: DictConfig, name: str, called: str = "") -> Settings:
    plain = OmegaConf.to_container(given, resolve=False)
    assert isinstance(plain, dict)
    with hearing() as heard:
        try:
            algorithm, loss_type, warnings = _take_algorithm(plain, name)
            schema = _schema(algorithm)
            for way in list(_unknown(plain, schema)):
                warnings.append(_warning(way, name, schema))
                _drop(plain, way)
            _name(plain, called)
            _refuse_gaps(plain, name)
            merged = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(plain))
            _refuse_unusable(OmegaConf.to_container(merged, resolve=True), name)
            found = heard.mark(OmegaConf.to_object(merged), merged)
        except ManyarmsError as error:
            kind = ConfigError if isinstance(error, ConfigError) else type(error)
            raise kind(heard.hide(error.what), why=heard.hide(error.why), do=error.do) from None
        except (OmegaConfBaseException, TypeError, ValueError, RecursionError) as error:
            key = getattr(error, "full_key", None)
            raise ConfigError(
                f"{name}: {key or 'a setting'} has the wrong type",
                why=heard.hide(first_line(error)),
                do=_kind_of(key) if key else "",
            ) from None
    config = TrainConfig(**{entry.name: getattr(found, entry.name) for entry in fields(TrainConfig)})
    _check_loss_type(loss_type, config.algorithm)
    return Settings(config, _text(config), tuple(warnings))


# -- the algorithm, whose class says which settings there are ---------------------------------------------------------


@cache
def _schema(kind: type[Algorithm]) -> type[TrainConfig]:
    """Return the tree of settings with those of an algorithm in it."""
    entry = ("algorithm", kind, field(default_factory=kind))
    return make_dataclass("TrainConfig", [entry], bases=(TrainConfig,), frozen=True)


def _take_algorithm(plain: dict[Any, Any], name: str) -> tuple[type[Algorithm], Any, list[str]]:
    """Return the class of an algorithm, `loss_type`, and warnings; drop settings that only other algorithms have.

    RLinf's files and every config.yaml that we ever wrote hold those of all of them.
    """
    group = plain.get("algorithm")
    if not isinstance(group, dict):
        return find_algorithm("gae"), None, []
    resolved = OmegaConf.create(plain)

    def value_of(key: str) -> Any:
        with refusing(f"{name}: algorithm.{key} cannot be read"):
            return OmegaConf.select(resolved, f"algorithm.{key}")

    adv_type = "gae" if group.get("adv_type") is None else value_of("adv_type")
    if not isinstance(adv_type, str):
        raise ConfigError(f"{name}: algorithm.adv_type is {adv_type!r}", do=f"choose from {', '.join(BUILT_IN)}")
    kind = find_algorithm(adv_type)
    loss_type = value_of("loss_type") if "loss_type" in group else None
    group.pop("loss_type", None)
    known, elsewhere = {entry.name for entry in fields(kind)}, _defaults_elsewhere()
    if not kind.needs_log_probs:
        known.difference_update(OF_LOG_PROBS)
    warnings = []
    for key in [key for key in group if key not in known and key in elsewhere]:
        if value_of(key) not in elsewhere[key]:
            warnings.append(f"algorithm.{key} has no effect with {adv_type}")
        del group[key]
    return kind, loss_type, warnings


@cache
def _defaults_elsewhere() -> Mapping[str, list[Any]]:
    """Return the settings of all built-in algorithms, each with the values that mean nothing was chosen."""
    found: dict[str, list[Any]] = {}
    for kind in map(find_algorithm, BUILT_IN):
        for entry in fields(kind):
            found.setdefault(entry.name, [None]).append(entry.default)
    found["group_size"].append(1)  # no groups
    return found


def _check_loss_type(loss_type: Any, algorithm: Algorithm) -> None:
    """Refuse a `loss_type`, which RLinf's files have, that the algorithm does not have."""
    own = "actor" if algorithm.critic is None else "actor_critic"
    if loss_type is not None and loss_type != own:
        why = "has no critic" if algorithm.critic is None else "needs a critic"
        raise ConfigError(f"loss_type is {loss_type!r}, but {algorithm.adv_type} {why}", do=f"loss_type: {own}")


def _text(config: TrainConfig) -> str:
    """Return a config as YAML that can be given back."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(asdict(config))))


def _escaped(value: Any) -> Any:
    """Return a tree as it may be shown, in which what is no interpolation is not taken for one."""
    if isinstance(value, FromVariable):
        return value.asked
    if isinstance(value, str):
        return _OPENING.sub(r"\1\1\\${", value)
    if isinstance(value, dict):
        return {key: _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, list | tuple) else value


def _warning(way: Sequence[Any], name: str, schema: type[TrainConfig]) -> str:
    """Return why a setting that is none of ours does nothing; refuse one that nobody knows."""
    *place, last = map(str, way)
    key = ".".join((*place, last))
    reason = reason_for(key)
    if reason is not None:
        return f"{key} has no effect here: {reason}"
    known = [known.rpartition(".") for known in _keys(schema)]
    elsewhere = [f"{there}.{found}".lstrip(".") for there, _, found in known if found == last]
    do = did_you_mean(last, [found for there, _, found in known if there == ".".join(place)])
    raise UnknownName(f"{name}: there is no setting {key!r}", do=f"{elsewhere[0]}?" if elsewhere else do)


def _name(plain: dict[Any, Any], called: str) -> None:
    """Give a run that has no name the one of its config; what is no group of settings is refused elsewhere."""
    group = plain
    for part in ("runner", "logger"):
        if group.get(part) is None:
            group[part] = {}
        group = group[part]
        if not isinstance(group, dict):
            return
    if not group.get("experiment_name"):
        group["experiment_name"] = called


def _refuse_unusable(value: Any, name: str, way: tuple[str, ...] = ()) -> None:
    """Refuse letters that cannot be written, and numbers that are none: but simulators may have a use for those."""
    key = ".".join(way)
    of_simulators = way[:1] == ("env",) and not {"options", "simulators"}.isdisjoint(way)
    if isinstance(value, float) and not math.isfinite(value) and not of_simulators:
        raise ConfigError(f"{name}: {key} is {value}", do="give a finite number, or leave it out")
    if isinstance(value, str):
        with refusing(f"{name}: {key} cannot be used"):
            check_characters(value)
    if isinstance(value, dict):
        for inner, child in value.items():
            _refuse_unusable(str(inner), name, way)
            _refuse_unusable(child, name, (*way, str(inner)))
    if isinstance(value, list | tuple):
        for index, child in enumerate(value):
            _refuse_unusable(child, name, (*way, str(index)))


def _refuse_gaps(given: Mapping[Any, Any], name: str) -> None:
    """Refuse a config in which something is still left open (``???``)."""
    gaps = sorted(OmegaConf.missing_keys(given))
    if gaps:
        raise ConfigError(f"{name} leaves {', '.join(gaps)} open", do=" ".join(f"{gap}=…" for gap in gaps))


def _unknown(given: Mapping[Any, Any], kind: type, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the ways to settings that no dataclass has; below a plain dict everything goes."""
    hints = get_type_hints(kind)
    for key, value in given.items():
        if key not in hints:
            yield (*way, key)
        elif is_dataclass(hints[key]) and isinstance(hints[key], type) and isinstance(value, Mapping):
            yield from _unknown(value, hints[key], (*way, key))
        elif is_dataclass(hints[key]) and value is not None and not str(value).startswith("${"):
            dotted = ".".join((*way, key))
            raise ConfigError(f"{dotted} is {value!r}, but it is a group of settings", do=f"{dotted}.<setting>=…")
        elif isinstance(value, list) and get_origin(hints[key]) is dict:
            dotted = ".".join((*way, key))
            raise ConfigError(f"{dotted} is {value!r}, but it is a mapping", do=_kind_of(dotted))


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
        if kind is Algorithm:
            hints = {key: hint for each in map(find_algorithm, BUILT_IN) for key, hint in get_type_hints(each).items()}
        if part not in hints:
            break
        kind, known = hints[part], f"{known}.{part}".lstrip(".")
    if not known:
        return ""
    if is_dataclass(kind):
        return f"{known} is a group of settings: {known}.<setting>=…"
    words = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
    return f"{known} is of type {words}"


def _drop(tree: dict[Any, Any], way: Sequence[Any]) -> None:
    for part in way[:-1]:
        tree = tree[part]
    del tree[way[-1]]


__all__ = ["Settings", "from_mapping", "load", "recipes"]
