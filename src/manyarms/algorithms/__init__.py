"""Algorithms by the name that `algorithm.adv_type` gives: the files here, installed plug-ins, import strings."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from manyarms import plugins
from manyarms.errors import ConfigError, UnknownName, did_you_mean

if TYPE_CHECKING:
    from manyarms.algorithms.base import Algorithm

#: Name -> import string. Nothing is imported before it is asked for.
BUILT_IN = {
    "gae": "manyarms.algorithms.ppo:PPO",
    "grpo": "manyarms.algorithms.grpo:GRPO",
    "rloo": "manyarms.algorithms.rloo:RLOO",
    "dapo": "manyarms.algorithms.dapo:DAPO",
    "reinforce_pp": "manyarms.algorithms.reinforce_pp:ReinforcePP",
    "decoupled_ppo": "manyarms.algorithms.decoupled_ppo:DecoupledPPO",
    "rwfm": "manyarms.algorithms.rwfm:RWFM",
}


def find_algorithm(name: str) -> type[Algorithm]:
    """Return an algorithm's class. The name is its user's own: it may be an import string."""
    from manyarms.algorithms.base import Algorithm

    found = plugins.resolve("algorithms", name, trusted=True)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        why = "it is not a subclass of manyarms.algorithms.base.Algorithm"
        raise ConfigError(f"{name} is not an algorithm", why=why)
    return found


def make_algorithm(adv_type: str = "gae", **settings: Any) -> Algorithm:
    """Return an algorithm with settings, as `algorithm:` in YAML would."""
    kind = find_algorithm(adv_type)
    known = [field.name for field in fields(kind)]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise UnknownName(f"{adv_type} has no setting {unknown[0]!r}", do=did_you_mean(unknown[0], known))
    return kind(adv_type=adv_type, **settings)


__all__ = ["BUILT_IN", "find_algorithm", "make_algorithm"]
