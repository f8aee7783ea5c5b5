"""A checkpoint's folder as OpenVLA-OFT writes it: config, weights in one file or in shards, heads, statistics.

What does not fit is refused with the names of what is missing or too much; nothing is left at random.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyarms.errors import ConfigError
from manyarms.policies.checkpoints import CheckpointFolder, Fit, fit, read_json
from manyarms.policies.openvla_oft.model import OpenVlaConfig, OpenVlaModel, config_from
from manyarms.policies.statistics import DATASET_STATISTICS, FieldStatistics, dataset_statistics

_HEAD = "action_head"
_STATE = "proprio_projector"


class OftFolder:
    """What lies in a folder; weights are read when they are asked for."""

    def __init__(self, path: str | Path) -> None:
        self.files = CheckpointFolder.open(path)
        self.path = self.files.path
        with self.files.made_by_its_config():
            self.config: OpenVlaConfig = config_from(self.files.config, str(self.path / "config.json"))

    def setting(self, name: str) -> Any:
        """Return what some writers add to ``config.json``; None where they did not."""
        return self.files.config.get(name)

    # -- the network --------------------------------------------------------------------------------------------------

    def fit(self) -> Fit:
        """Compare the weights with those that the config describes."""
        with self.files.made_by_its_config(), torch.device("meta"):
            wanted = _shapes(OpenVlaModel(self.config).state_dict())
        return fit({name: tensor.shape for name, tensor in self.files.tensors.items()}, wanted)

    def network(self, dtype: torch.dtype, device: torch.device) -> OpenVlaModel:
        """Read the network; the only copy of its weights is the one that is returned."""
        _refuse(self.path, self.fit())
        with torch.device("meta"):
            network = OpenVlaModel(self.config)
        frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
        weights = {name: tensor.to(device, dtype) for name, tensor in self.files.read(self.files.tensors)}
        network.load_state_dict(weights, assign=True)
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name not in frozen)
        network.place_positions()
        return network.eval()

    # -- heads --------------------------------------------------------------------------------------------------------

    def action_head(self) -> dict[str, Tensor] | None:
        """Return the weights of the regression, None where the folder has none."""
        return self._part(_HEAD, {"model.fc1.bias": 1, "model.fc2.bias": 1}, do="head: tokens acts without it")

    def state_projector(self) -> dict[str, Tensor] | None:
        """Return the weights that make a token of the state, None where the folder has none."""
        return self._part(_STATE, {"fc1.weight": 2}, do="proprio: false acts without it")

    def _part(self, name: str, needed: Mapping[str, int], do: str) -> dict[str, Tensor] | None:
        """Read the newest ``<name>--<step>_checkpoint.pt``; nothing in it is run.

        It must hold what is `needed`: names, and how many axes they have.
        """
        found = sorted(self.path.glob(f"{name}--*_checkpoint.pt"), key=_step)
        if not found:
            return None
        try:
            content = torch.load(found[-1], map_location="cpu", weights_only=True)
        except Exception as error:  # of a file that is none, the library raises anything
            raise ConfigError(
                f"{found[-1]} cannot be read", why=str(error).partition("\n")[0], do="get the file again"
            ) from error
        if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
            raise ConfigError(f"{found[-1]} holds no weights")
        weights = {str(key).removeprefix("module."): tensor.float() for key, tensor in content.items()}
        if any(key not in weights or weights[key].ndim != axes for key, axes in needed.items()):
            raise ConfigError(f"{found[-1]} is another head than is known", why=f"it holds {', '.join(weights)}", do=do)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
            raise ConfigError(f"{found[-1]} is corrupted", why="not all of it is finite", do="get the file again")
        return weights

    # -- statistics ---------------------------------------------------------------------------------------------------

    def statistics(self, key: str | None) -> tuple[str, dict[str, FieldStatistics]]:
        """Return a dataset's name and statistics; without a key, those of the only one there is."""
        path, known = self._statistics()
        if key is None:
            if len(known) != 1:
                raise ConfigError(
                    f"unnorm_key is not given, but {path} has {len(known)} datasets",
                    do=f"choose from {', '.join(known)}",
                )
            key = next(iter(known))
        return key, dataset_statistics(known, key, path)

    @property
    def datasets(self) -> list[str]:
        """The datasets there are statistics of."""
        return list(self._statistics()[1])

    def _statistics(self) -> tuple[Path, dict[str, Any]]:
        """Return statistics by dataset and their file: one of its own, else ``norm_stats`` of ``config.json``."""
        path, inside = self.path / DATASET_STATISTICS, self.setting("norm_stats")
        if not path.is_file() and isinstance(inside, dict) and inside:
            return self.path / "config.json", inside
        known = read_json(path)
        if not known:
            raise ConfigError(f"{path} has statistics of no dataset", do="get the file again")
        return path, known


def load_part(module: nn.Module, weights: Mapping[str, Tensor], where: str, own: tuple[str, ...] = ()) -> None:
    """Give a small part its weights, all but those whose names begin with `own`."""
    wanted = {n: tensor for n, tensor in module.state_dict().items() if not n.startswith(own)}
    _refuse(where, fit(_shapes(weights), _shapes(wanted)))
    module.load_state_dict(dict(weights), strict=False)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _step(path: Path) -> int:
    """Return the number in a head's name: there may be several, of which the last was trained longest."""
    number = re.search(r"--(\d+)_checkpoint", path.name)
    return int(number.group(1)) if number else -1


def _refuse(where: str | Path, found: Fit) -> None:
    if not found:
        raise ConfigError(
            f"the weights in {where} are not those of OpenVLA-OFT as its config describes it",
            why="; ".join(found.problems),
            do="manyarms policy inspect PATH tells what a folder is",
        )
