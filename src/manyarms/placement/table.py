"""A plan as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from manyarms.placement.ranks import written

if TYPE_CHECKING:
    from manyarms.placement.plan import Plan, Process

_HEADER = ("process", "node", "device", "environments", "stages", "shares with", "between phases", "weights")


class Table(NamedTuple):
    """What is printed, in the order in which `reporting.console.table` takes it."""

    title: str
    rows: list[tuple[str, ...]]
    header: tuple[str, ...]


def table_of(plan: Plan) -> Table:
    """Return a line a process."""
    rows = [
        (
            process.name,
            str(process.node),
            _devices(process),
            _environments(process, plan),
            f"{process.stages}, {process.stage_rows} at once" if process.stages else "",
            ", ".join(f"{role} {rank}" for role, rank in process.shares_with),
            "off-loads" if process.offloads else "",
            _weights(process, plan),
        )
        for process in plan.processes
    ]
    return Table(f"placement: {plan.layout}, {plan.cluster}", rows, _HEADER)


def _devices(process: Process) -> str:
    return f"{process.kind} {written(process.devices)}".rstrip()


def _environments(process: Process, plan: Plan) -> str:
    if process.role == "env":
        owners = dict.fromkeys(share.rollout for share in plan.simulators if share.env == process.rank)
        return f"{written(process.rows)} of rollout {written(owners)}"
    shares = plan.simulators_of(process.rank) if process.role == "rollout" else ()
    return "; ".join(f"{written(share.rows)} on {share.slot}" for share in shares)


def _weights(process: Process, plan: Plan) -> str:
    if process.role == "rollout":
        feed = plan.feeds[process.rank]
        return f"from actor {feed.actor}, {feed.way}"
    fed = [feed.rollout for feed in plan.feeds if feed.actor == process.rank] if process.role == "actor" else []
    return f"to rollout {written(fed)}" if fed else ""
