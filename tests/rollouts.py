"""What tests of rollouts share: a policy that depends on what it sees, and a loop that is plainly right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from manyarms import EpisodeId
from manyarms.policies import ActionChunk, Observations
from manyarms.policies.noise import normal
from manyarms.rollout import Episode


class Swaying:
    """Acts on the position it sees, with noise of its own episode."""

    cameras = ()

    def __init__(self, chunk: int = 4, width: int = 2, field: str = "position") -> None:
        self.chunk, self.width, self.field = chunk, width, field
        self.batches: list[int] = []

    def act(self, observations: Observations) -> ActionChunk:
        self.batches.append(len(observations))
        seen = observations.fields[self.field].reshape(len(observations), -1)[:, :1]
        noise = normal(1, observations, (self.chunk, self.width))
        actions = np.tanh(seen[:, None, :] * 0.3 + noise).astype(np.float32)
        return ActionChunk.of(actions, log_probs=noise.sum(-1), values=seen[:, 0].astype(np.float64))


def played_alone(
    simulator: Any, policy: Any, episode: EpisodeId, horizon: int | None, limit: int
) -> dict[str, np.ndarray]:
    """Play one episode in the simplest way: one simulator, one decision after the other."""
    out = {name: np.zeros(field.shape, field.dtype) for name, field in simulator.spec.layout().items()}
    simulator.reset(episode.task, episode.seed, episode.init_state)
    seen, chosen, rewards, taken = [], [], [], []
    steps, ended = 0, False
    while not ended:
        simulator.observe(out, ())
        fields = {name: array[None].copy() for name, array in out.items()}
        chunk = policy.act(Observations(fields, [""], [episode], np.array([steps])))
        seen.append({name: array[0] for name, array in fields.items()})
        chosen.append(chunk.actions[""][0])
        rewards.append(np.zeros(chunk.length))
        taken.append(0)
        for i in range(min(chunk.length, horizon or chunk.length)):
            reward, _, terminated, truncated = simulator.step(chunk.actions[""][0, i])
            rewards[-1][i] = reward
            taken[-1] += 1
            steps += 1
            ended = bool(terminated or truncated) or steps == limit
            if ended:
                break
    simulator.observe(out, ())
    return {
        **{f"seen {name}": np.stack([one[name] for one in seen]) for name in out},
        **{f"final {name}": out[name].copy() for name in out},
        "actions": np.stack(chosen),
        "rewards": np.stack(rewards),
        "num_steps": np.array(taken),
    }


def contents(episode: Episode) -> dict[str, np.ndarray]:
    """Return an episode's arrays by the names of `played_alone`."""
    return {
        **{f"seen {name}": array for name, array in episode.observations.items()},
        **{f"final {name}": array for name, array in episode.final_observation.items()},
        "actions": episode.actions[""],
        "rewards": episode.rewards,
        "num_steps": episode.num_steps,
    }


def assert_same(
    first: dict[str, np.ndarray], second: dict[str, np.ndarray], names: Sequence[str] | None = None
) -> None:
    """Compare arrays bit for bit."""
    for name in names or first:
        assert first[name].shape == second[name].shape, name
        assert first[name].tobytes() == second[name].tobytes(), name


def fingerprint(episodes: Sequence[Episode]) -> list[tuple[Any, ...]]:
    """Return everything about episodes that must not depend on how they were run."""
    return [
        (
            episode.id.key,
            episode.text,
            episode.success,
            episode.terminated,
            episode.truncated,
            *(
                (name, array.shape, array.tobytes())
                for group in (episode.observations, episode.actions, episode.extras, contents(episode))
                for name, array in sorted(group.items())
            ),
        )
        for episode in episodes
    ]
