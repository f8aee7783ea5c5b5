"""RLBench's own demonstrations as arrays."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import numpy as np


def unroll(demo: Any, dtypes: Mapping[str, str]) -> Dict[str, Any]:
    """Stack a demonstration's fields, time first; the action at t leads to the observation at t + 1."""
    frames = [demo[i] for i in range(len(demo))]
    observations = {
        name: np.stack([np.asarray(getattr(frame, name)) for frame in frames]).astype(dtype)
        for name, dtype in dtypes.items()
    }
    unrolled: Dict[str, Any] = {"observations": observations}
    commands: List[Any] = [(frame.misc or {}).get("joint_position_action") for frame in frames[1:]]
    if commands and all(command is not None for command in commands):
        unrolled["joint_position_actions"] = np.stack(commands).astype(np.float32)
    return unrolled


__all__ = ["unroll"]
