"""Which process acts for which environments, and where they render."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from manyarms.errors import ConfigError
from manyarms.placement.processes import Process, Simulators


@dataclass(frozen=True)
class Totals:
    """What has to be placed, over all processes."""

    num_envs: int = 8
    """env.train.total_num_envs."""
    rows_per_worker: int = 1
    """Environments that share a worker process."""
    lockstep: bool = False
    """Whether a worker's environments only step together: such a group stays whole."""
    pipeline_stage_num: int = 2
    """In how many parts the environments of a rollout process take turns at the policy."""
    starts_per_step: int | None = None
    """What an update plays: groups of episodes that begin alike, or episodes where there are no groups."""
    renders_from_gpu_0: bool = False
    """Whether the simulator may hang on GPUs that do not begin with the first, as Isaac does."""

    def __post_init__(self) -> None:
        for name in ("num_envs", "rows_per_worker", "pipeline_stage_num"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", do="give a whole number from 1 on")

    @property
    def unit(self) -> int:
        """Environments that cannot be parted."""
        return self.rows_per_worker if self.lockstep else 1

    @property
    def units(self) -> int:
        return math.ceil(self.num_envs / self.unit)

    def rows(self, units: Sequence[int]) -> tuple[int, ...]:
        """Return the environments of some units; the last unit may be smaller than the others."""
        return tuple(row for i in units for row in range(i * self.unit, min((i + 1) * self.unit, self.num_envs)))


def units_of(rollout: Sequence[Process], totals: Totals) -> list[range]:
    """Give every rollout process its units: shares lie one after the other, as even as can be."""
    count, world = totals.units, len(rollout)
    if count < world:
        groups = f", in lock-step groups of {totals.unit}" if totals.unit > 1 else ""
        raise ConfigError(
            f"{world} rollout processes, but only {totals.num_envs} environments{groups}",
            why="a lock-step group stays whole" if groups else "",
            do="raise env.train.total_num_envs, or place fewer rollout processes"
            + ", or lower env.train.rows_per_worker" * bool(groups),
        )
    if totals.starts_per_step is not None and totals.starts_per_step < world:
        raise ConfigError(
            f"{world} rollout processes, but an update plays only {totals.starts_per_step} groups or episodes",
            why="one process plays all episodes of a group; some would never play",
            do="raise algorithm.episodes_per_step, lower algorithm.group_size, or place fewer rollout processes",
        )
    return [_share(count, rank, world) for rank in range(world)]


def _share(count: int, index: int, of: int) -> range:
    return range(count * index // of, count * (index + 1) // of)


def simulators_of(
    env: Sequence[Process], rollout: Sequence[Process], units: Sequence[range], totals: Totals
) -> Iterator[Simulators]:
    """Spread the units of a node evenly over where it renders; each stays with the process that acts for it."""
    for node in sorted({process.node for process in rollout}):
        places = [(process.rank, slot) for process in env if process.node == node for slot in process.slots]
        here = [(process.rank, unit) for process in rollout if process.node == node for unit in units[process.rank]]
        if len(here) < len(places):
            what = f"lock-step groups of {totals.unit} environments" if totals.unit > 1 else "environments"
            raise ConfigError(
                f"node {node} has {len(places)} places for simulators, but only {len(here)} {what}",
                do="raise env.train.total_num_envs, or name fewer devices for env",
            )
        for i, (rank, slot) in enumerate(places):
            share = [here[k] for k in _share(len(here), i, len(places))]
            for owner in dict.fromkeys(owner for owner, _ in share):
                rows = totals.rows([unit for rollout_rank, unit in share if rollout_rank == owner])
                yield Simulators(owner, rank, slot, rows, math.ceil(len(rows) / totals.rows_per_worker))


def rendered(process: Process, simulators: Sequence[Simulators]) -> Process:
    """Give an env process the environments that render in its place."""
    return replace(process, rows=tuple(row for share in simulators if share.env == process.rank for row in share.rows))


def staged(process: Process, units: range, totals: Totals) -> Process:
    """Give a rollout process its environments, in stages of whole units."""
    stages = min(totals.pipeline_stage_num, len(units))
    rows = totals.rows(units)
    return replace(
        process, rows=rows, stages=stages, stage_rows=min(len(rows), math.ceil(len(units) / stages) * totals.unit)
    )
