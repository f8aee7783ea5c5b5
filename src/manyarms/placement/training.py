"""`manyarms train` with roles in processes of their own: from a config to a plan, and from the plan to a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from manyarms.errors import ConfigError, UnknownName
from manyarms.learning import loop
from manyarms.learning.checkpoint import latest
from manyarms.learning.config import TrainConfig
from manyarms.learning.folder import RunFolder
from manyarms.learning.foresight import lacks, refuse
from manyarms.learning.interrupts import Interrupts, Stopped
from manyarms.learning.loop import Run, TrainResult
from manyarms.learning.ranks import Ranks
from manyarms.learning.settings import Settings
from manyarms.learning.training import train as train_here
from manyarms.placement.cluster import RayCluster
from manyarms.placement.driver import RayBackend
from manyarms.placement.environments import Totals
from manyarms.placement.faults import LearnersLost, RayLost, never_began
from manyarms.placement.plan import Plan, plan
from manyarms.placement.topology import Node, cluster_from
from manyarms.reporting.console import lined_up, say
from manyarms.reporting.live import forget_earlier
from manyarms.simulators import registry

_EVERYWHERE = {"env,rollout,actor": "all"}


def train(settings: Settings, *, resume: bool = False) -> TrainResult:
    """Run a config wherever it says: in this process, on one of torchrun's ranks, or all over a Ray cluster."""
    config = settings.config
    found = lacks(config)
    if _is_elsewhere(config):
        for lack in found:
            say(f"warning: on this machine it would fail: {lack}", stderr=True)
    else:
        refuse(found, config)
    if not config.cluster.placed:
        return train_here(settings, resume=resume)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "cluster.component_placement starts its processes itself, but torchrun has started several",
            do="run `manyarms train` once, or leave cluster out",
        )
    return _train_placed(settings, resume)


def _is_elsewhere(config: TrainConfig) -> bool:
    """Tell whether processes may run on other machines, or with the variables that others have started Ray with."""
    cluster = config.cluster
    address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
    return cluster.placed and (cluster.num_nodes > 1 or address != "local")


def plan_for(config: TrainConfig, found: Sequence[Node], *, alike: bool = False) -> Plan:
    """Return which process of a config goes where on the nodes that were found."""
    cluster = config.cluster
    settings: dict[str, object] = {"num_nodes": cluster.num_nodes, "node_groups": cluster.node_groups}
    if cluster.cpu_slots is not None:
        settings["cpu_slots"] = cluster.cpu_slots
    simulators = [each.simulator for each in config.train.simulators]
    totals = Totals(
        config.train.total_num_envs,
        config.train.rows_per_worker,
        lockstep=any(map(_steps_in_groups, simulators)),
        pipeline_stage_num=config.rollout.pipeline_stage_num,
        starts_per_step=config.episodes_per_step // config.algorithm.group_size,
        renders_from_gpu_0=any(registry.about(name).renders_from_gpu_0 for name in simulators),
    )
    wanted = cluster.component_placement or _EVERYWHERE
    return plan(wanted, cluster_from(settings, found, alike=alike), totals)


def _steps_in_groups(simulator: str) -> bool:
    """Tell whether a simulator steps in groups; one that lives in another interpreter says nothing here."""
    try:
        return registry.is_lockstep(simulator)
    except (ImportError, AttributeError, UnknownName):
        return False


def this_machine() -> Node:
    """Return the machine we are on, as a node."""
    return Node(torch.cuda.device_count(), os.cpu_count() or 1)


def _train_placed(settings: Settings, resume: bool) -> TrainResult:
    config, folder = settings.config, RunFolder(settings)
    start = folder.find_start(config, resume)
    with folder.claimed(), RayCluster(config.cluster) as cluster:
        forget_earlier(folder.path)
        from ray.exceptions import RayError

        found = plan_for(config, [node.node for node in cluster.nodes])
        _tell(found)
        cluster.reserve(found)
        with (
            Interrupts(at_once=False) as interrupts,
            closing(RayBackend(settings, found, cluster, folder, interrupts)) as backend,
        ):
            run = Run(settings, Ranks(), folder, interrupts)
            try:
                return _run(run, backend, folder, start, config.cluster.max_restarts)
            except Stopped:
                raise KeyboardInterrupt from None  # before there was anything to keep
            except (RayLost, RayError, OSError) as error:
                # Without Ray whatever is asked fails in its own way.
                lost = error if isinstance(error, RayLost) else cluster.own_loss()
                if lost is not None:
                    raise _with_a_way_on(lost, folder, cluster) from error
                if isinstance(error, RayError):
                    raise never_began(error) from error
                raise


def _with_a_way_on(lost: RayLost, folder: RunFolder, cluster: RayCluster) -> RayLost:
    """Say what is left of a run, and the command that goes on with it."""
    checkpoint, config = latest(folder.checkpoints), folder.path / "config.yaml"
    begun = shlex.join(["manyarms", "train", str(config), "--resume"])
    command = begun if config.exists() else "the same command with --resume"
    left = f"goes on from {checkpoint}" if checkpoint else "begins anew, for there is no checkpoint yet"
    steps = [] if cluster.is_local else ["start Ray again on this machine: `ray stop`, then `ray start`"]
    return RayLost(lost.what, why=lost.why, do="\n".join([*steps, f"{command}   # {left}"]), log=lost.log)


def _tell(found: Plan) -> None:
    """Say which process goes where, before any is started."""
    for warning in found.warnings:
        say(f"warning: {warning}", stderr=True)
    title, rows, header = found.table()
    say(title, *lined_up(rows, header), stderr=True)


def _run(run: Run, backend: RayBackend, folder: RunFolder, start: Path | None, most: int) -> TrainResult:
    """Run to the end; where learners die, go back to the last checkpoint."""
    deaths, reached = 0, -1
    while True:
        try:
            return loop.train(run, backend, start)
        except LearnersLost as lost:
            deaths = 1 if backend.iteration > reached else deaths + 1
            reached = max(reached, backend.iteration)
            if deaths > most:
                raise
            start = latest(folder.checkpoints) or start
            backend.recover(lost)


__all__ = ["plan_for", "this_machine", "train"]
