"""What RIPT-VLA's YAML files say, whichever way they were read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def setting(config: Any, path: str, default: Any = None) -> Any:
    """Return ``features.use_ript_vla_runner`` and its like from a mapping, an OmegaConf tree or an object."""
    for name in path.split("."):
        if config is None:
            return default
        config = (
            config.get(name) if isinstance(config, Mapping) or hasattr(config, "get") else getattr(config, name, None)
        )
    return default if config is None else config


def runner_kind(config: Any) -> str:
    """Return which runner the feature flags ask for; the first that is set decides.

    use_ript_vla_runner: each environment goes on as soon as it has actions. enable_true_parallel_envs and
    enable_parallel_envs: as many processes, in step with each other. None of them: one environment at a time.
    """
    if setting(config, "features.use_ript_vla_runner", False):
        return "ript_vla"
    if setting(config, "features.enable_true_parallel_envs", False) or setting(
        config, "features.enable_parallel_envs", False
    ):
        return "lockstep"
    return "serial"
