"""From a simulator's images, states and sentences to what OpenVLA-OFT was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyarms.arrays import Array, to_numpy, to_tensor
from manyarms.errors import ConfigError
from manyarms.policies.tokens import Tokens

_PROMPT = "In: What action should the robot take to {}?\nOut:"
_EMPTY_TOKEN = 29871
"""Ends every prompt: the space between "Out:" and the first action."""

#: How many prompts are kept in tokens: those who ask a server may say anything.
_REMEMBERED = 4096

#: Mean and spread of the channels: ImageNet's for DINOv2, ½ for SigLIP.
_NORMALISATION = (((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))


class Prompts:
    """Sentences as tokens, by the tokenizer in the checkpoint's folder."""

    def __init__(self, folder: Path, bos: int | None, vocabulary: int) -> None:
        self._tokens, self._bos = Tokens(folder, vocabulary, "policy 'openvla_oft'"), bos
        self._known: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of what a row is told, from BOS to the empty token."""
        if text not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[text] = self._tokens.checked(self._prompt(text))
        return self._known[text]

    def _prompt(self, text: str) -> list[int]:
        ids = self._tokens(_PROMPT.format(text.lower()))
        ids = ids if self._bos is None or ids[:1] == [self._bos] else [self._bos, *ids]
        return ids if ids[-1:] == [_EMPTY_TOKEN] else [*ids, _EMPTY_TOKEN]


class Images:
    """Images as both vision transformers want them: resized, cropped, scaled twice."""

    def __init__(self, side: int, area: float, *, upside_down: bool = False) -> None:
        """Keep the middle `area` of images; `upside_down` turns them by 180° first."""
        if not 0.0 < area <= 1.0:
            raise ConfigError(f"crop_area is {area}; a crop keeps more than 0 and at most all (1.0)")
        self._side, self._area, self._upside_down = side, area, upside_down

    def __call__(self, cameras: Sequence[Array], device: torch.device) -> Tensor:
        """Take arrays [rows, height, width, 3] of uint8, one a camera; return [rows, 6 a camera, side, side]."""
        return torch.cat([self._camera(images, device) for images in cameras], 1)

    def _camera(self, images: Array, device: torch.device) -> Tensor:
        pixels = to_tensor(images, device).permute(0, 3, 1, 2).float()
        pixels = pixels.flip(-1, -2) if self._upside_down else pixels
        if pixels.shape[-2:] != (self._side, self._side):
            rows, columns = (_matrix("lanczos", n, self._side, device) for n in pixels.shape[-2:])
            pixels = (rows @ pixels @ columns.T).round().clamp(0.0, 255.0)
        if self._area < 1.0:
            crop = _matrix(f"crop {self._area}", self._side, self._side, device)
            # As TensorFlow turns numbers in 0..1 into bytes: floor(255.5 x).
            pixels = (crop @ pixels @ crop.T).mul(255.5 / 255.0).floor().clamp(0.0, 255.0)
        return torch.cat([_scaled(pixels / 255.0, *numbers) for numbers in _NORMALISATION], 1)


def _scaled(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    centre, spread = (pixels.new_tensor(numbers).view(3, 1, 1) for numbers in (mean, std))
    return (pixels - centre) / spread


@lru_cache(maxsize=64)
def _matrix(kind: str, size: int, wanted: int, device: torch.device) -> Tensor:
    weights = lanczos(size, wanted) if kind == "lanczos" else crop(size, wanted, float(kind.split()[1]))
    return torch.from_numpy(weights.astype(np.float32)).to(device)


def lanczos(size: int, wanted: int) -> np.ndarray:
    """Return the weights of a resize [wanted, size]: Lanczos' kernel of radius 3, wider where images shrink."""
    scale = size / wanted
    x = (np.arange(size)[None] + 0.5 - (np.arange(wanted)[:, None] + 0.5) * scale) / max(scale, 1.0)
    weights = np.where(np.abs(x) < 3.0, np.sinc(x) * np.sinc(x / 3.0), 0.0)
    return weights / weights.sum(1, keepdims=True)


def crop(size: int, wanted: int, area: float) -> np.ndarray:
    """Return the weights that keep the middle of `size` pixels and stretch it to `wanted`, bilinear."""
    share = np.sqrt(area)
    places = ((1.0 - share) / 2.0 + share * np.arange(wanted) / max(1, wanted - 1)) * (size - 1)
    low = np.minimum(np.floor(places).astype(int), max(0, size - 2))
    weights = np.zeros((wanted, size))
    rows = np.arange(wanted)
    weights[rows, low] = 1.0 - (places - low)
    weights[rows, np.minimum(low + 1, size - 1)] += places - low
    return weights


def states(fields: Sequence[Array], transform: Any) -> Tensor:
    """Return numbers of some fields side by side, scaled to -1..1 [rows, width]."""
    flat = np.concatenate([np.asarray(to_numpy(field), np.float64).reshape(len(field), -1) for field in fields], 1)
    return torch.from_numpy(transform.apply(flat))
