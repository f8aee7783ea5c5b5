import os

from .env_base import Environment
from .vec_env_base import VectorEnvironment

if os.environ.get("OMNIGIBSON_STANDIN_FORK"):
    from .fork import VectorEnvironment

__all__ = ["Environment", "VectorEnvironment"]
