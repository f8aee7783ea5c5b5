"""From what a simulator shows to what π0 takes, and back: images, words, state, actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from manyarms.arrays import Array, to_numpy, to_tensor
from manyarms.errors import ConfigError, did_you_mean
from manyarms.policies.base import Observations
from manyarms.policies.checkpoints import CheckpointFolder
from manyarms.policies.network import image_names, state_names
from manyarms.policies.pi0.model import Inputs
from manyarms.policies.pi0.units import normalisers, relative_numbers
from manyarms.policies.tokens import Tokens
from manyarms.policies.transforms import Relative
from manyarms.simulators.base import Field, Spec

#: Where π0 looks, in the order it has them. One without an image is left out, which is what masking it comes to.
SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")

#: How many instructions are kept in tokens.
_REMEMBERED = 4096


class Words:
    """The folder's own tokenizer, with what openpi puts around a prompt."""

    def __init__(self, path: str | Path, length: int, first: int, vocabulary: int) -> None:
        self._tokens = Tokens(path, vocabulary, "policy 'pi0'")
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
            ids = [self._first, *self._tokens(cleaned, special=False), *self._tokens("\n", special=False)]
            if len(ids) > self._length:
                raise ConfigError(
                    f"an instruction has {len(ids)} tokens, room is for {self._length}",
                    why=f"it is {text!r:.120}",
                    do="shorten it, or raise prompt_length",
                )
            row = np.zeros(self._length, np.int64)
            row[: len(ids)] = self._tokens.checked(ids)
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


class Preprocessing:
    """What is read of an observation, and how actions go back."""

    def __init__(self, spec: Spec, config: Any, folder: CheckpointFolder, architecture: Any) -> None:
        """`config` is the policy's, `architecture` the model's."""
        self._normal = normalisers(folder, config.norm_stats, config.normalise)
        self.images = image_fields(spec, config.images)
        self.fields = state_names(spec, config.state, _width_of(self._normal.state))
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
        for what, size, scale in (
            ("state", width, self._normal.state),
            ("action", self.action_width, self._normal.actions),
        ):
            known = _width_of(scale)
            if known is not None and known < size:
                raise ConfigError(
                    f"the statistics are of {known} numbers, the simulator's {what} has {size}",
                    do="choose other fields",
                )
        self._relative = Relative(relative_numbers(folder, config.relative, self.action_width))
        self._relative.check(width)
        self._clip = config.clip_actions
        text = architecture.vlm_config.text_config
        first = 2 if text.bos_token_id is None else text.bos_token_id
        self._words = Words(config.tokenizer or folder.path, config.prompt_length, first, text.vocab_size)

    def inputs(self, observations: Observations, device: torch.device) -> Inputs:
        """Return what the model is fed."""
        images = [self._image(observations.fields[name], device) for name in self.images]
        tokens, mask = self._words.read(observations.texts)
        seen = torch.ones(len(observations), len(images), dtype=torch.bool, device=device)
        return Inputs(
            torch.stack(images, 1), seen, tokens.to(device), mask.to(device), self._state(observations).to(device)
        )

    def _image(self, field: Array, device: torch.device) -> Tensor:
        return resized(to_tensor(field, device).permute(0, 3, 1, 2).float(), self._side)

    def _numbers(self, observations: Observations) -> np.ndarray:
        """Return the state as the simulator tells it, [R, S]."""
        count = len(observations)
        parts = [np.asarray(to_numpy(observations.fields[name]), np.float32).reshape(count, -1) for name in self.fields]
        return np.concatenate(parts, 1) if parts else np.zeros((count, 0), np.float32)

    def _state(self, observations: Observations) -> Tensor:
        state = self._numbers(observations)
        if self._normal.state is not None:
            state = self._normal.state.apply(state)
        return functional.pad(torch.from_numpy(state), (0, self._state_width - state.shape[1]))

    def to_simulator(self, actions: Tensor, observations: Observations) -> np.ndarray:
        """Turn the model's actions [R, K, D] into the simulator's [R, K, …]; they are for the first R rows."""
        found = actions[..., : self.action_width].float().cpu().numpy()
        if self._normal.actions is not None:
            found = self._normal.actions.undo(found)
        found = self._relative.undo(found, self._numbers(observations)[: len(found)])
        if self._clip and (self.action.low is not None or self.action.high is not None):
            found = np.clip(found.reshape(*found.shape[:2], *self.action.shape), self.action.low, self.action.high)
        return found.astype(self.action.dtype).reshape(*found.shape[:2], *self.action.shape)

    def from_simulator(self, actions: np.ndarray, observations: Observations) -> Tensor:
        """Turn a simulator's actions [R, K, …], chosen at what rows show, into the model's [R, K, D]."""
        found = np.asarray(actions, np.float32).reshape(*actions.shape[:2], -1)
        found = self._relative.apply(found, self._numbers(observations))
        if self._normal.actions is not None:
            found = self._normal.actions.apply(found)
        return functional.pad(torch.from_numpy(found), (0, self._action_width - found.shape[-1]))


def _width_of(scale: Any) -> int | None:
    """Return how many numbers statistics are of; None where there are none."""
    return None if scale is None else len(scale.statistics.need(*scale.needs)[0])


def _action_of(spec: Spec, most: int) -> Field:
    action = spec.actions.get("")
    if action is None or np.dtype(action.dtype).kind != "f":
        raise ConfigError("π0 gives one array of real numbers as action", do="wrap the simulator")
    if int(np.prod(action.shape)) > most:
        raise ConfigError(f"an action has {int(np.prod(action.shape))} numbers, π0 gives {most}")
    return action
