"""Configs as they are written: which there are, what each is about, and reading one on top of its bases. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from manyarms.decoding import Undecodable, check_yaml, read_text
from manyarms.errors import ConfigError, ManyarmsError, UnknownName, did_you_mean

_RECIPES = resources.files("manyarms") / "recipes"

#: Where a checkout has configs for the large simulators and policies.
_EXAMPLES = Path(__file__).parents[3] / "examples" / "embodiment" / "config"


#: Files that one config may stand on, each counted as often as it is named.
_MOST_BASES = 64


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


@contextmanager
def refusing(what: str, do: str = "") -> Iterator[None]:
    """Say of what YAML and OmegaConf cannot make anything of that it is so."""
    try:
        yield
    except ManyarmsError:
        raise
    except RecursionError:
        raise ConfigError(what, why="it goes too deep, or round in a circle", do=do) from None
    except (Undecodable, yaml.YAMLError, OmegaConfBaseException, TypeError, ValueError) as error:
        raise ConfigError(
            what, why=str(error) if isinstance(error, Undecodable) else first_line(error), do=do
        ) from None


def first_line(error: Exception) -> str:
    """Return the first line of a message; the others are OmegaConf's own names for the place."""
    return str(error).partition("\n")[0]


def _find(source: str) -> tuple[str, str]:
    path = Path(source)
    try:
        if path.suffix in (".yaml", ".yml") or path.is_file():
            return source, read_text(path)
    except OSError as error:
        raise ConfigError(
            f"{source} cannot be read",
            why=error.strerror or "",
            do="`manyarms list configs` shows those that are shipped",
        ) from None
    except ValueError as error:
        raise ConfigError(f"{source} is no text of a config", why=str(error)) from None
    known = recipes()
    if source not in known:
        raise UnknownName(
            f"there is no config {source!r}", do=f"{did_you_mean(source, known)}\na YAML file can be given too"
        )
    return source, (_RECIPES / f"{source}.yaml").read_text()


def _parsed(text: str, name: str) -> DictConfig:
    with refusing(f"{name} is no YAML"):
        kind = check_yaml(text)
        found = OmegaConf.create(text if kind == "mapping" else {})
    if kind not in ("mapping", "nothing"):
        raise ConfigError(f"{name} holds no settings, but a {kind}")
    assert isinstance(found, DictConfig)
    return found


def _on_its_bases(
    given: DictConfig, name: str, below: tuple[Path, ...] = (), read_so_far: list[str] | None = None
) -> DictConfig:
    """Put a config on top of the files that its `base` names, the first at the bottom; paths are relative to it."""
    read_so_far = [] if read_so_far is None else read_so_far
    bases, rest = _bases(given, name)
    merged = OmegaConf.create({})
    for file in bases:
        if file.resolve() in below:
            raise ConfigError(f"{name}: base goes round in a circle at {file}")
        read_so_far.append(name)
        if len(read_so_far) > _MOST_BASES:
            raise ConfigError(f"{name}: a config stands on more than {_MOST_BASES} others", do="put some into one")
        _, text = _find(str(file))
        found = _on_its_bases(_parsed(text, str(file)), str(file), (*below, file.resolve()), read_so_far)
        with refusing(f"{file} does not go with the other bases of {name}"):
            merged = OmegaConf.merge(merged, found)
    with refusing(f"{name} does not go with its base"):
        merged = OmegaConf.merge(merged, rest)
    assert isinstance(merged, DictConfig)
    return merged


def _bases(given: DictConfig, name: str) -> tuple[list[Path], DictConfig]:
    """Return the paths of a config's bases, and the config without them."""
    plain: Any = OmegaConf.to_container(given, resolve=False)
    bases = plain.pop("base", None)
    named = [bases] if isinstance(bases, str) else bases or []
    if not isinstance(named, list) or not all(isinstance(base, str) for base in named):
        raise ConfigError(f"{name}: base is {bases!r}", do="name a file, or several: base: [parts/world.yaml, …]")
    return [Path(name).parent / base for base in named], OmegaConf.create(plain)
