"""What roles in processes of their own cost, and what they gain: writes docs/benchmarks/placement.md.

    python benchmarks/placement.py

The same environments and policy play in a loop of one process, in one plain process with workers, and in a rollout
process whose episodes another process fetches, in turn; medians of rounds are compared by pairs. Then: what an episode
weighs, what new weights cost on their way, what the driver does for each call, and how much is gained when playing and
learning overlap.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import tyro
from placement_page import page

from manyarms.learning.assembly import policy_for, recipe_for
from manyarms.learning.parallel import give_weights
from manyarms.learning.ranks import Ranks
from manyarms.learning.settings import Settings, from_mapping
from manyarms.placement.roles import RolloutRole
from manyarms.placement.seats import Seat
from manyarms.placement.training import train
from manyarms.placement.weights import Broadcast, Weights, pack
from manyarms.policies.base import Observations
from manyarms.rollout import starts
from manyarms.simulators.registry import resolve
from manyarms.vector import EpisodeId

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"


@dataclass(frozen=True)
class PlacementBenchmark:
    """What to measure."""

    num_envs: int = 2
    """Environments, each a worker of its own."""
    image_size: int = 64
    chunk: int = 8
    steps: int = 64
    """An episode."""
    episodes: int = 24
    """A round."""
    rounds: int = 9
    weights: tuple[int, ...] = (1, 64, 512)
    """MB of weights to send."""
    updates: int = 8
    """Of the runs that play and learn in turn, or at once."""
    out: Path | None = DOCS


@contextmanager
def local_ray() -> Iterator[None]:
    ray.init(address="local", include_dashboard=False, log_to_driver=False, object_store_memory=2_000_000_000)
    try:
        yield
    finally:
        ray.shutdown()


# -- the way of an episode --------------------------------------------------------------------------------------------


def settings_of(config: PlacementBenchmark) -> Settings:
    camera = {"cameras": ["front", "wrist"], "image_size": config.image_size, "arm_mode": "delta_ee"}
    return from_mapping(
        {
            "env": {
                "train": {
                    "simulator": "tabletop/push_button",
                    "total_num_envs": config.num_envs,
                    "max_episode_steps": config.steps,
                    "options": camera,
                }
            },
            "actor": {
                "model": {
                    "model_type": "pixel",
                    "num_action_chunks": config.chunk,
                    "options": {"image_side": config.image_size, "fields": ["gripper_pose"], "log_std": -3.0},
                }
            },
        },
        "the benchmark",
    )


class Loop:
    """What one would write without us: simulators and policy in one process, one after the other."""

    def __init__(self, settings: Settings, weights: Weights, config: PlacementBenchmark) -> None:
        env = settings.config.train
        build, arguments = resolve(env.simulators[0].simulator)
        self._simulators = [build(**arguments, **env.options) for _ in range(config.num_envs)]
        self._steps, self._spec = config.steps, self._simulators[0].spec
        recipe = recipe_for(settings.config, Ranks(), config.num_envs)
        self._policy = policy_for(recipe, self._spec, settings.config).policy
        self._policy.prepare_to_learn()
        self._policy.eval()
        give_weights(self._policy, weights.tensors())

    def play(self, episodes: list[EpisodeId]) -> float:
        """Return seconds; as many episodes at once as there are simulators."""
        began = time.perf_counter()
        count = len(self._simulators)
        for first in range(0, len(episodes), count):
            self._play(episodes[first : first + count])
        return time.perf_counter() - began

    def _play(self, episodes: list[EpisodeId]) -> list[Any]:
        rows = list(range(len(episodes)))
        kept, steps = [], np.zeros(len(rows), np.int64)
        for row in rows:
            self._simulators[row].reset(episodes[row].task, episodes[row].seed, None)
        while rows:
            seen = [self._observed(row) for row in rows]
            fields = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
            observations = Observations(fields, [""] * len(rows), [episodes[row] for row in rows], steps[rows])
            chosen = self._policy.act(observations)
            results = [self._moved(row, chosen.actions[""][i]) for i, row in enumerate(rows)]
            kept.append((observations, chosen, results))
            steps[rows] += [len(rewards) for rewards, *_ in results]
            over = {row for row, (_, _, *ends) in zip(rows, results, strict=True) if any(ends)}
            rows = [row for row in rows if row not in over and steps[row] < self._steps]
        return kept

    def _observed(self, row: int) -> dict[str, np.ndarray]:
        out = {name: np.zeros(f.shape, f.dtype) for name, f in self._spec.observations.items()}
        self._simulators[row].observe(out, self._spec.cameras)
        return out

    def _moved(self, row: int, actions: np.ndarray) -> Any:
        bounds = self._spec.actions[""]
        return self._simulators[row].step_chunk(np.clip(actions, bounds.low, bounds.high))

    def close(self) -> None:
        for simulator in self._simulators:
            simulator.close()


class Plain:
    """A rollout process without a process of its own."""

    def __init__(self, role: RolloutRole, weights: Weights) -> None:
        self._role, self._weights = role, weights
        role.take(weights)

    def play(self, episodes: list[Any]) -> tuple[float, int]:
        """Return seconds, and the bytes of the episodes."""
        began = time.perf_counter()
        report, *_ = self._role.play(self._weights.version, (), episodes)
        return time.perf_counter() - began, report.num_bytes  # type: ignore[union-attr]


@ray.remote(num_cpus=0)
class Fetcher:
    """Takes episodes in, as a learner does."""

    def hold(self, refs: list[Any]) -> int:
        return sum(episode.num_bytes for episode in ray.get(refs))


def episode_path(config: PlacementBenchmark) -> dict[str, float]:
    """Return what playing costs in one plain process, and on its way through Ray."""
    settings, folder = settings_of(config), Path(tempfile.mkdtemp())
    seat = Seat("rollout", 0, 1, "cpu", Path.cwd(), (), num_envs=config.num_envs, most_envs=config.num_envs)
    with ExitStack() as stack:
        here = RolloutRole(settings.config, seat, folder)
        here.open()
        stack.callback(here.close)
        weights = here.first_weights()
        plain, loop = Plain(here, weights), Loop(settings, weights, config)
        stack.callback(loop.close)
        there: Any = ray.remote(num_cpus=0)(RolloutRole).remote(settings.config, seat, folder)
        ray.get(there.open.remote())
        stack.callback(lambda: ray.get(there.close.remote()))
        fetcher: Any = Fetcher.remote()
        ref = ray.put(weights)
        seeds = itertools.count()
        looped, alone, placed, sizes = [], [], [], []
        for number in range(config.rounds + 1):
            begun = list(itertools.islice(starts([None], next(seeds) * 1000), config.episodes))
            plainest = loop.play(begun)
            seconds, size = plain.play(begun)
            began = time.perf_counter()
            _, *episodes = there.play.options(num_returns=1 + len(begun)).remote(0, [ref], begun)
            ray.get(fetcher.hold.remote(episodes))
            elapsed = time.perf_counter() - began
            if number:  # the first warms up
                looped.append(plainest)
                alone.append(seconds)
                placed.append(elapsed)
                sizes.append(size)
    ratios = [mine / its for mine, its in zip(alone, placed, strict=True)]
    faster = [its / mine for its, mine in zip(looped, placed, strict=True)]
    decisions = config.episodes * -(-config.steps // config.chunk)
    return {
        "loop_episode_ms": 1e3 * statistics.median(looped) / config.episodes,
        "loop_chunk_ms": 1e3 * statistics.median(looped) / decisions,
        "loop_ratio": statistics.median(faster),
        "loop_worst": min(faster),
        "loop_best": max(faster),
        "plain_episode_ms": 1e3 * statistics.median(alone) / config.episodes,
        "placed_episode_ms": 1e3 * statistics.median(placed) / config.episodes,
        "plain_chunk_ms": 1e3 * statistics.median(alone) / decisions,
        "placed_chunk_ms": 1e3 * statistics.median(placed) / decisions,
        "ratio": statistics.median(ratios),
        "worst": min(ratios),
        "best": max(ratios),
        "episode_kb": statistics.median(sizes) / config.episodes / 1e3,
        "steps_per_s": config.episodes * config.steps / statistics.median(placed),
    }


# -- weights ----------------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0)
class Holder:
    """Holds weights of its own, and takes new ones."""

    def __init__(self, megabytes: int) -> None:
        self._own = state_of(megabytes)
        self._group: Broadcast | None = None

    def take(self, weights: Weights) -> None:
        for name, tensor in weights.tensors().items():
            self._own[name].copy_(tensor)

    def join(self, address: str, rank: int, world: int) -> None:
        self._group = Broadcast(address, rank, world, on_gpu=False, seconds=60)

    def receive(self) -> None:
        assert self._group is not None
        self._group.receive(self, self._own)  # type: ignore[arg-type]


def state_of(megabytes: int) -> dict[str, torch.Tensor]:
    return {f"layer {i}": torch.randn(megabytes * 250_000 // 10) for i in range(10)}


def weight_syncs(megabytes: int, rounds: int) -> dict[str, float]:
    """Return seconds to give weights to two processes, through the object store and by broadcast."""
    import socket

    state = state_of(megabytes)
    holders: list[Any] = [Holder.remote(megabytes) for _ in range(2)]
    with socket.socket() as free:
        free.bind(("", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    joining = [holder.join.remote(address, i + 1, 3) for i, holder in enumerate(holders)]
    group = Broadcast(address, 0, 3, on_gpu=False, seconds=60)
    ray.get(joining)
    store, broadcast = [], []
    for number in range(rounds + 1):
        began = time.perf_counter()
        ref = ray.put(pack(state, 0))
        ray.get([holder.take.remote(ref) for holder in holders])
        between = time.perf_counter()
        receiving = [holder.receive.remote() for holder in holders]
        group.send(state, 0)
        ray.get(receiving)
        ended = time.perf_counter()
        if number:
            store.append(between - began)
            broadcast.append(ended - between)
    for holder in holders:
        ray.kill(holder)
    return {"object_store": statistics.median(store), "broadcast": statistics.median(broadcast)}


# -- the driver -------------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0)
class Echo:
    """Answers at once, with as much as a rollout process would."""

    def play(self, count: int) -> tuple[Any, ...]:
        return [0.0] * count, *(np.zeros(64) for _ in range(count))


def driver_cost(calls: int = 200, episodes: int = 16) -> dict[str, float]:
    """Return what the driver spends on a call that plays episodes."""
    echo: Any = Echo.remote()
    method = echo.play.options(num_returns=1 + episodes)
    ray.get(method.remote(episodes)[0])
    before = time.process_time()
    pending = {}
    for _ in range(calls):
        report, *refs = method.remote(episodes)
        pending[report] = refs
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1)
        ray.get(ready[0])
        del pending[ready[0]]
    spent = time.process_time() - before
    return {"call_ms": 1e3 * spent / calls, "episodes_a_call": float(episodes)}


# -- playing and learning at once -------------------------------------------------------------------------------------


def overlap(config: PlacementBenchmark) -> dict[str, float]:
    """Return seconds an update takes when playing and learning, of equal length, take turns and when they do not."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for staleness in (0, 1):
            name = f"staleness {staleness}"
            train(sleepy(config, folder, name, staleness))
            lines = [json.loads(line) for line in (Path(folder) / name / "metrics.jsonl").read_text().splitlines()]
            stamps = [line["seconds"] for line in lines]
            found[name] = (stamps[-1] - stamps[1]) / (len(stamps) - 2)
    return {"turns": found["staleness 0"], "at_once": found["staleness 1"]}


def sleepy(config: PlacementBenchmark, folder: str, name: str, staleness: int) -> Settings:
    # An update plays 8 episodes of 16 steps of 20 ms in 4 environments, and learns 4 minibatches of 160 ms: 0.64 s.
    return from_mapping(
        {
            "runner": {
                "max_steps": config.updates,
                "val_check_interval": 0,
                "save_interval": -1,
                "logger": {"log_path": folder, "experiment_name": name, "logger_backends": []},
            },
            "algorithm": {"update_epoch": 2, "episodes_per_step": 8, "max_staleness": staleness},
            "env": {"train": {"simulator": "sleepers:SleepySimulator", "total_num_envs": 4, "max_episode_steps": 16}},
            "rollout": {"batch_size": 4, "pipeline_stage_num": 1},
            "actor": {
                "global_batch_size": 16,
                "model": {
                    "model_type": "sleepers:SleepyPolicy",
                    "num_action_chunks": 4,
                    "options": {"hidden": 16, "batch_seconds": 0.16},
                },
            },
            "cluster": {"component_placement": {"env": 0, "rollout": 1, "actor": 2}},
        },
        name,
    )


def main() -> None:
    """Measure, print, write the page."""
    config = tyro.cli(PlacementBenchmark)
    with local_ray():
        found: dict[str, Any] = {
            "path": episode_path(config),
            "driver": driver_cost(),
            "weights": {size: weight_syncs(size, config.rounds) for size in config.weights},
            "overlap": overlap(config),
        }
    machine = f"{os.cpu_count()} CPUs, Python {platform.python_version()}, Ray {ray.__version__}"
    text = page(found, config.num_envs, config.image_size, config.chunk, config.rounds, machine)
    print(text)
    if config.out is not None:
        config.out.mkdir(parents=True, exist_ok=True)
        (config.out / "placement.md").write_text(text)


if __name__ == "__main__":
    main()
