"""The rules of the BEHAVIOR challenge where they differ from OmniGibson's: its own evaluation sets them, so do ours."""

from __future__ import annotations

import importlib
from typing import Any, Sequence

from .releases import Release

#: Changes of things into others that the challenge does without: machines, mixing, and what is cooked in a pot.
_WITHOUT = ("ToggleableMachineRule", "MixingToolRule", "CookingSystemRule")


def set_rules(release: Release) -> None:
    """Set what must be set before scenes are loaded."""
    transitions = importlib.import_module("omnigibson.transition_rules")
    for name in _WITHOUT:
        getattr(transitions, name).ENABLED = False
    if release.grasp_window is not None:
        macros = importlib.import_module("omnigibson.macros").macros
        with macros.unlocked():
            macros.robots.manipulation_robot.GRASP_WINDOW = release.grasp_window


def weigh_robots(sim: Any, envs: Sequence[Any], release: Release) -> None:
    """Give robots the weight that they have in the challenge; scenes must be reset after it."""
    if release.base_mass is None:
        return
    sim.stop()
    for env in envs:
        env.robots[0].base_footprint_link.mass = release.base_mass
    sim.play()


__all__ = ["set_rules", "weigh_robots"]
