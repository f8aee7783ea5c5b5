"""The tabletop: MuJoCo, and something to render with."""

from __future__ import annotations

from manyarms.doctor.stacks import Trial

NEEDS = ("mujoco",)
INSTALL = "{python} -m pip install mujoco"


def trial() -> Trial:
    """Take what is quickest to start."""
    return Trial("reach_target")
