"""From what a simulator shows to what π0 takes, and back: images, words, state, actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from manyarms.errors import ConfigError, did_you_mean
from manyarms.policies.base import Observations
from manyarms.policies.network import image_names, state_names
from manyarms.policies.pi0.model import Inputs
from manyarms.policies.statistics import FieldStatistics, load_lerobot_stats, load_norm_stats
from manyarms.policies.transforms import Quantile, ZScore
from manyarms.simulators.base import Field, Spec

#: Where π0 looks, in the order it has them. One without an image is left out, which is what masking it comes to.
SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")

NORMALISATIONS = {"z_score": ZScore, "quantile": Quantile}

#: How many instructions are kept in tokens.
_REMEMBERED = 4096

_LEROBOT_NAMES = {"observation.state": "state", "action": "actions"}
_LEROBOT_FILE = "policy_preprocessor_step_*_normalizer_processor.safetensors"
_LEROBOT_EPSILON = 1e-8


class Words:
    """The folder's own tokenizer, with what openpi puts around a prompt."""

    def __init__(self, path: str | Path, length: int, first: int) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError("policy 'pi0' needs tokenizers", do="pip install 'manyarms[vla]'") from error
        path = Path(path).expanduser()
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise ConfigError(
                f"there is no {file}",
                why="π0 reads its instructions with PaliGemma's tokenizer, and nothing is downloaded",
                do="put tokenizer.json into the folder, or give its path: tokenizer: PATH",
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more special
            raise ConfigError(f"{file} is no tokenizer", why=str(error)) from error
        self._length, self._first = length, first
        self._known: dict[str, tuple[np.ndarray, int]] = {}

    def read(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return tokens [rows, length], filled up at the end, and which of them are words."""
        rows = [self._one(text) for text in texts]
        tokens = np.stack([row for row, _ in rows])
        lengths = np.array([count for _, count in rows])
        return torch.from_numpy(tokens), torch.from_numpy(np.arange(self._length) < lengths[:, None])

    def _one(self, text: str) -> tuple[np.ndarray, int]:
        if text not in self._known:
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            cleaned = text.strip().replace("_", " ").replace("\n", " ")
            parts = [self._tokenizer.encode(part, add_special_tokens=False).ids for part in (cleaned, "\n")]
            ids = [self._first, *parts[0], *parts[1]]
            if len(ids) > self._length:
                raise ConfigError(
                    f"an instruction has {len(ids)} tokens, room is for {self._length}",
                    why=f"it is {text!r:.120}",
                    do="shorten it, or raise prompt_length",
                )
            row = np.zeros(self._length, np.int64)
            row[: len(ids)] = ids
            self._known[text] = (row, len(ids))
        return self._known[text]


def resized(images: Tensor, side: int) -> Tensor:
    """Scale images [N, 3, H, W] of 0..255 into a square, shape kept and the rest black, as openpi does; -1..1."""
    height, width = images.shape[-2:]
    if (height, width) != (side, side):
        ratio = max(height, width) / side
        inner = max(1, int(height / ratio)), max(1, int(width / ratio))
        images = functional.interpolate(images, inner, mode="bilinear", antialias=True).round().clamp(0, 255)
        top, left = (side - inner[0]) // 2, (side - inner[1]) // 2
        images = functional.pad(images, (left, side - inner[1] - left, top, side - inner[0] - top))
    return images / 255.0 * 2.0 - 1.0


def image_fields(spec: Spec, wanted: Mapping[str, str] | Sequence[str]) -> list[str]:
    """Return the image fields in the order of π0's slots: those named, or all that there are."""
    known = image_names(spec)
    if isinstance(wanted, Mapping):
        strange = [slot for slot in wanted if slot not in SLOTS]
        if strange:
            raise ConfigError(f"π0 has no image {strange[0]!r}", do=did_you_mean(strange[0], SLOTS))
        names = [str(wanted[slot]) for slot in SLOTS if slot in wanted]
    else:
        names = list(wanted) or known
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise ConfigError(
            f"there is no image {missing[0]!r}" if missing else "π0 looks at images, but the simulator shows none",
            do=f"images: choose from {', '.join(known)}" if known else "give the simulator cameras",
        )
    if len(names) > len(SLOTS):
        raise ConfigError(f"π0 takes {len(SLOTS)} images, these are {len(names)}", do="name those it is to see: images")
    return names


@dataclass(frozen=True)
class Normalisers:
    """How states and actions are scaled; None: not at all."""

    state: ZScore | Quantile | None = None
    actions: ZScore | Quantile | None = None


def normalisers(folder: Path, where: str | None, kind: str) -> Normalisers:
    """Read the statistics a checkpoint was trained with; those that cannot be found are an error."""
    if kind == "none":
        return Normalisers()
    path = Path(where).expanduser() if where else statistics_file(folder)
    if path is None:
        raise ConfigError(
            f"{folder} has no norm_stats.json or other statistics",
            why="actions and states would not be in the model's units",
            do="give its path (norm_stats: PATH), or say normalise: none if that is meant",
        )
    found = load_statistics(path)
    make = NORMALISATIONS[kind]
    for field in ("state", "actions"):
        found[field].need(*(("mean", "std") if kind == "z_score" else ("q01", "q99")))
    if path.name != "norm_stats.json":
        return Normalisers(*(make(found[field], _LEROBOT_EPSILON) for field in ("state", "actions")))
    return Normalisers(make(found["state"]), make(found["actions"]))


def statistics_file(folder: Path) -> Path | None:
    """Return the statistics in a checkpoint's folder: openpi's, there or below its ``assets``, or LeRobot's."""
    if (folder / "norm_stats.json").is_file():
        return folder / "norm_stats.json"
    found = [*sorted((folder / "assets").rglob("norm_stats.json")), *sorted(folder.glob(_LEROBOT_FILE))]
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found)
        raise ConfigError(f"{folder} has statistics of several robots", why=names, do="choose: norm_stats: PATH")
    return found[0] if found else None


def load_statistics(path: Path) -> dict[str, FieldStatistics]:
    """Read the statistics in a file, those of ``state`` and ``actions`` among them."""
    found = _statistics_in(path)
    missing = [name for name in ("state", "actions") if name not in found]
    if missing:
        raise ConfigError(f"{path} has no statistics of {missing[0]}", why=f"it has {', '.join(found)}")
    return found


def _statistics_in(path: Path) -> dict[str, FieldStatistics]:
    """Read openpi's ``norm_stats.json``, LeRobot's ``stats.json`` or what it saves of them with a policy."""
    if path.name == "stats.json":
        return {_LEROBOT_NAMES.get(name, name): found for name, found in load_lerobot_stats(path).items()}
    if path.suffix == ".safetensors":
        return _saved_with_policy(path)
    return load_norm_stats(path)


def _saved_with_policy(path: Path) -> dict[str, FieldStatistics]:
    """Read the state of LeRobot's normalising step: ``<feature>.<mean, std, …>``."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error)) from error
    known = {field.name for field in fields(FieldStatistics)}
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        feature, _, what = name.rpartition(".")
        if what in known:
            found.setdefault(_LEROBOT_NAMES.get(feature, feature), {})[what] = array.astype(np.float64)
    return {feature: FieldStatistics(**parts) for feature, parts in found.items()}


class Preprocessing:
    """What is read of an observation, and how actions go back."""

    def __init__(self, spec: Spec, config: Any, folder: Path, architecture: Any) -> None:
        """`config` is the policy's, `architecture` the model's."""
        self.images = image_fields(spec, config.images)
        self.fields = state_names(spec, config.state)
        self.cameras = tuple(dict.fromkeys(str(spec.observations[name].camera) for name in self.images))
        self.action = _action_of(spec, architecture.max_action_dim)
        self.action_width = int(np.prod(self.action.shape))
        self._side = architecture.vlm_config.vision_config.image_size
        self._state_width, self._action_width = architecture.max_state_dim, architecture.max_action_dim
        width = sum(int(np.prod(spec.observations[name].shape)) for name in self.fields)
        if width > self._state_width:
            raise ConfigError(
                f"the state has {width} numbers, π0 takes {self._state_width}",
                why=f"it is made of {', '.join(self.fields)}",
                do="name the fields it was trained with: state: [...]",
            )
        self._normal = normalisers(folder, config.norm_stats, config.normalise)
        for what, size, scale in (
            ("state", width, self._normal.state),
            ("action", self.action_width, self._normal.actions),
        ):
            known = size if scale is None else len(scale.statistics.need(*_first_array(scale))[0])
            if known < size:
                raise ConfigError(
                    f"the statistics are of {known} numbers, the simulator's {what} has {size}",
                    do="choose other fields",
                )
        self._clip = config.clip_actions
        first = architecture.vlm_config.text_config.bos_token_id
        self._words = Words(config.tokenizer or folder, config.prompt_length, 2 if first is None else first)

    def inputs(self, observations: Observations, device: torch.device) -> Inputs:
        """Return what the model is fed."""
        images = [self._image(observations.fields[name], device) for name in self.images]
        tokens, mask = self._words.read(observations.texts)
        seen = torch.ones(len(observations), len(images), dtype=torch.bool, device=device)
        return Inputs(
            torch.stack(images, 1), seen, tokens.to(device), mask.to(device), self._state(observations).to(device)
        )

    def _image(self, field: np.ndarray, device: torch.device) -> Tensor:
        image = torch.from_numpy(np.ascontiguousarray(field)).to(device)
        return resized(image.permute(0, 3, 1, 2).float(), self._side)

    def _state(self, observations: Observations) -> Tensor:
        count = len(observations)
        parts = [np.asarray(observations.fields[name], np.float32).reshape(count, -1) for name in self.fields]
        state = np.concatenate(parts, 1) if parts else np.zeros((count, 0), np.float32)
        if self._normal.state is not None:
            state = self._normal.state.apply(state)
        return functional.pad(torch.from_numpy(state), (0, self._state_width - state.shape[1]))

    def to_simulator(self, actions: Tensor) -> np.ndarray:
        """Turn the model's actions [R, K, D] into the simulator's [R, K, …]."""
        found = actions[..., : self.action_width].float().cpu().numpy()
        if self._normal.actions is not None:
            found = self._normal.actions.undo(found)
        if self._clip and (self.action.low is not None or self.action.high is not None):
            found = np.clip(found.reshape(*found.shape[:2], *self.action.shape), self.action.low, self.action.high)
        return found.astype(self.action.dtype).reshape(*found.shape[:2], *self.action.shape)

    def from_simulator(self, actions: np.ndarray) -> Tensor:
        """Turn a simulator's actions [R, K, …] into the model's [R, K, D]."""
        found = np.asarray(actions, np.float32).reshape(*actions.shape[:2], -1)
        if self._normal.actions is not None:
            found = self._normal.actions.apply(found)
        return functional.pad(torch.from_numpy(found), (0, self._action_width - found.shape[-1]))


def _first_array(scale: ZScore | Quantile) -> tuple[str, ...]:
    return ("mean",) if isinstance(scale, ZScore) else ("q01",)


def _action_of(spec: Spec, most: int) -> Field:
    action = spec.actions.get("")
    if action is None or np.dtype(action.dtype).kind != "f":
        raise ConfigError("π0 gives one array of real numbers as action", do="wrap the simulator")
    if int(np.prod(action.shape)) > most:
        raise ConfigError(f"an action has {int(np.prod(action.shape))} numbers, π0 gives {most}")
    return action
