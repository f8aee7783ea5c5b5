"""From observations to chunks of actions."""

from manyarms.policies.base import ActionChunk, Observations, Policy
from manyarms.policies.registry import make_policy, make_trainable

__all__ = ["ActionChunk", "Observations", "Policy", "make_policy", "make_trainable"]
