"""What a checkpoint holds besides weights, checked as it is read: where training stands, the optimiser, the policy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyarms.decoding import from_json, only_file, read_text
from manyarms.errors import ConfigError
from manyarms.learning.parallel import sharded_like, whole_tensor

#: No run comes so far; numbers beyond would not fit elsewhere.
_MOST = 2**53


@dataclass(frozen=True)
class Position:
    """Where training stands."""

    iteration: int
    position: int
    env_steps: int
    optimizer_steps: int
    optimizer: list[dict[str, Any]]
    """The numbers of the optimiser's groups."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "optimizer" and not (type(value) is int and 0 <= value <= _MOST):
                raise ValueError(f"{name} is {value!r}")
        if not isinstance(self.optimizer, list) or not all(isinstance(group, dict) for group in self.optimizer):
            raise ValueError("optimizer is no list of groups")


def position_of(path: Path) -> Position:
    """Return where training stood when a checkpoint was written."""
    known = [field.name for field in fields(Position)]
    try:
        facts = _facts(path / "trainer.json", known)
        return Position(**{name: facts[name] for name in known})  # earlier versions wrote more
    except (OSError, ValueError) as error:
        raise no_checkpoint(path, error) from None


def policy_facts(path: Path) -> dict[str, Any]:
    """Return what a checkpoint says of its policy: a type, and two mappings of options."""
    try:
        facts = _facts(path / "policy.json", ["model_type"])
        unknown = sorted(facts.keys() - {"model_type", "options", "needs"})
        if unknown or not isinstance(facts["model_type"], str):
            raise ValueError(f"policy.json has {unknown[0]}" if unknown else "model_type is no name")
        for name in ("options", "needs"):
            if not isinstance(facts.setdefault(name, {}), dict):
                raise ValueError(f"{name} is no mapping")
    except (OSError, ValueError) as error:
        raise no_checkpoint(path, error) from None
    return facts


def _facts(file: Path, wanted: list[str]) -> dict[str, Any]:
    facts = from_json(read_text(only_file(file)))
    if not isinstance(facts, dict):
        raise ValueError(f"{file.name} holds no mapping")
    missing = [name for name in wanted if name not in facts]
    if missing:
        raise ValueError(f"{file.name} lacks {missing[0]}")
    return facts


def no_checkpoint(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path} is no checkpoint", why=str(error))


# -- the optimiser ----------------------------------------------------------------------------------------------------


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return an optimiser's tensors by name, and the numbers of its groups."""
    state = optimizer.state_dict()
    tensors = {
        f"{index}/{name}": whole_tensor(torch.as_tensor(value)).contiguous()
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    groups = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
    return tensors, groups


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], groups: list[dict[str, Any]], path: Path
) -> None:
    """Give an optimiser its tensors and numbers; what is not of one like it is refused."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    now = optimizer.state_dict()["param_groups"]
    try:
        _check_groups(groups, now)
        for name, tensor in tensors.items():
            index, key = _place(name, tensor, parameters)
            state.setdefault(index, {})[key] = sharded_like(tensor, parameters[index])
        if any(len(values) != len(_MOMENTS) for values in state.values()):
            raise ValueError("optimizer.safetensors lacks tensors")
    except ValueError as error:
        raise no_checkpoint(path, error) from None
    merged = [{**group, **saved, "params": group["params"]} for group, saved in zip(now, groups, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": merged})


#: What AdamW keeps of a parameter.
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def _place(name: str, tensor: Tensor, parameters: list[Tensor]) -> tuple[int, str]:
    """Return which parameter a tensor is of, and what it is of it."""
    index, _, key = name.partition("/")
    if key not in _MOMENTS or not index.isdecimal() or len(index) > 9 or int(index) >= len(parameters):
        raise ValueError(f"optimizer.safetensors has a tensor {name!r}")
    shape = torch.Size([]) if key == "step" else parameters[int(index)].shape
    if tensor.shape != shape or not tensor.is_floating_point():
        raise ValueError(f"{name} in optimizer.safetensors is of another shape or type")
    return int(index), key


def _check_groups(groups: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    """Refuse numbers that are none of the groups of this optimiser."""
    if len(groups) != len(now):
        raise ValueError(f"its optimiser has {len(groups)} groups, not {len(now)}")
    for saved, group in zip(groups, now, strict=True):
        for name, value in saved.items():
            if name not in group or name == "params" or not _is_like(value, group[name]):
                raise ValueError(f"{name} of its optimiser is {value!r}")


def _is_like(value: Any, example: Any) -> bool:
    """Tell whether a value out of JSON stands for one like another."""
    if isinstance(example, bool) or example is None:
        return type(value) is type(example)
    if isinstance(example, int | float):
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST
    if isinstance(example, list | tuple):
        return isinstance(value, list) and len(value) == len(example) and all(map(_is_like, value, example))
    return False
