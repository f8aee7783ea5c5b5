"""MuJoCo, typed as what it is to a type checker: a C extension that says nothing about itself."""

from __future__ import annotations

import importlib
from typing import Any

mujoco: Any = importlib.import_module("mujoco")
