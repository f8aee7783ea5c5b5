"""One policy, many arms.

Importing is free: names are loaded when first used. Workers execute this file in their own interpreter, so it must stay
valid in Python 3.8 and import nothing.
"""

TYPE_CHECKING = False
"""Seen as true by type checkers, without importing typing."""

__version__ = "0.1.0"

_LAZY = {
    "make_vec": "manyarms.vector",
    "VectorEnv": "manyarms.vector",
    "Chunk": "manyarms.vector",
    "EpisodeId": "manyarms.vector",
    "SimulatorConfig": "manyarms.vector",
    "VectorConfig": "manyarms.vector",
}

if TYPE_CHECKING:
    from manyarms.vector import Chunk, EpisodeId, SimulatorConfig, VectorConfig, VectorEnv, make_vec

__all__ = ["Chunk", "EpisodeId", "SimulatorConfig", "VectorConfig", "VectorEnv", "__version__", "make_vec"]


def __getattr__(name):  # type: (str) -> object
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError("module 'manyarms' has no attribute %r" % name)


def __dir__():  # type: () -> list
    return sorted(__all__)
