"""MuJoCo, typed as what it is to a type checker: a C extension that says nothing about itself."""

from __future__ import annotations

import importlib
from typing import Any

from ..graphics import set_backend

set_backend()  # MuJoCo reads it when it is first imported
mujoco: Any = importlib.import_module("mujoco")
