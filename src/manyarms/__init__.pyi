from manyarms.api import bench, check, demo, evaluate, examine, inspect_policy, record, replay, serve, train
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
]
