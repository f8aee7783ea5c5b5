"""``manyarms list``: which simulators, tasks, policies, algorithms and configs there are."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import tyro

from manyarms import plugins
from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.doctor.simulators import check_names
from manyarms.errors import ConfigError, UnknownName, did_you_mean
from manyarms.policies import registry as policies
from manyarms.reporting.console import Shown, Table, Telling
from manyarms.simulators import registry as simulators
from manyarms.simulators.about import About

Kind = Literal["simulators", "tasks", "policies", "algorithms", "configs"]


@dataclass(frozen=True)
class ListConfig:
    """List what there is: simulators and whether they can run here, their tasks, policies, algorithms, or configs."""

    what: Annotated[tyro.conf.Positional[Kind], tyro.conf.arg(metavar="WHAT")]
    """simulators, tasks, policies, algorithms or configs."""
    simulator: tyro.conf.Positional[str] = ""
    """Whose tasks; default: those of every simulator."""
    match: str = ""
    """Only what has this in its name or description."""
    json: bool = False
    """Print one JSON document."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms list simulators",
            "manyarms list tasks rlbench --match drawer",
            "manyarms list configs --json",
        ),
    )

    def __post_init__(self) -> None:
        if self.what not in get_args(Kind):
            raise UnknownName(f"{self.what!r} cannot be listed", do=did_you_mean(self.what, get_args(Kind)))
        if self.simulator and self.what != "tasks":
            raise ConfigError(f"list {self.what} takes no simulator", do=f"manyarms list tasks {self.simulator}")


@dataclass(frozen=True, repr=False)
class Listing(Shown):
    """What there is, a row for each."""

    what: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""

    def told(self) -> Telling:
        tables = [Table(self.rows, self.header)] if self.rows else []
        return Telling(f"{len(self.rows)} {self.what}", tables, [self.note] if self.note else [])

    def as_dicts(self) -> list[dict[str, str]]:
        """Return the rows with their columns' names."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]


def run(config: ListConfig) -> Listing:
    """List what a config asks for."""
    header, rows, note = _LISTS[config.what](config)
    wanted = config.match.lower()
    return Listing(config.what, header, [row for row in rows if wanted in " ".join(row).lower()], note)


def _simulators(_: ListConfig) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    points = plugins.plug_ins("simulators")
    rows = []
    for name in [*sorted(simulators.BUILT_IN), *sorted(points.keys() - simulators.BUILT_IN.keys())]:
        about = simulators.about(name)
        rows.append((name, about.what or _origin(points[name]), _runs_here(name, about)))
    return ("name", "what", "here"), rows, "manyarms doctor SIMULATOR starts one and tells more"


def _runs_here(name: str, about: About) -> str:
    """Tell whether what a simulator stands on can be found, without importing or starting anything."""
    if not about.needs:
        return "to be seen"
    missing = [module for module in about.needs if importlib.util.find_spec(module) is None]
    if not missing:
        return "yes"
    own = Path(".venvs", name)  # where the installers of a checkout put an interpreter for it
    if (own / "bin").is_dir():
        return f"with --python {own}"
    return f"no: {' and '.join(missing)} not found"


def _tasks(config: ListConfig) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    known = plugins.names("simulators")
    if config.simulator:
        check_names([config.simulator], known)
    name, below = simulators.split_id(config.simulator)
    rows = [
        row for each in ([name] if name else known) for row in _tasks_of(each) if row[0].startswith(f"{each}/{below}")
    ]
    told = "" if rows or not name else f"{name} does not tell its tasks before it is started"
    return ("task", "what"), rows, told


def _tasks_of(simulator: str) -> Iterator[tuple[str, str]]:
    try:
        tasks = simulators.tasks_of(simulator)
    except ImportError as error:
        raise ConfigError(
            f"simulator {simulator!r} cannot be imported", why=str(error), do="manyarms list tasks SIMULATOR for others"
        ) from error
    for task, words in tasks.items():
        yield f"{simulator}/{task}", words


def _policies(_: ListConfig) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    rows = []
    for name, about in sorted(policies.FACTS.items()):
        rows.append((name, about.what, about.chunk, f"manyarms[{about.extra}]" if about.extra else ""))
    points = sorted(plugins.plug_ins("policies").items())
    rows += [(name, _origin(point), "", "") for name, point in points if name not in policies.BUILT_IN]
    note = "--policy also takes package.module:factory and the folder of a checkpoint"
    return ("name", "what", "chunk", "needs"), rows, note


def _algorithms(_: ListConfig) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    rows = [(name, _about(target.partition(":")[0])) for name, target in plugins.built_in("algorithms").items()]
    rows += [(name, _origin(point)) for name, point in sorted(plugins.plug_ins("algorithms").items())]
    return ("adv_type", "what"), rows, "algorithm.adv_type also takes package.module:Class"


def _about(module: str) -> str:
    """Return the first line of a module's docstring; what it imports would take seconds."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return (ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or "").partition("\n")[0]


def _configs(_: ListConfig) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    from manyarms.learning.recipes import described, examples, recipes

    found = [described(source) for source in [*recipes(), *examples()]]
    rows = [(each.name, each.algorithm, each.simulator, each.policy, each.about) for each in found]
    return ("config", "algorithm", "simulator", "policy", "what"), rows, "manyarms train CONFIG --dry-run shows one"


def _origin(point: Any) -> str:
    """Say where a plug-in comes from."""
    return f"plug-in of {point.dist.name} {point.dist.version}" if point.dist else f"plug-in {point.value}"


_LISTS = {
    "simulators": _simulators,
    "tasks": _tasks,
    "policies": _policies,
    "algorithms": _algorithms,
    "configs": _configs,
}


def main(arguments: Sequence[str]) -> int:
    """Parse, list, print."""
    config = parse(ListConfig, "list", arguments)
    listing = run(config)
    if config.json:
        print(json.dumps(listing.as_dicts(), indent=2))
    else:
        listing.show()
    return 0
