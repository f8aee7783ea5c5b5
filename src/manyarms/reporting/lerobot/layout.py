"""Which numbers of a simulator become which feature of a dataset, described as `meta/info.json` does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from manyarms.reporting.lerobot.files import ENCODING, even
from manyarms.simulators.base import Field, Spec

#: Fields that make up the state of a robot; a simulator that has none of them gives all its numbers.
_STATE = ("joint_positions", "gripper_pose", "gripper_open")

#: Fields that are no observations of a robot.
_HINTS = ("expert_action",)


@dataclass(frozen=True)
class Layout:
    """Which fields of a simulator make up which feature."""

    images: dict[str, str]  # one field each
    vectors: dict[str, list[str]]  # observation fields, one after the other

    @classmethod
    def of(cls, spec: Spec) -> Layout:
        images: dict[str, str] = {}
        for name, field in spec.observations.items():
            if _is_picture(field):
                camera = f"observation.images.{_dotted(field.camera or name or 'image')}"
                images[camera if camera not in images else f"observation.images.{_dotted(name)}"] = name
        numbers = [
            name
            for name, field in spec.observations.items()
            if not field.camera and name not in (*images.values(), *_HINTS) and math.prod(field.shape)
        ]
        state = [name for name in _STATE if name in numbers] or numbers
        vectors = {"observation.state": state} if state else {}
        for name in numbers:
            if name not in state:
                key = f"observation.{_dotted(name)}"
                vectors[key if key not in vectors else f"{key}_field"] = [name]
        return cls(images, vectors)

    def features(self, spec: Spec, rate: Fraction) -> dict[str, Any]:
        """Describe every feature as `meta/info.json` does."""
        described: dict[str, Any] = {}
        for key, name in self.images.items():
            described[key] = _video_feature(*even(spec.observations[name].shape), rate)
        for key, fields in self.vectors.items():
            described[key] = _vector_feature({name or "state": spec.observations[name] for name in fields})
        described["action"] = _vector_feature({name or "action": field for name, field in spec.actions.items()})
        scalars = {"next.reward": "float32", "next.success": "bool", "next.done": "bool", "timestamp": "float32"}
        scalars.update(dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"))
        for key, dtype in scalars.items():
            described[key] = {"dtype": dtype, "shape": [1], "names": None}
        return described


def _is_picture(field: Field) -> bool:
    return field.dtype == "u1" and len(field.shape) == 3 and field.shape[2] == 3


def _dotted(name: str) -> str:
    """Return a nested name as LeRobot allows it."""
    return name.replace("/", ".")


def _video_feature(height: int, width: int, rate: Fraction) -> dict[str, Any]:
    info = {
        "video.height": height,
        "video.width": width,
        "video.codec": "h264",
        "video.pix_fmt": "yuv420p",
        "video.fps": number(rate),
        "video.channels": 3,
        "has_audio": False,
        "is_depth_map": False,
        **{f"video.{name}": value for name, value in ENCODING.items()},
    }
    return {"dtype": "video", "shape": [height, width, 3], "names": ["height", "width", "channels"], "info": info}


def _vector_feature(fields: Mapping[str, Field]) -> dict[str, Any]:
    names = [
        "_".join([_dotted(name), *map(str, place)])
        for name, field in fields.items()
        for place in np.ndindex(*field.shape)
    ]
    return {"dtype": "float32", "shape": [len(names)], "names": names}


def number(rate: Fraction) -> int | float:
    return rate.numerator if rate.denominator == 1 else float(rate)


def joined(arrays: Mapping[str, np.ndarray], names: Iterable[str], steps: int) -> np.ndarray:
    """Put fields side by side, [steps, n]; one number a frame is [steps]."""
    parts = [arrays[name][:steps].reshape(steps, -1) for name in names]
    joined = np.concatenate(parts, axis=1).astype(np.float32)
    return joined[:, 0] if joined.shape[1] == 1 else joined
