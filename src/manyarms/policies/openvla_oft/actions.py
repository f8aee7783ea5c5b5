"""Between OpenVLA-OFT's actions in -1..1 and the simulator's."""

from __future__ import annotations

import numpy as np

from manyarms.errors import ConfigError
from manyarms.policies.openvla_oft.config import OftConfig
from manyarms.policies.statistics import FieldStatistics
from manyarms.policies.transforms import GripperSign, MaskedQuantile
from manyarms.simulators.base import Field, Spec


class Actions:
    """Un-normalises actions, and the other way round for imitation."""

    def __init__(self, spec: Spec, config: OftConfig, dataset: str, statistics: FieldStatistics) -> None:
        self._field = _field(spec)
        self.width = int(np.prod(self._field.shape))
        self._scale = MaskedQuantile(statistics)
        sign = config.gripper == "sign" or (config.gripper == "auto" and dataset.startswith("libero"))
        self._gripper = GripperSign() if sign else None
        known = len(statistics.need("q01")[0])
        if known != self.width:
            raise ConfigError(f"the statistics of {dataset!r} are for {known} numbers, an action here has {self.width}")

    def check(self, what: str, width: int | None) -> None:
        """Refuse a width that is not the simulator's."""
        if width is not None and width != self.width:
            raise ConfigError(f"{what} is for actions of {width} numbers, the simulator takes {self.width}")

    def to_simulator(self, unit: np.ndarray) -> np.ndarray:
        """Turn actions [rows, K, A] into the simulator's, within its bounds."""
        actions = self._scale.undo(unit)
        if self._gripper is not None:
            actions = self._gripper.undo(actions)
        field = self._field
        shaped = actions.reshape(*actions.shape[:2], *field.shape)
        if field.low is not None or field.high is not None:
            shaped = np.clip(shaped, field.low, field.high)
        return shaped.astype(field.dtype)

    def from_simulator(self, actions: np.ndarray) -> np.ndarray:
        """Undo `to_simulator`."""
        flat = np.asarray(actions, np.float32).reshape(*actions.shape[:2], -1)
        return self._scale.apply(flat if self._gripper is None else self._gripper.apply(flat))


def _field(spec: Spec) -> Field:
    field = spec.actions.get("")
    if field is None or np.dtype(field.dtype).kind != "f":
        raise ConfigError("openvla_oft needs one array of real numbers as action", do="wrap the simulator")
    return field
