"""Checkpoints: weights, optimiser and where training stands, written whole or not at all, and nothing pickled."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from manyarms.errors import ConfigError
from manyarms.learning.trainer import Trainer

_PREFIX = "global_step_"


def save(folder: Path, trainer: Trainer, config: dict[str, Any] | None = None) -> Path:
    """Write ``<folder>/global_step_<n>``; a run that is killed meanwhile leaves the last one as it was."""
    target = folder / f"{_PREFIX}{trainer.iteration}"
    beside = folder / f".{target.name}.{os.getpid()}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    learner = trainer.learner
    save_file({name: t.contiguous() for name, t in learner.policy.state_dict().items()}, beside / "model.safetensors")
    tensors, numbers = _optimizer_state(learner.optimizer)
    save_file(tensors, beside / "optimizer.safetensors")
    position = {
        "iteration": trainer.iteration,
        "position": trainer.position,
        "optimizer_steps": learner.steps,
        "optimizer": numbers,
        "config": config or {},
    }
    (beside / "trainer.json").write_text(json.dumps(position, indent=2) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    beside.replace(target)
    return target


def load(path: Path, trainer: Trainer) -> None:
    """Go on from a checkpoint; one that does not fit this training is refused, key by key."""
    try:
        model = load_file(path / "model.safetensors")
        tensors = load_file(path / "optimizer.safetensors")
        position = json.loads((path / "trainer.json").read_text())
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{path} is no checkpoint", why=str(error)) from error
    load_weights(trainer.learner.policy, model, path)
    _restore_optimizer(trainer.learner.optimizer, tensors, position["optimizer"])
    trainer.iteration, trainer.position = position["iteration"], position["position"]
    trainer.learner.steps = position["optimizer_steps"]


def load_weights(policy: torch.nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Give a policy its weights, all of them and no others."""
    known = policy.state_dict()
    missing, strange = sorted(set(known) - set(weights)), sorted(set(weights) - set(known))
    shapes = [name for name in known if name in weights and known[name].shape != weights[name].shape]
    if missing or strange or shapes:
        problems = {"missing": missing, "unexpected": strange, "of another shape": shapes}
        told = [f"{what}: {', '.join(names[:4])}" for what, names in problems.items() if names]
        raise ConfigError(
            f"{path} was made with another policy", why="; ".join(told), do="use the options it was trained with"
        )
    policy.load_state_dict(weights)


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder."""
    found = [path for path in folder.glob(f"{_PREFIX}*") if path.name[len(_PREFIX) :].isdigit()]
    return max(found, key=lambda path: int(path.name[len(_PREFIX) :]), default=None)


def _optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Return an optimiser's tensors by name, and the numbers of its groups."""
    state = optimizer.state_dict()
    tensors = {
        f"{index}/{name}": torch.as_tensor(value).contiguous()
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    groups = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
    return tensors, groups


def _restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], groups: list[dict[str, Any]]
) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = tensor
    now = optimizer.state_dict()["param_groups"]
    merged = [{**group, **saved, "params": group["params"]} for group, saved in zip(now, groups, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": merged})
