"""Roles to devices: which process renders, acts or learns where, worked out before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from manyarms.errors import ConfigError
from manyarms.placement.environments import Totals, rendered, simulators_of, staged, units_of
from manyarms.placement.parsing import ROLES, parse
from manyarms.placement.processes import Feed, Process, Simulators
from manyarms.placement.ranks import written
from manyarms.placement.table import Table, table_of
from manyarms.placement.topology import Cluster, Slot

#: Where a config says nothing: one process of each role, on the first device.
_ALONE = {"env,rollout,actor": "0"}


@dataclass(frozen=True)
class Plan:
    """Every process in its place."""

    cluster: Cluster
    totals: Totals
    env: tuple[Process, ...]
    rollout: tuple[Process, ...]
    actor: tuple[Process, ...]
    simulators: tuple[Simulators, ...]
    feeds: tuple[Feed, ...]
    """One a rollout process."""
    warnings: tuple[str, ...] = ()

    @property
    def processes(self) -> tuple[Process, ...]:
        return self.env + self.rollout + self.actor

    @property
    def layout(self) -> str:
        """Shared: all roles on the same devices; separate: no device with two roles; else hybrid."""
        env, rollout, actor = ({slot for process in role for slot in process.slots} for role in self.roles.values())
        if env == rollout == actor:
            return "shared"
        return "hybrid" if env & rollout or env & actor or rollout & actor else "separate"

    @property
    def roles(self) -> dict[str, tuple[Process, ...]]:
        return {"env": self.env, "rollout": self.rollout, "actor": self.actor}

    def simulators_of(self, rollout: int) -> tuple[Simulators, ...]:
        """Return what a rollout process starts, in the order of its rows."""
        return tuple(share for share in self.simulators if share.rollout == rollout)

    def table(self) -> Table:
        """Return title, rows and header, as `reporting.console.table` takes them."""
        return table_of(self)


def plan(component_placement: Mapping[str, object] | None, cluster: Cluster, totals: Totals) -> Plan:
    """Place every process; raise where it cannot be done, with the reason."""
    entries = parse(_ALONE if component_placement is None else component_placement)
    cluster = cluster.stretched(max(entry.named for entry in entries.values()))
    env, rollout, actor = (
        [Process(role, rank, slots) for rank, slots in enumerate(entries[role].assign(cluster))] for role in ROLES
    )
    _check_devices(rollout, actor)
    _check_nodes(env, rollout)
    units = units_of(rollout, totals)
    simulators = tuple(simulators_of(env, rollout, units, totals))
    crowds = _crowds([*env, *rollout, *actor])
    found = Plan(
        cluster,
        totals,
        env=tuple(_beside(rendered(process, simulators), crowds) for process in env),
        rollout=tuple(_beside(staged(p, own, totals), crowds) for p, own in zip(rollout, units, strict=True)),
        actor=tuple(_beside(process, crowds) for process in actor),
        simulators=simulators,
        feeds=tuple(_feeds(rollout, actor)),
    )
    return replace(found, warnings=tuple(_warnings(found)))


def _check_devices(rollout: Sequence[Process], actor: Sequence[Process]) -> None:
    for process in [*rollout, *actor]:
        if len(process.slots) > 1:
            raise ConfigError(
                f"{process.name} is placed on {len(process.slots)} devices",
                why="it holds one copy of the policy, on one device",
                do="give as many processes as devices",
            )
    for slot, (first, *others) in _crowds(actor).items():
        if others:
            raise ConfigError(
                f"{first.name} and {others[0].name} are both on {slot} of node {slot.node}",
                why="processes that learn together need a device each",
                do="give as many processes as devices",
            )
    if len({process.kind for process in actor}) > 1:
        raise ConfigError(
            "some actor processes are on GPUs, others on CPUs",
            why="processes that learn together exchange gradients in one way",
            do="place actor on nodes of one kind",
        )


def _check_nodes(env: Sequence[Process], rollout: Sequence[Process]) -> None:
    """A rollout process and its simulators share memory, so each node needs both or neither."""
    rendering, acting = ({process.node for process in role} for role in (env, rollout))
    for here, there, alone in (("env", "rollout", rendering - acting), ("rollout", "env", acting - rendering)):
        if alone:
            raise ConfigError(
                f"node {min(alone)} has {here} processes, but no {there} process",
                why="a rollout process owns its simulators: pixels stay in the shared memory of one machine",
                do=f"place {there} on node {min(alone)} too, or {here} on other nodes",
            )


def _crowds(processes: Sequence[Process]) -> dict[Slot, list[Process]]:
    """Return who is on each device."""
    found: dict[Slot, list[Process]] = {}
    for process in processes:
        for slot in process.slots:
            if slot.device is not None:
                found.setdefault(slot, []).append(process)
    return found


def _beside(process: Process, crowds: Mapping[Slot, Sequence[Process]]) -> Process:
    """Say who else is on a process's devices, and whether it has to make room.

    Simulators render while the policy acts, and keep what they hold; learning comes between. So whoever learns makes
    room for both, and the policy that acts makes room for whoever learns.
    """
    others = [other for slot in process.slots for other in crowds.get(slot, ()) if other.role != process.role]
    found = tuple((other.role, other.rank) for other in others)
    roles = {role for role, _ in found}
    return replace(
        process,
        shares_with=found,
        offloads=bool(roles) if process.role == "actor" else process.role == "rollout" and "actor" in roles,
    )


def _feeds(rollout: Sequence[Process], actor: Sequence[Process]) -> Iterator[Feed]:
    """Let every rollout process have its weights from the nearest actor; of several, from the least busy."""
    ways = ("same device", "same node", "other node")
    fed = [0] * len(actor)
    for process in rollout:
        far = [0 if process.beside(other) else 1 if process.node == other.node else 2 for other in actor]
        nearest = min(range(len(actor)), key=lambda rank: (far[rank], fed[rank], rank))
        fed[nearest] += 1
        yield Feed(nearest, process.rank, ways[far[nearest]])


def _warnings(found: Plan) -> Iterator[str]:
    totals = found.totals
    for node in sorted({process.node for process in found.env}):
        devices = [d for p in found.env if p.node == node and p.kind == "gpu" for d in p.devices]
        if totals.renders_from_gpu_0 and devices and min(devices):
            yield f"env begins at GPU {min(devices)} of node {node}: Isaac may hang; place env on GPUs from 0 on"
    slow = [process for process in found.rollout if process.stages < totals.pipeline_stage_num]
    if slow:
        what = "lock-step group" if totals.lockstep else "environment"
        yield (
            f"rollout.pipeline_stage_num is {totals.pipeline_stage_num}, but {slow[0].name} has {slow[0].stages} "
            f"{what}{'s' * (slow[0].stages > 1)}: simulating and acting overlap less, or not at all"
        )
    loads: dict[Slot, int] = {}
    for share in found.simulators:
        loads[share.slot] = loads.get(share.slot, 0) + len(share.rows)
    if max(loads.values()) - min(loads.values()) > totals.unit:
        yield f"environments are spread unevenly: from {min(loads.values())} to {max(loads.values())} a device"
    for rank, node in enumerate(found.cluster.nodes):
        used = {d for p in found.processes if p.node == rank and p.kind == "cpu" for d in p.devices}
        if len(used) > node.cpus:
            yield f"{len(used)} CPU slots ({written(sorted(used))}) share the {node.cpus} CPUs of node {rank}"
