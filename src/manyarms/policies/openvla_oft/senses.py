"""What OpenVLA-OFT is fed of an observation: which images, which numbers, which words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from manyarms.errors import ConfigError
from manyarms.policies.base import Observations
from manyarms.policies.network import image_names, state_names
from manyarms.policies.openvla_oft.config import OftConfig
from manyarms.policies.openvla_oft.folder import OftFolder
from manyarms.policies.openvla_oft.model import Sequence, text_ids
from manyarms.policies.openvla_oft.preprocessing import Images, Prompts, states
from manyarms.policies.statistics import FieldStatistics
from manyarms.policies.transforms import MaskedQuantile
from manyarms.simulators.base import Spec

_STEP = 8
"""Ragged prompts are padded to a multiple of this, which attention with a mask is fastest at."""


@dataclass(frozen=True)
class Inputs:
    """What a pass of the network takes."""

    pixels: Tensor  # [rows, images × 6, side, side]
    sequence: Sequence
    state: Tensor | None  # [rows, width], in -1..1


class Senses:
    """Turns observations into inputs."""

    def __init__(self, spec: Spec, folder: OftFolder, config: OftConfig, slots: int) -> None:
        """`slots` is how many numbers a chunk has."""
        self._config, self._slots = config, slots
        self.images = _images(spec, folder, config)
        self.cameras = tuple(str(spec.observations[name].camera) for name in self.images)
        self.fields: tuple[str, ...] = ()
        """The numbers that are its state; none: it is not told any."""
        self._scale: MaskedQuantile | None = None
        self._pictures = Images(folder.config.image_sizes[0], config.crop_area, upside_down=config.upside_down)
        text = folder.config.text_config
        self._prompts = Prompts(Path(config.tokenizer or folder.path), text.bos_token_id, text.vocab_size)

    def feel(self, spec: Spec, width: int, statistics: FieldStatistics | None) -> None:
        """Also take `width` numbers of the state."""
        if statistics is None:
            raise ConfigError("there are no statistics of proprio", do="proprio: false leaves the state out")
        names = state_names(spec, self._config.state, width)
        sizes = {name: int(np.prod(spec.observations[name].shape)) for name in names}
        if sum(sizes.values()) != width:
            found = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ConfigError(
                f"the checkpoint's state has {width} numbers, these have {sum(sizes.values())}: {found}",
                do="name the fields it was trained with, state: [FIELD, …], or proprio: false",
            )
        self.fields, self._scale = tuple(names), MaskedQuantile(statistics, clip=True)

    @property
    def reads(self) -> tuple[str, ...]:
        return (*self.images, *self.fields)

    def __call__(self, observations: Observations, device: torch.device) -> Inputs:
        state = None
        if self._scale is not None:
            state = states([observations.fields[name] for name in self.fields], self._scale).to(device)
        pixels = self._pictures([observations.fields[name] for name in self.images], device)
        sequence = self.sequence(list(observations.texts), device, fixed=observations.fixed_shapes)
        return Inputs(pixels, sequence, state)

    def sequence(self, texts: list[str], device: torch.device, *, fixed: bool = False) -> Sequence:
        """Lay out what rows are told; `fixed`: always as long as `prompt_length`."""
        prompts = [self._prompts(text) for text in texts]
        longest, shortest = max(map(len, prompts)), min(map(len, prompts))
        ragged = fixed or longest != shortest
        if fixed:
            if longest > self._config.prompt_length:
                told = texts[[len(prompt) for prompt in prompts].index(longest)]
                raise ConfigError(
                    f"{told!r} makes a prompt of {longest} tokens, but prompt_length is {self._config.prompt_length}",
                    do=f"prompt_length: {-(-longest // _STEP) * _STEP}",
                )
            longest = self._config.prompt_length
        elif ragged:
            longest = -(-longest // _STEP) * _STEP
        stop = self._config.stop_token
        ids, lengths = text_ids(prompts, self._slots, longest, stop=stop)
        return Sequence(ids.to(device), lengths.to(device), self._slots, ragged, stop)


def _images(spec: Spec, folder: OftFolder, config: OftConfig) -> tuple[str, ...]:
    known = image_names(spec)
    wanted = config.num_images or folder.setting("num_images_in_input") or min(2, len(known))
    chosen = config.images or tuple(known[:wanted])
    if not chosen or len(chosen) < (0 if config.images else wanted) or any(name not in known for name in chosen):
        raise ConfigError(
            f"openvla_oft looks at {', '.join(config.images) or f'{wanted} images'}",
            why=f"the simulator shows {', '.join(known) or 'no images'}",
        )
    return chosen
