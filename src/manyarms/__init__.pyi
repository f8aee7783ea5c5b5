from manyarms.api import (
    bench,
    catalogue,
    check,
    demo,
    evaluate,
    examine,
    inspect_policy,
    record,
    replay,
    serve,
    train,
    watch,
)
from manyarms.vector import Chunk, EpisodeId, SimulatorConfig, VectorConfig, VectorEnv, make_vec

__version__: str

__all__ = [
    "Chunk",
    "EpisodeId",
    "SimulatorConfig",
    "VectorConfig",
    "VectorEnv",
    "__version__",
    "bench",
    "catalogue",
    "check",
    "demo",
    "evaluate",
    "examine",
    "inspect_policy",
    "make_vec",
    "record",
    "replay",
    "serve",
    "train",
    "watch",
]
