"""One policy serves many rows: queues, schedule, runner, episodes."""

from manyarms.rollout.episode import Episode, Steps
from manyarms.rollout.rewards import RewardHook, Scene
from manyarms.rollout.runner import Runner, RunnerConfig, Sink
from manyarms.rollout.schedule import Schedule, repetitions, starts

__all__ = [
    "Episode",
    "RewardHook",
    "Runner",
    "RunnerConfig",
    "Scene",
    "Schedule",
    "Sink",
    "Steps",
    "repetitions",
    "starts",
]
