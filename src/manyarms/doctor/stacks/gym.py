"""Gymnasium: an environment that needs nothing but Gymnasium."""

from __future__ import annotations

from manyarms.doctor.stacks import Trial

NEEDS = ("gymnasium",)
INSTALL = "{python} -m pip install gymnasium"


def trial() -> Trial:
    """Take what is quickest to start."""
    return Trial("CartPole-v1")
