"""What a file that somebody else made may set: options that do no harm, and no code.

Which names such a file may hold is decided in `plugins.py`; docs/security.md tells the whole boundary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyarms.errors import ConfigError
from manyarms.plugins import WAY_OUT

#: Options of a simulator that a checkpoint or a recording may set: how it is seen, moved and scored, how long it takes.
#: What is missing here names files, modules, variables or interpreters: `descriptions`, `env`, `imports`, `log_dir`,
#: `python`, `trace`, `wrappers`, and whatever a plug-in or a Gymnasium environment calls its own.
HARMLESS = frozenset(
    {
        # what is played
        *("task", "tasks", "task_options", "variation", "max_episode_steps"),
        *("definition", "instances", "layout", "settle_steps", "static_positions", "shaped_rewards", "challenge_rules"),
        *("online_object_sampling", "scene_model", "rooms"),
        # how it is seen
        *("cameras", "image_size", "depth", "mask", "point_cloud", "rotate", "faithful", "state_size", "expert"),
        *("render_quality", "render_every", "render_passes", "renderer", "idle_fps", "display"),
        # how it is moved
        *("robot", "arm_mode", "arm_max_velocity", "arm_max_acceleration", "collision_checking", "grasping_mode"),
        *("gpu_dynamics", "device", "action_bounds"),
        # how it is run
        *("partial_reset", "keep_tasks", "launch_attempts", "launch_pause", "max_chunk", "info_bytes"),
        *("start_timeout", "step_timeout", "reset_timeout", "worker_memory", "recycle_after"),
    }
)

#: Texts among their values are words; a path or an import string is none. Tasks may be told apart by a slash.
_WORDS = re.compile(r"[\w ,.+()-]{0,200}")
_TASK = re.compile(r"\w[\w -]*(/\w[\w -]*)*")
_TASKS = ("task", "tasks")

#: What transformers takes from a config.json and runs or fetches.
_CODE_IN_CONFIGS = frozenset({"_attn_implementation_internal", "auto_map", "custom_pipelines", "kernel_config"})

_DEEPEST = 4


def check_options(options: object, source: Path) -> None:
    """Refuse options of a simulator that could do more than change what is seen and done in it."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"{source} holds no options", why=f"they are {options!r:.100}")
    for name, value in options.items():
        if name not in HARMLESS:
            raise ConfigError(
                f"{source} sets the option {name!r}, which a file from somebody else may not set",
                why="it is not on the list of options that cannot do harm",
                do=WAY_OUT,
            )
        if not _is_plain(value, _TASK if name in _TASKS else _WORDS):
            raise ConfigError(
                f"{source} sets the option {name!r} to {value!r:.100}",
                why="in a file from somebody else only numbers and plain words are taken, no paths and no modules",
                do=WAY_OUT,
            )


def _is_plain(value: Any, text: re.Pattern[str], depth: int = 0) -> bool:
    if value is None or isinstance(value, bool | int | float):
        return True
    if isinstance(value, str):
        return text.fullmatch(value) is not None and ".." not in value
    if depth == _DEEPEST or not isinstance(value, list | tuple | Mapping):
        return False
    items = [*value, *value.values()] if isinstance(value, Mapping) else value
    return all(_is_plain(item, text, depth + 1) for item in items)


def without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's config without what has transformers fetch code: it can name kernels and classes on a hub."""
    return {
        name: without_code(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if not (name.endswith("_implementation") or name in _CODE_IN_CONFIGS)
    }


__all__ = ["HARMLESS", "check_options", "without_code"]
