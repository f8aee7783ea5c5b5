"""Configs as they are written: which there are, what each is about, and reading one on top of its bases. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from manyarms.errors import ConfigError, UnknownName, did_you_mean

_RECIPES = resources.files("manyarms") / "recipes"

#: Where a checkout has configs for the large simulators and policies.
_EXAMPLES = Path(__file__).parents[3] / "examples" / "embodiment" / "config"


@dataclass(frozen=True)
class Recipe:
    """What a config is about."""

    name: str
    """As `manyarms train` takes it."""
    about: str
    """The first line of its comment."""
    algorithm: str
    simulator: str
    policy: str


def recipes() -> list[str]:
    """Return the names of the configs that come with manyarms."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _RECIPES.iterdir() if entry.name.endswith(".yaml"))


def examples() -> list[str]:
    """Return the paths of a checkout's configs; an installed package has none."""
    here = Path.cwd()
    return [
        str(path.relative_to(here) if path.is_relative_to(here) else path) for path in sorted(_EXAMPLES.glob("*.yaml"))
    ]


def described(source: str) -> Recipe:
    """Tell what a config is about, without checking it."""
    name, text = _find(source)
    first = text.partition("\n")[0]
    _, given = read(source)

    def said(key: str) -> Any:
        return OmegaConf.select(given, key)

    several = said("env.train.simulators") or [{"simulator": said("env.train.simulator")}]
    loss = "ppo" if said("algorithm.adv_type") == "gae" else said("algorithm.adv_type")
    return Recipe(
        name,
        first.removeprefix("#").strip() if first.startswith("#") else "",
        str(loss or ""),
        ", ".join(str(one["simulator"]) for one in several),
        str(said("actor.model.model_type") or ""),
    )


def read(source: str) -> tuple[str, DictConfig]:
    """Return a config's name and its settings on top of those of its bases."""
    name, text = _find(source)
    return name, _on_its_bases(_parsed(text, name), name)


def _find(source: str) -> tuple[str, str]:
    path = Path(source)
    try:
        if path.suffix in (".yaml", ".yml") or path.is_file():
            return source, path.read_text()
    except OSError as error:
        raise ConfigError(
            f"{source} cannot be read",
            why=error.strerror or "",
            do="`manyarms list configs` shows those that are shipped",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is no text", why=str(error)) from None
    known = recipes()
    if source not in known:
        raise UnknownName(
            f"there is no config {source!r}", do=f"{did_you_mean(source, known)}\na YAML file can be given too"
        )
    return source, (_RECIPES / f"{source}.yaml").read_text()


def _parsed(text: str, name: str) -> DictConfig:
    try:
        found = OmegaConf.create(text)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{name} is no YAML", why=str(error)) from None
    if not isinstance(found, DictConfig):
        raise ConfigError(f"{name} holds no settings")
    return found


def _on_its_bases(given: DictConfig, name: str, below: tuple[Path, ...] = ()) -> DictConfig:
    """Put a config on top of the files that its `base` names, the first at the bottom; paths are relative to it."""
    bases = given.pop("base", None)
    if bases is None:
        return given
    files = [Path(name).parent / str(base) for base in ([bases] if isinstance(bases, str) else bases)]
    merged = OmegaConf.create({})
    for file in files:
        if file.resolve() in below:
            raise ConfigError(f"{name}: base goes round in a circle at {file}")
        _, text = _find(str(file))
        found = _on_its_bases(_parsed(text, str(file)), str(file), (*below, file.resolve()))
        merged = OmegaConf.merge(merged, found)
    merged = OmegaConf.merge(merged, given)
    assert isinstance(merged, DictConfig)
    return merged
