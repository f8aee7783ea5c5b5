"""Policies that runners are given: ours, by name, or one that predicts chunks as LeRobot's do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from manyarms.errors import ConfigError
from manyarms.policies import Policy, make_policy
from manyarms.policies.base import ActionChunk, Observations
from manyarms.policies.statistics import FieldStatistics, load_norm_stats
from manyarms.simulators.base import Spec
from pi0.ript.env.benchmarks import Benchmark


class Served:
    """A policy, and how it was asked: `batches` are the sizes of all calls."""

    def __init__(self, policy: Policy, loud: bool = False) -> None:
        self._policy, self._loud = policy, loud
        self.batches: list[int] = []
        for name in ("cameras", "chunk"):
            if hasattr(policy, name):
                setattr(self, name, getattr(policy, name))

    def act(self, observations: Observations) -> ActionChunk:
        began = time.perf_counter()
        chunk = self._policy.act(observations)
        self.batches.append(len(observations))
        if self._loud:
            took = 1e3 * (time.perf_counter() - began)
            print(f"inference {len(self.batches)}: {len(observations)} environments in {took:.1f} ms", flush=True)
        return chunk


def statistics_file(given: str | None) -> str | None:
    """Return a file of normalisation statistics that is there; None: none was named."""
    if given is None or Path(given).exists():
        return given
    raise ConfigError(
        f"there are no normalisation statistics at {given}",
        why="without them actions would be in the wrong units",
        do="give norm_stats_path the norm_stats.json that came with the checkpoint",
    )


class ChunkPredictor:
    """A policy with LeRobot's ``predict_action_chunk(batch)``, between the simulator's names and LeRobot's."""

    def __init__(self, policy: Any, benchmark: Benchmark, spec: Spec, norm_stats_path: str | None) -> None:
        self._policy, self._spec = policy, spec
        self._images, self._states = benchmark.images, benchmark.states
        self.cameras = [str(spec.observations[name].camera) for name in self._images]
        found = statistics_file(norm_stats_path)
        self._statistics: Mapping[str, FieldStatistics] = {} if found is None else load_norm_stats(found)

    def act(self, observations: Observations) -> ActionChunk:
        import torch

        fields = observations.fields
        states = [fields[name].reshape(len(observations), -1) for name in self._states]
        state = self._scaled(np.concatenate(states, axis=1).astype(np.float32))
        batch: dict[str, Any] = {"observation.state": torch.from_numpy(state), "task": list(observations.texts)}
        for key, name in zip(("image", "image2"), self._images, strict=True):
            pixels = torch.from_numpy(np.ascontiguousarray(fields[name])).permute(0, 3, 1, 2)
            batch[f"observation.images.{key}"] = pixels.float() / 255.0
        with torch.no_grad():
            chosen = self._policy.predict_action_chunk(batch)
        normalised = np.asarray(chosen.float().cpu() if hasattr(chosen, "cpu") else chosen, np.float32)
        width = int(np.prod(self._spec.actions[""].shape))
        actions = self._unscaled(normalised[..., :width])
        return ActionChunk.of(actions, actions_normalized=normalised)

    def _scaled(self, state: np.ndarray) -> np.ndarray:
        if "state" not in self._statistics:
            return state
        mean, std = (array[: state.shape[1]] for array in self._statistics["state"].need("mean", "std"))
        return ((state - mean) / (std + 1e-6)).astype(np.float32)

    def _unscaled(self, actions: np.ndarray) -> np.ndarray:
        if "actions" not in self._statistics:
            return actions
        mean, std = (array[: actions.shape[-1]] for array in self._statistics["actions"].need("mean", "std"))
        return (actions * (std + 1e-6) + mean).astype(np.float32)


def named_options(
    name: str, benchmark: Benchmark, norm_stats_path: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a policy that is given by name, with what the benchmark knows and the checkpoint cannot."""
    found = dict(options)
    if name in ("pi0", "openvla_oft"):
        found.setdefault("state", list(benchmark.states))
    statistics = statistics_file(norm_stats_path)
    if statistics is None or (Path(name) / "policy.json").is_file():
        return found  # a checkpoint of ours holds those it was trained with
    if name != "pi0":
        raise ConfigError(
            f"norm_stats_path is for 'pi0' and for policies that predict chunks; {name!r} has its own statistics",
            do="leave norm_stats_path out",
        )
    return {"norm_stats": statistics, **found}


def as_policy(policy: Any, benchmark: Benchmark, spec: Spec, norm_stats_path: str | None, options: Any) -> Policy:
    """Return what a runner can ask."""
    if isinstance(policy, str):
        return make_policy(policy, spec, named_options(policy, benchmark, norm_stats_path, options or {}))
    if hasattr(policy, "act"):
        return policy
    if hasattr(policy, "predict_action_chunk"):
        return ChunkPredictor(policy, benchmark, spec, norm_stats_path)
    raise ConfigError(
        f"{type(policy).__name__} is no policy that a runner can ask",
        do="give one with act(observations) or predict_action_chunk(batch), or the name of one: 'pi0'",
    )
