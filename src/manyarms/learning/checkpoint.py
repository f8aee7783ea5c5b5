"""Checkpoints: weights, optimiser and where training stands, written whole or not at all, and nothing pickled."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from manyarms import plugins, trust
from manyarms.decoding import only_file
from manyarms.errors import ConfigError
from manyarms.learning.course import Course
from manyarms.learning.digests import DIGESTED, PREFIX, check_digests, steps_of, write_digests
from manyarms.learning.parallel import give_weights
from manyarms.learning.position import (
    Position,
    no_checkpoint,
    optimizer_state,
    policy_facts,
    position_of,
    restore_optimizer,
)
from manyarms.learning.variables import shown
from manyarms.policies.base import Policy
from manyarms.policies.registry import in_checkpoints, make_trainable
from manyarms.policies.trainable import TrainablePolicy
from manyarms.reporting.files import not_written
from manyarms.simulators.base import Spec


@dataclass(frozen=True)
class Recipe:
    """How to make a policy again, and the simulator options it was trained with."""

    model_type: str
    options: dict[str, Any] = field(default_factory=dict)
    needs: dict[str, Any] = field(default_factory=dict)


def save(folder: Path, trainer: Course, recipe: Recipe) -> Path:
    """Write ``<folder>/global_step_<n>``; a run that is killed meanwhile leaves the last one as it was.

    Every rank has to ask; the first one writes.
    """
    target = folder / f"{PREFIX}{trainer.iteration}"
    learner = trainer.learner
    model = {name: tensor.contiguous() for name, tensor in learner.parallel.state().items()}
    tensors, numbers = optimizer_state(learner.optimizer)
    position = Position(trainer.iteration, trainer.position, trainer.env_steps, learner.steps, numbers)
    if learner.ranks.first:
        facts = {"policy": shown(asdict(recipe)), "trainer": asdict(position)}
        try:
            _write(target, {"model": model, "optimizer": tensors}, facts)
        except (OSError, SafetensorError) as error:
            reason = error if isinstance(error, OSError) else OSError(str(error))
            raise not_written(target, reason) from error
    learner.ranks.wait()
    return target


def _write(target: Path, tensors: Mapping[str, dict[str, Tensor]], facts: Mapping[str, Any]) -> None:
    beside, before = (target.with_name(f".{target.name}.{os.getpid()}{what}") for what in ("", ".before"))
    for left in (beside, before):
        shutil.rmtree(left, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        for name, group in tensors.items():
            save_file(group, beside / f"{name}.safetensors")
        for name, fact in facts.items():
            (beside / f"{name}.json").write_text(json.dumps(fact, indent=2) + "\n")
        write_digests(beside)
        if target.is_dir():
            target.replace(before)  # what is only partly removed must not bear its name
        beside.replace(target)
    finally:
        for left in (beside, before):
            shutil.rmtree(left, ignore_errors=True)


def load(path: Path, trainer: Course) -> None:
    """Go on from a checkpoint; one that does not fit, or is not as it was written, is refused."""
    check_digests(path, *DIGESTED)
    position = position_of(path)
    try:
        model = load_file(only_file(path / "model.safetensors"))
        tensors = load_file(only_file(path / "optimizer.safetensors"))
    except (OSError, ValueError, SafetensorError) as error:
        raise no_checkpoint(path, error) from error
    load_weights(trainer.learner.policy, model, path)
    restore_optimizer(trainer.learner.optimizer, tensors, position.optimizer, path)
    trainer.iteration, trainer.position, trainer.env_steps = position.iteration, position.position, position.env_steps
    trainer.learner.steps = position.optimizer_steps


def load_policy(path: Path, policy: TrainablePolicy) -> None:
    """Give a policy the weights of a checkpoint."""
    load_weights(policy, _weights_in(path), path)


def start_from(path: Path, policy: TrainablePolicy) -> str:
    """Begin a run with the weights of a checkpoint, whichever algorithm made it; return what is to be said of critics.

    A critic that the checkpoint does not have begins anew, one that the run does not need is left out.
    """
    weights, known = _weights_in(path), policy.trainable_state()

    def critic(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
        return {name: t.shape for name, t in state.items() if name.partition(".")[0] in policy.critic_parts}

    theirs, own = critic(weights), critic(known)
    if theirs == own:
        load_weights(policy, weights, path)
        return ""
    weights = {name: tensor for name, tensor in weights.items() if name not in theirs}
    _check_weights({name: tensor for name, tensor in known.items() if name not in own}, weights, path)
    give_weights(policy, weights)
    if not own:
        return f"{path} has a critic: this run needs none and leaves it out"
    return f"{path} has {'another' if theirs else 'no'} critic: that of this run begins anew"


def _weights_in(path: Path) -> dict[str, Tensor]:
    """Read the weights of a checkpoint."""
    check_digests(path, "model.safetensors")
    try:
        return load_file(only_file(path / "model.safetensors"))
    except (OSError, SafetensorError) as error:
        raise no_checkpoint(path, error) from error


def load_weights(policy: TrainablePolicy, weights: dict[str, Tensor], path: Path) -> None:
    """Give a policy its weights, all of them and no others."""
    _check_weights(policy.trainable_state(), weights, path)
    give_weights(policy, weights)


def _check_weights(known: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that are not those of a policy."""
    missing, strange = sorted(set(known) - set(weights)), sorted(set(weights) - set(known))
    shapes = [name for name in known if name in weights and known[name].shape != weights[name].shape]
    if missing or strange or shapes:
        problems = {"missing": missing, "unexpected": strange, "of another shape": shapes}
        told = [f"{what}: {', '.join(names[:4])}" for what, names in problems.items() if names]
        raise ConfigError(
            f"{path} was made with another policy", why="; ".join(told), do="use the options it was trained with"
        )


def recipe_of(path: Path) -> Recipe:
    """Return what policy a checkpoint is of."""
    return Recipe(**policy_facts(path))


class CheckpointPolicy:
    """Makes the policy of a checkpoint; `needs` are the simulator options it was trained with."""

    def __init__(self, path: str | Path, *, trust_code: bool = False) -> None:
        """Read whose policy it is; without `trust_code`, only what is installed and options that cannot do harm."""
        self._path = Path(path)
        self._recipe = recipe_of(self._path)
        if not trust_code:
            source = self._path / "policy.json"
            plugins.check_installed("policies", self._recipe.model_type, source, among=in_checkpoints())
            trust.check_options(self._recipe.needs, source)
        self.needs = self._recipe.needs

    def __call__(self, spec: Spec, **options: Any) -> Policy:
        """Return it as it is evaluated in training, unless `options` say otherwise."""
        trained_on = str(self._recipe.options.get("device", ""))
        if trained_on.startswith("cuda"):  # another machine may have fewer GPUs, or none
            options = {"device": "cuda" if torch.cuda.is_available() else "cpu", **options}
        asked = {**self._recipe.options, "sample": False, "deterministic": True, **options}
        made = make_trainable(self._recipe.model_type, spec, asked)
        load_policy(self._path, made.policy)
        return made


def iteration_of(path: Path) -> int:
    """Return after how many updates a checkpoint was written, whatever its folder is called."""
    return position_of(path).iteration


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder."""
    return next(reversed(steps_of(folder)), None)
