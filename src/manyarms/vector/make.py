"""From a simulator's name to many of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from manyarms.simulators import registry
from manyarms.vector.config import SimulatorConfig, VectorConfig, rows_of
from manyarms.vector.env import VectorEnv


def make_vec(
    simulator: str | Callable[..., Any] | SimulatorConfig | Sequence[Any],
    num_envs: int = 1,
    *,
    python: str | None = None,
    env: Mapping[str, str] | None = None,
    rename: Mapping[str, str] | None = None,
    **options: Any,
) -> VectorEnv:
    """Run `num_envs` copies of a simulator side by side.

    `simulator` is ``<simulator>/<task>``, an import string, a factory at the top level of a module, a
    `SimulatorConfig`, or several of these, which then take turns over the rows. Options that name a setting of
    `VectorConfig` go there; all others go to the simulator. `rename` gives fields and cameras other names.
    """
    settings = {name: options.pop(name) for name in list(options) if name in VectorConfig.names()}
    common = {"options": options, "python": python, "env": env or {}, "rename": rename or {}}
    config = VectorConfig(num_envs=num_envs, **settings)
    rows = rows_of(simulator, num_envs, common)
    if "start_timeout" not in settings:
        slowest = max(registry.about(row.id).start_timeout or config.start_timeout for row in rows)
        config = replace(config, start_timeout=slowest)
    return VectorEnv(rows, config)
