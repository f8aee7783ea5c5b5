"""The Ray cluster of a run: joining it, finding its nodes, keeping room on them for the plan's processes."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyarms.errors import ConfigError, StartError
from manyarms.learning.config import ClusterSettings
from manyarms.placement.faults import RayLost
from manyarms.placement.plan import Plan
from manyarms.placement.processes import Process
from manyarms.placement.topology import Node

#: Longer than Ray takes to believe that a node is gone.
_DETECTION_SECONDS = 90.0

#: Within which Ray keeps room that is free.
_PROMPT_SECONDS = 10.0

#: How often those are looked after without whom Ray does not work.
_SECONDS_BETWEEN_CHECKS = 2.0


@dataclass(frozen=True)
class RayNode:
    """A machine as Ray knows it."""

    id: str
    address: str
    port: int
    """Where its raylet listens."""
    node: Node

    @property
    def answers(self) -> bool:
        """Whether anybody is there."""
        try:
            socket.create_connection((self.address, self.port), timeout=2.0).close()
        except OSError:
            return False
        return True


@dataclass(frozen=True)
class _Pillar:
    """A process of Ray that the driver cannot do without."""

    name: str
    address: str
    port: int
    log: str
    patience: float = 0.0
    """Seconds within which it may come back."""

    @property
    def is_gone(self) -> bool:
        """Whether its machine says that nobody listens there; one that is slow, or cannot be reached, may be well."""
        try:
            socket.create_connection((self.address, self.port), timeout=2.0).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


class RayCluster:
    """A connection to Ray, ours or somebody's, and the room that a plan takes there."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._ours = False
        self.is_local = False
        """Whether Ray was started for this run, on this machine alone."""
        self._plan: Plan | None = None
        self._used: set[int] = set()
        """The plan's nodes that run processes."""
        self._groups: dict[int, Any] = {}
        """Placement groups, by the plan's nodes."""
        self._cpus: dict[int, float] = {}
        """What each process of a plan's node asks for, wherever they are by now."""
        self._pillars: list[_Pillar] = []
        self._checked = 0.0
        self._gone_since: dict[_Pillar, float] = {}
        self.nodes: list[RayNode] = []

    def __enter__(self) -> RayCluster:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "cluster.component_placement needs Ray", why=str(error), do="pip install 'manyarms[ray]'"
            ) from error
        if not ray.is_initialized():
            self._connect()
            self._ours = True
        try:
            self.nodes = self._wait_for_nodes()
        except ConfigError:
            self.__exit__()
            raise
        self._pillars = self._found_pillars(self.nodes[0])
        return self

    def _connect(self) -> None:
        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings = self._settings
        address = settings.address or os.environ.get("RAY_ADDRESS") or ("local" if settings.num_nodes == 1 else "auto")
        self.is_local = address == "local"
        try:
            _knock(address, settings.wait_seconds)
            ray.init(
                address=address, include_dashboard=False if address == "local" else None, logging_level=logging.ERROR
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"there is no Ray cluster at {address}",
                why=(str(error).splitlines() or [""])[0],
                do="run `ray start --head` on the first node and `ray start --address=<first node>:6379` on the others",
            ) from None

    def _wait_for_nodes(self) -> list[RayNode]:
        """Return the nodes that are there, ours first, once they are enough."""
        deadline = time.monotonic() + self._settings.wait_seconds
        # One that has told Ray of itself may not listen yet, and would be taken for lost.
        while len(found := [node for node in living_nodes() if node.answers]) < self._settings.num_nodes:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"cluster.num_nodes is {self._settings.num_nodes}, but {len(found)} answered in "
                    f"{self._settings.wait_seconds:.0f} s",
                    do="run `ray start --address=<first node>:6379` on the others, or lower num_nodes",
                )
            time.sleep(0.2)
        return found

    def __exit__(self, *error: object) -> None:
        import ray
        from ray.util import remove_placement_group

        if not ray.is_initialized():
            return
        for group in self._groups.values() if self.own_loss() is None else ():
            remove_placement_group(group)
        self._groups.clear()
        if self._ours:
            ray.shutdown()

    # -- room ---------------------------------------------------------------------------------------------------------

    def reserve(self, plan: Plan) -> None:
        """Keep room for a plan, node by node."""
        self._plan = plan
        self._used = {process.node for process in (*plan.rollout, *plan.actor)}
        for node in sorted(self._used):
            found = self.nodes[node]
            count = self._count(node)
            self._cpus[node] = max(0.001, min(1.0, int(1000 * found.node.cpus / 2 / count) / 1000))
            self._groups[node] = _group(self._bundle(node), {"ray.io/node-id": found.id})
        for node, group in self._groups.items():
            if not group.wait(self._settings.wait_seconds):
                raise StartError(
                    f"node {node} ({self.nodes[node].address}) has no room for what is placed there",
                    why=f"{_words(self._bundle(node))} wanted, {_words(_free(self.nodes[node].id))} free",
                    do="end what else runs there (`ray status`), or place fewer processes",
                )

    def _bundle(self, node: int) -> dict[str, float]:
        """Return what the processes of a node ask of Ray: its GPUs, and at most half of its CPUs.

        The simulators' processes are not Ray's to count, and what another node lost may have to find room here.
        """
        gpus = self._gpus(node)
        return {"CPU": round(self._count(node) * self._cpus[node], 4), **({"GPU": float(len(gpus))} if gpus else {})}

    def _count(self, node: int) -> int:
        """Return how many processes a node runs, simulators apart."""
        assert self._plan is not None
        return sum(process.node == node for process in (*self._plan.rollout, *self._plan.actor))

    def _gpus(self, node: int) -> set[int]:
        """Return the GPUs that the plan names on a node."""
        assert self._plan is not None
        return {
            slot.device
            for process in self._plan.processes
            for slot in process.slots
            if process.node == node and slot.kind == "gpu" and slot.device is not None
        }

    def options(self, process: Process) -> dict[str, Any]:
        """Return how Ray is to start a process."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {
            "num_cpus": self._cpus[process.node],
            "num_gpus": 0,
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._groups[process.node], 0),
        }
        if process.kind == "gpu":
            # Which device is ours is written in the plan; Ray would hide all of them from who asks for none.
            options["runtime_env"] = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
        return options

    # -- losses -------------------------------------------------------------------------------------------------------

    def _found_pillars(self, home: RayNode) -> list[_Pillar]:
        """Return those without whom a driver can do nothing: its own node, and the head of the cluster."""
        import ray
        from ray._private.worker import _global_node

        logs = Path(_global_node.get_logs_dir_path() if _global_node else "/tmp/ray/session_latest/logs")
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        raylet, head = "the raylet (Ray's process on this machine)", "the GCS (the head of Ray's cluster)"
        return [
            _Pillar(raylet, home.address, home.port, str(logs / "raylet.out")),
            # Others may have made theirs to be started again; Ray ends this process after a minute without it.
            _Pillar(head, host.strip("[]"), int(port), str(logs / "gcs_server.out"), 0.0 if self.is_local else 30.0),
        ]

    def check(self) -> None:
        """Raise where Ray itself is gone here; Ray takes half a minute to notice, and then may end the process."""
        lost = self.own_loss()
        if lost is not None:
            raise lost

    def check_at_times(self) -> None:
        """Check, unless that was done a moment ago."""
        if time.monotonic() - self._checked > _SECONDS_BETWEEN_CHECKS:
            self.check()
            self._checked = time.monotonic()

    def own_loss(self) -> RayLost | None:
        """Return what of Ray is gone without which nothing can be asked or started from here."""
        now = time.monotonic()
        self._gone_since = {p: self._gone_since.get(p, now) for p in self._pillars if p.is_gone}
        gone = next((pillar for pillar, since in self._gone_since.items() if now - since >= pillar.patience), None)
        if gone is None:
            return None
        return RayLost(
            f"{gone.name} at {gone.address}:{gone.port} died, and the run ends with it",
            why="a signal ended it: SIGKILL where memory ran out (usual cause) or someone sent it",
            log=gone.log,
        )

    def lost(self) -> list[int]:
        """Return which of the plan's nodes are gone."""
        deadline = time.monotonic() + _DETECTION_SECONDS
        while True:
            self.check()
            alive = {node.id for node in living_nodes()}
            silent = [node for node in self._used if self.nodes[node].id in alive and not self.nodes[node].answers]
            # Ray takes a few seconds to believe it, and would start processes there until then.
            if not silent or time.monotonic() > deadline:
                return [node for node in sorted(self._used) if self.nodes[node].id not in alive]
            time.sleep(0.2)

    def living(self) -> set[str]:
        """Return Ray's names of the nodes that are there, once Ray has noticed which are not."""
        self.lost()
        return {node.id for node in living_nodes()}

    def has_lost(self, node_id: str) -> bool:
        """Tell whether a node is gone, also one whose processes were moved since."""
        return node_id not in self.living()

    def mend(self) -> list[str]:
        """Find room elsewhere for what lost nodes ran; say in words what was moved where."""
        from ray.util import remove_placement_group

        said = []
        for node in self.lost():
            gone, bundle = self.nodes[node], self._bundle(node)
            remove_placement_group(self._groups.pop(node))
            other = self._room_elsewhere(node)
            if other is None:
                others = Counter()
                for other in living_nodes():
                    others.update(_free(other.id))
                raise StartError(
                    f"node {node} ({gone.address}) was lost, and what it ran finds no room elsewhere",
                    why=f"{_words(bundle)} wanted; the other nodes together have {_words(others)} free",
                    do="start the node again (`ray start`) and go on with --resume, or place fewer processes",
                )
            self.nodes[node] = other
            said.append(f"node {node} ({gone.address}) was lost; its processes go on at {self.nodes[node].address}")
        return said

    def _room_elsewhere(self, node: int) -> RayNode | None:
        """Keep room for what a lost node ran, where there is some or will be in time."""
        from ray.util import remove_placement_group

        bundle = self._bundle(node)
        deadline = time.monotonic() + self._settings.wait_seconds
        while True:
            for other in living_nodes():
                if not (other.answers and self._has_gpus_for(node, other) and _fits(bundle, _free(other.id))):
                    continue
                group = _group(bundle, {"ray.io/node-id": other.id})
                if group.wait(min(_PROMPT_SECONDS, self._settings.wait_seconds)):
                    self._groups[node] = group
                    return other
                remove_placement_group(group)  # somebody was faster
            if time.monotonic() > deadline:
                return None
            time.sleep(0.2)

    def _has_gpus_for(self, node: int, other: RayNode) -> bool:
        """Tell whether a machine has the GPUs that the plan names on a node, and none of ours computes on them.

        Ray counts GPUs, but a process goes to the one that the plan names.
        """
        wanted = self._gpus(node)
        taken = {gpu for mine in self._used - {node} if self.nodes[mine].id == other.id for gpu in self._gpus(mine)}
        return wanted <= set(range(other.node.accelerators)) and not wanted & taken


def _knock(address: str, seconds: float) -> None:
    """Find out whether anybody answers at an address: Ray itself would try for minutes, and then end the process."""
    if address == "auto":
        from ray._private.utils import read_ray_address

        # Where the last cluster of this machine was, which may long be gone.
        address = read_ray_address() or ""
        if not address:
            raise ConnectionError("none was started on this machine")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=seconds).close()


def living_nodes() -> list[RayNode]:
    """Return the nodes of the cluster, the driver's first."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    found = [
        RayNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["NodeManagerPort"],
            Node(int(node["Resources"].get("GPU", 0)), max(1, int(node["Resources"].get("CPU", 1)))),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.id != here, node.address, node.id))


def _group(bundle: dict[str, float], where: dict[str, str]) -> Any:
    from ray.util import placement_group

    return placement_group([bundle], bundle_label_selector=[where])  # type: ignore[arg-type]


def _free(node: str) -> dict[str, float]:
    """Return what a node has left."""
    from ray._private.state import available_resources_per_node

    found = available_resources_per_node().get(node, {})
    return {name: float(found.get(name, 0.0)) for name in ("CPU", "GPU")}


def _fits(bundle: dict[str, float], free: dict[str, float]) -> bool:
    return all(count <= free.get(name, 0.0) for name, count in bundle.items())


def _words(resources: Any) -> str:
    return " and ".join(f"{round(count, 2):g} {name}s" for name, count in resources.items() if count) or "nothing"
