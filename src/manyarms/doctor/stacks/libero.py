"""LIBERO: an environment of its own, with robosuite, an old MuJoCo and LIBERO's assets."""

from __future__ import annotations

from manyarms.doctor.stacks import Trial

NEEDS = ("libero", "robosuite")
INSTALL = "scripts/install_libero.sh ENV_DIR ASSETS; manyarms doctor libero --python ENV_DIR"


def trial() -> Trial:
    """Take a task of the smallest scenes."""
    return Trial("libero_object/0")
