"""Reading `cluster.component_placement`: which role names which ids, and which of its processes go there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manyarms.errors import ConfigError, UnknownName, did_you_mean
from manyarms.placement.ranks import parse_ranks, written
from manyarms.placement.topology import NODE, Cluster, Slot

ROLES = ("env", "rollout", "actor")

_ELSEWHERE = {
    "reward": "rewards come from the simulator",
    "critic": "the critic is the policy's value head",
    "inference": "log-probabilities are those with which actions were drawn",
}
_FORM = "write ids such as 0-3, all or 0,2,4-7, with processes as in 0-1:0-3"


@dataclass(frozen=True)
class Segment:
    """A part between commas: ``resources:processes``."""

    resources: range | None
    """None: all there are."""
    processes: range | None
    """None: one a resource, counted on."""


@dataclass(frozen=True)
class Entry:
    """What a config says of one role."""

    role: str
    text: str
    segments: tuple[Segment, ...]
    node_groups: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"component_placement of {self.role} is {self.text!r}"

    @property
    def named(self) -> int:
        """How many devices there must be for every id to be one."""
        if NODE in self.node_groups:
            return 0
        return max((part.resources[-1] + 1 for part in self.segments if part.resources is not None), default=0)

    def assign(self, cluster: Cluster) -> list[tuple[Slot, ...]]:
        """Return the slots of every process, by its rank."""
        slots = cluster.slots(self.node_groups)
        found: dict[int, tuple[Slot, ...]] = {}
        taken: set[int] = set()
        for part in self.segments:
            resources = self._known(part, len(slots))
            twice = taken.intersection(resources)
            if twice:
                raise ConfigError(
                    f"{self.where}: id {min(twice)} stands there twice",
                    do="to put several processes on a device write resources:processes, such as 0-1:0-3",
                )
            taken.update(resources)
            first = max(found, default=-1) + 1
            processes = part.processes or range(first, first + len(resources))
            for rank, own in zip(processes, self._dealt(resources, len(processes)), strict=True):
                if rank in found:
                    raise ConfigError(f"{self.where}: process {rank} stands there twice", do="count processes on")
                found[rank] = self._on_one_node(rank, [slots[i] for i in own])
        missing = [rank for rank in range(len(found)) if rank not in found]
        if missing:
            raise ConfigError(
                f"{self.where}: there is no process {missing[0]}", why="processes are counted from 0, without gaps"
            )
        return [found[rank] for rank in range(len(found))]

    def _known(self, part: Segment, count: int) -> range:
        resources = range(count) if part.resources is None else part.resources
        if not count or resources[-1] >= count:
            group = ", ".join(self.node_groups) or "the cluster"
            # YAML 1.1 counts in sixties: an unquoted 1:0 arrives here as 60.
            sixties = self.text.isdigit() and int(self.text) >= 60
            do = f'if you wrote {int(self.text) // 60}:{int(self.text) % 60}, put it in quotes: "…"' if sixties else ""
            wrong = "all" if part.resources is None else max(resources[0], count)
            raise ConfigError(
                f"{self.where}: there is no device {wrong}",
                why=f"{group} has {'none' if not count else written(range(count))}",
                do=do or "name what is there; `all` is always right" * bool(count),
            )
        return resources

    def _dealt(self, resources: range, processes: int) -> list[range]:
        """Deal resources to processes; where they are fewer, neighbours share one."""
        count = len(resources)
        if max(count, processes) % min(count, processes):
            raise ConfigError(
                f"{self.where}: {count} devices cannot be dealt to {processes} processes",
                why="every process has to get as many devices as the next, or every device as many processes",
                do=f"give {count} processes, or a multiple of that",
            )
        if count >= processes:
            each = count // processes
            return [resources[i * each : (i + 1) * each] for i in range(processes)]
        each = processes // count
        return [resources[i // each : i // each + 1] for i in range(processes)]

    def _on_one_node(self, rank: int, slots: Sequence[Slot]) -> tuple[Slot, ...]:
        if len({(slot.node, slot.kind) for slot in slots}) > 1:
            raise ConfigError(
                f"{self.where}: process {rank} would run on nodes {written(sorted({slot.node for slot in slots}))}",
                why="a process is on one node",
                do="give every node a process at least",
            )
        return tuple(slots)


def parse(component_placement: Mapping[str, object]) -> dict[str, Entry]:
    """Return the entry of every role."""
    found: dict[str, Entry] = {}
    for names, given in component_placement.items():
        for role in (name.strip() for name in str(names).split(",")):
            if role not in ROLES:
                why = _ELSEWHERE.get(role, "")
                raise UnknownName(f"component_placement: there is no {role!r}", why=why, do=did_you_mean(role, ROLES))
            if role in found:
                raise ConfigError(f"component_placement names {role} twice", do="remove one")
            found[role] = _entry(role, given)
    missing = [role for role in ROLES if role not in found]
    if missing:
        raise ConfigError(
            f"component_placement says nothing of {' and '.join(missing)}",
            do=f"add it, for example `{','.join(missing)}: all`",
        )
    return {role: found[role] for role in ROLES}


def _entry(role: str, given: object) -> Entry:
    groups: tuple[str, ...] = ()
    if isinstance(given, Mapping):
        for key in given:
            if key not in ("node_group", "placement"):
                do = did_you_mean(str(key), ("node_group", "placement"))
                raise UnknownName(f"component_placement of {role} has no setting {key!r}", do=do)
        if "placement" not in given:
            raise ConfigError(f"component_placement of {role} has no placement", do=_FORM)
        groups, given = _labels(given.get("node_group")), given["placement"]
    if isinstance(given, bool) or not isinstance(given, int | str) or not str(given).strip():
        raise ConfigError(f"component_placement of {role} is {given!r}", do=_FORM)
    text = str(given).strip()
    return Entry(role, text, tuple(_segment(role, text, part) for part in text.split(",")), groups)


def _segment(role: str, text: str, part: str) -> Segment:
    where = f"component_placement of {role} is {text!r}"
    resources, colon, processes = (word.strip() for word in part.partition(":"))
    if not resources or (colon and not processes) or ":" in processes:
        raise ConfigError(f"{where}: {part.strip()!r} cannot be read", do=_FORM)
    if processes.lower() == "all":
        raise ConfigError(f"{where}: processes cannot be `all`", why="how many there are is said by their numbers")
    return Segment(
        None if resources.lower() == "all" else parse_ranks(resources, where),
        parse_ranks(processes, where) if colon else None,
    )


def _labels(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    labels = given if isinstance(given, Sequence) and not isinstance(given, str) else str(given).split(",")
    found = tuple(str(label).strip() for label in labels)
    if len(set(found)) < len(found):
        raise ConfigError(f"node_group is {given!r}: a group stands there twice", do="name each once")
    return found
