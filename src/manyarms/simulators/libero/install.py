"""What LIBERO stands on: its config, its assets, robosuite and a renderer; and what to say when one is missing."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Iterator, Optional

from ..about import MissingPart
from ..graphics import set_backend

_INSTALL = "scripts/install_libero.sh ENV_DIR ASSETS makes an environment for it: make_vec(…, python=ENV_DIR)"

_ASSETS = (
    "LIBERO's assets are not part of its package. Download them (the folder `assets` of LIBERO's repository on the "
    "Hugging Face hub, about 400 MB) and set LIBERO_ASSET_PATH to where they lie, or give them to "
    "scripts/install_libero.sh"
)

#: The folder of an environment in which scripts/install_libero.sh puts LIBERO's config.
CONFIG_FOLDER = "libero"


def root() -> str:
    """Return where LIBERO is installed, without importing it: that may ask questions."""
    spec = importlib.util.find_spec("libero")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        if os.path.isdir(os.path.join(folder, "libero", "bddl_files")):
            return os.path.join(folder, "libero")
    raise MissingPart("LIBERO is not installed in %s: %s" % (sys.prefix, _INSTALL))


def prepare() -> Optional[str]:
    """Set what LIBERO, MuJoCo and Mesa read when they are imported; return how frames will be rendered."""
    here = root()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("LP_NUM_THREADS", "1")
    _find_config()
    _find_assets(here)
    backend = set_backend()
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if backend == "egl" and devices[0].isdigit():
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", devices[0])
    return backend


def _find_config() -> None:
    """Point LIBERO at its config; without one it asks on standard input where datasets go."""
    own = os.path.join(sys.prefix, CONFIG_FOLDER)
    if "LIBERO_CONFIG_PATH" not in os.environ and os.path.exists(os.path.join(own, "config.yaml")):
        os.environ["LIBERO_CONFIG_PATH"] = own
    folder = os.environ.get("LIBERO_CONFIG_PATH", os.path.expanduser("~/.libero"))
    if not os.path.exists(os.path.join(folder, "config.yaml")):
        raise MissingPart(
            "LIBERO has no config: there is no %s/config.yaml, and without it LIBERO asks questions on standard input. "
            "Set LIBERO_CONFIG_PATH to the folder that has one; %s" % (folder, _INSTALL)
        )


def _find_assets(here: str) -> str:
    """Return where the assets are; with none, LIBERO would call the hub."""
    folder = os.path.abspath(os.environ.get("LIBERO_ASSET_PATH") or os.path.join(here, "assets"))
    if not os.path.isdir(os.path.join(folder, "scenes")):
        raise MissingPart("LIBERO has no assets: there is no folder %s/scenes. %s" % (folder, _ASSETS))
    return folder


def load() -> SimpleNamespace:
    """Import LIBERO and return the parts of it that are used here; `prepare` comes first."""
    try:
        with _without_device():
            libero: Any = importlib.import_module("libero.libero")
            wrapper = importlib.import_module("libero.libero.envs.env_wrapper")
            binding = importlib.import_module("robosuite.utils.binding_utils")
    except ImportError as error:
        raise MissingPart("LIBERO cannot be imported (%s). %s" % (error, _INSTALL)) from error
    libero._assets_path_cache = _find_assets(root())
    controls = importlib.import_module("robosuite.utils.control_utils")
    return SimpleNamespace(
        mujoco=importlib.import_module("mujoco"),
        ControlEnv=wrapper.ControlEnv,
        parse=importlib.import_module("libero.libero.envs.bddl_utils").robosuite_parse_problem,
        MjData=binding.MjData,
        Observable=importlib.import_module("robosuite.utils.observables").Observable,
        RandomizationError=importlib.import_module("robosuite.utils.errors").RandomizationError,
        nullspace_torques=controls.nullspace_torques,
        opspace_matrices=controls.opspace_matrices,
        orientation_error=controls.orientation_error,
    )


@contextmanager
def _without_device() -> Iterator[None]:
    """Hide which GPU renders: robosuite refuses to be imported when it is none of CUDA_VISIBLE_DEVICES.

    MuJoCo reads it when the first frame is rendered.
    """
    device = os.environ.pop("MUJOCO_EGL_DEVICE_ID", None)
    try:
        yield
    finally:
        if device is not None:
            os.environ["MUJOCO_EGL_DEVICE_ID"] = device


def trim(mujoco: Any) -> None:
    """Give back what building a model has left: MuJoCo's cache of meshes and textures, and freed memory."""
    if hasattr(mujoco, "mj_clearCache"):  # a capacity of 0 instead would crash
        mujoco.mj_clearCache(mujoco.mj_getCache())
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def has_memory(share: float) -> bool:
    """Tell whether more than a share of the machine's memory is free."""
    numbers = {}
    with open("/proc/meminfo") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            numbers[name] = float(value.split()[0])
    return numbers["MemAvailable"] > share * numbers["MemTotal"]
