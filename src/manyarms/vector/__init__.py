"""The near side: a vector environment over workers in shared memory."""

from manyarms.vector.chunk import Chunk, ChunkTiming, EpisodeId
from manyarms.vector.config import SimulatorConfig, VectorConfig
from manyarms.vector.env import VectorEnv
from manyarms.vector.make import make_vec
from manyarms.vector.states import RowState

__all__ = ["Chunk", "ChunkTiming", "EpisodeId", "RowState", "SimulatorConfig", "VectorConfig", "VectorEnv", "make_vec"]
