"""One policy, many arms.

Importing is free: names are loaded when first used. Workers execute this file in their own interpreter, so it must stay
valid in Python 3.8 and import nothing. What type checkers see is in `__init__.pyi`.
"""
# pyright: reportUnsupportedDunderAll=false

__version__ = "0.1.0"

_LAZY = {
    "make_vec": "manyarms.vector",
    "VectorEnv": "manyarms.vector",
    "Chunk": "manyarms.vector",
    "EpisodeId": "manyarms.vector",
    "SimulatorConfig": "manyarms.vector",
    "VectorConfig": "manyarms.vector",
    "bench": "manyarms.api",
    "catalogue": "manyarms.api",
    "check": "manyarms.api",
    "demo": "manyarms.api",
    "evaluate": "manyarms.api",
    "examine": "manyarms.api",
    "inspect_policy": "manyarms.api",
    "record": "manyarms.api",
    "replay": "manyarms.api",
    "serve": "manyarms.api",
    "train": "manyarms.api",
    "watch": "manyarms.api",
}

__all__ = ["__version__", *_LAZY]  # noqa: PLE0604


def __getattr__(name):  # type: (str) -> object
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError("module 'manyarms' has no attribute %r" % name)


def __dir__():  # type: () -> list
    return sorted(__all__)
