"""The machines of a run: their nodes, what can be computed on in each, and groups of them with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from manyarms.errors import ConfigError, UnknownName, did_you_mean
from manyarms.placement.ranks import parse_ranks

#: Every node of the cluster; each node as a whole, whatever it holds.
CLUSTER, NODE = "cluster", "node"

_SETTINGS = ("num_nodes", "component_placement", "node_groups", "cpu_slots")
_GROUP_SETTINGS = ("label", "node_ranks", "ignore_hardware")
_ELSEWHERE = {
    "env_configs": "the interpreter of simulators is env.train.python; other variables are set before Ray is started",
    "hardware": "only simulators are driven here, no robots",
}


@dataclass(frozen=True)
class Node:
    """A machine."""

    accelerators: int = 0
    cpus: int = 1
    slots: int | None = None
    """Device ids where there are no accelerators; default: as many as CPUs."""

    def __post_init__(self) -> None:
        if self.accelerators < 0 or self.cpus < 1 or (self.slots is not None and self.slots < 1):
            raise ConfigError(f"{self} cannot be: a node has a CPU and a slot at least")

    @property
    def cpu_slots(self) -> int:
        return self.cpus if self.slots is None else self.slots


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that placements can name together."""

    label: str
    node_ranks: tuple[int, ...]
    ignore_hardware: bool = False
    """Ids are CPU slots even where there are accelerators."""


@dataclass(frozen=True)
class Slot:
    """A place for a process."""

    node: int
    device: int | None
    """Counted within the node; None: the node as a whole."""
    kind: str
    """gpu or cpu."""

    def __str__(self) -> str:
        return self.kind if self.device is None else f"{self.kind} {self.device}"


@dataclass(frozen=True)
class Cluster:
    """All nodes of a run."""

    nodes: tuple[Node, ...] = (Node(),)
    node_groups: tuple[NodeGroup, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("a cluster has one node at least")
        labels = [group.label for group in self.node_groups]
        for label in labels:
            if label in (CLUSTER, NODE):
                raise ConfigError(f"a node group cannot be called {label!r}", why=f"{label} is there already")
            if labels.count(label) > 1:
                raise ConfigError(f"two node groups are called {label!r}", do="give each a label of its own")
        for group in self.node_groups:
            unknown = [rank for rank in group.node_ranks if rank >= len(self.nodes)]
            if unknown:
                raise ConfigError(
                    f"node group {group.label!r} holds node {unknown[0]}",
                    why=f"cluster.num_nodes is {len(self.nodes)}, the first node is 0",
                )

    def slots(self, labels: Sequence[str] = ()) -> tuple[Slot, ...]:
        """Return what ids stand for: those of one group after the other; without labels, of all nodes."""
        found = tuple(slot for label in labels or (CLUSTER,) for slot in self._slots_of(label))
        if len(set(found)) < len(found):
            raise ConfigError(f"node groups {' and '.join(labels)} share a node", do="name one of them")
        return found

    def _slots_of(self, label: str) -> list[Slot]:
        if label == NODE:
            return [Slot(node, None, "cpu") for node in range(len(self.nodes))]
        group = self._group(label)
        nodes = [(rank, self.nodes[rank]) for rank in group.node_ranks]
        # Beside nodes with accelerators, one without has nothing that an id could mean.
        if not group.ignore_hardware and any(node.accelerators for _, node in nodes):
            return [Slot(rank, device, "gpu") for rank, node in nodes for device in range(node.accelerators)]
        return [Slot(rank, device, "cpu") for rank, node in nodes for device in range(node.cpu_slots)]

    def _group(self, label: str) -> NodeGroup:
        if label == CLUSTER:
            return NodeGroup(CLUSTER, tuple(range(len(self.nodes))))
        found = next((group for group in self.node_groups if group.label == label), None)
        if found is None:
            known = [NODE, CLUSTER, *(group.label for group in self.node_groups)]
            raise UnknownName(f"there is no node group {label!r}", do=did_you_mean(label, known))
        return found

    def stretched(self, slots: int) -> Cluster:
        """Give one machine without accelerators as many slots as a placement names, unless their number is fixed."""
        node, *others = self.nodes
        if others or node.accelerators or node.slots is not None:
            return self
        return replace(self, nodes=(replace(node, slots=max(slots, node.cpus)),))

    def __str__(self) -> str:
        """Say in few words what there is."""
        kinds: dict[str, int] = {}
        for node in self.nodes:
            kind = _several(node.accelerators, "GPU") if node.accelerators else _several(node.cpu_slots, "CPU slot")
            kinds[kind] = kinds.get(kind, 0) + 1
        return ", ".join(f"{_several(count, 'node')} with {kind}" for kind, count in kinds.items())


def cluster_from(settings: Mapping[str, object], found: Sequence[Node], *, alike: bool = False) -> Cluster:
    """Return the cluster that a config's `cluster` section means, given the nodes that were `found`.

    With `alike`, nodes that are not there yet are taken to be like the first: enough for a plan to look at.
    """
    for key in settings:
        if key not in _SETTINGS:
            raise UnknownName(f"there is no setting 'cluster.{key}'", do=did_you_mean(str(key), _SETTINGS))
    wanted = _count(settings.get("num_nodes", 1), "cluster.num_nodes")
    if alike and found:
        found = [*found, *[found[0]] * (wanted - len(found))]
    if len(found) < wanted:
        raise ConfigError(
            f"cluster.num_nodes is {wanted}, but {len(found)} answered",
            do="run `ray start --address=<first node>` on the others, or lower num_nodes",
        )
    nodes = tuple(found[:wanted])
    if settings.get("cpu_slots") is not None:
        slots = _count(settings["cpu_slots"], "cluster.cpu_slots")
        nodes = tuple(replace(node, slots=slots) for node in nodes)
    given = settings.get("node_groups") or ()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ConfigError("cluster.node_groups is no list", do="begin each group with `- label:`")
    return Cluster(nodes, tuple(_node_group(group) for group in given))


def _node_group(given: object) -> NodeGroup:
    if not isinstance(given, Mapping) or not {"label", "node_ranks"} <= set(given):
        raise ConfigError(f"cluster.node_groups holds {given!r}", do="give each group a label and node_ranks")
    for key in given:
        if key not in _GROUP_SETTINGS:
            why = _ELSEWHERE.get(str(key), "")
            do = "" if why else did_you_mean(str(key), _GROUP_SETTINGS)
            raise UnknownName(f"node group {given['label']!r} has no setting {key!r}", why=why, do=do)
    label, ranks = str(given["label"]), given["node_ranks"]
    words = ranks if isinstance(ranks, Sequence) and not isinstance(ranks, str) else str(ranks).split(",")
    spans = [parse_ranks(str(word), f"node_ranks of node group {label!r}") for word in words]
    found = [rank for span in spans for rank in span]
    if len(found) != len(set(found)):
        raise ConfigError(f"node group {label!r} holds a node twice: node_ranks is {ranks!r}", do="name each once")
    return NodeGroup(label, tuple(found), bool(given.get("ignore_hardware", False)))


def _count(given: object, name: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"{name} is {given!r}", do="give a whole number from 1 on")
    return given


def _several(count: int, name: str) -> str:
    return f"{count} {name}" + "s" * (count != 1)
