"""What tests of rollouts share: a policy that depends on what it sees, and a loop that is plainly right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from manyarms import EpisodeId
from manyarms.arrays import to_numpy
from manyarms.policies import ActionChunk, Observations
from manyarms.policies.noise import normal
from manyarms.rollout import Episode
from manyarms.simulators.base import Simulator
from manyarms.vector import VectorConfig
from manyarms.vector.chunk import Chunk


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


class TensorRows:
    """A vector environment in this process whose observations are tensors, as those of a simulator on a GPU."""

    lockstep = False

    def __init__(self, make: Callable[[], Simulator], num_envs: int, limit: int) -> None:
        self.num_envs, self._limit = num_envs, limit
        self.config = VectorConfig(num_envs, max_episode_steps=limit)
        self._simulators = [make() for _ in range(num_envs)]
        self.simulator_spec = self._simulators[0].spec
        self.row_tasks = [tuple(task.name for task in self.simulator_spec.tasks)] * num_envs
        layout = self.simulator_spec.layout()
        self._shared = {name: np.zeros((num_envs, *f.shape), f.dtype) for name, f in layout.items()}
        self.observations = {name: torch.from_numpy(array) for name, array in self._shared.items()}
        self._steps = np.zeros(num_envs, np.int64)
        self._waiting: dict[int, Any] = {}

    def begin(self, rows: Any, episodes: Sequence[EpisodeId], *, cameras: Any = None) -> None:
        for row, episode in zip(rows, episodes, strict=True):
            self._simulators[row].reset(episode.task, episode.seed, episode.init_state)
            self._steps[row], self._waiting[row], self._cameras = 0, None, cameras

    def send(self, rows: Any, actions: Any, lengths: Any, *, cameras: Any = None) -> None:
        for i, row in enumerate(rows.tolist()):
            assert isinstance(actions, torch.Tensor)
            self._waiting[row] = actions[i, : lengths[i]].numpy().copy()

    def recv(self, min_rows: int = 1, timeout: float | None = None, *, observe: bool = True) -> Chunk:
        rows = sorted(self._waiting)[: max(min_rows, 1)]
        found = [self._run(row, self._waiting.pop(row)) for row in rows]
        longest = max([len(rewards) for rewards, *_ in found] + [1])
        rewards = np.zeros((len(rows), longest))
        for i, (own, *_) in enumerate(found):
            rewards[i, : len(own)] = own
        steps = np.array([len(own) for own, *_ in found])
        success, terminated, truncated = (np.array([one[i] for one in found]) for i in (1, 2, 3))
        return Chunk(
            np.array(rows), None, rewards, steps, terminated, truncated, np.zeros(len(rows), bool), success, {}
        )

    def _run(self, row: int, actions: Any) -> tuple[list[float], bool, bool, bool]:
        simulator, rewards, success, terminated, truncated = self._simulators[row], [], False, False, False
        for action in () if actions is None else actions:
            reward, won, terminated, cut = simulator.step(action)
            rewards.append(reward)
            self._steps[row] += 1
            success, truncated = success or won, bool(cut) or self._steps[row] == self._limit
            if terminated or truncated:
                break
        cameras = simulator.cameras if self._cameras is None else self._cameras  # type: ignore[attr-defined]
        simulator.observe({name: array[row, ...] for name, array in self._shared.items()}, cameras)
        return rewards, success, bool(terminated), bool(truncated)

    def abandon(self) -> None:
        self._waiting.clear()


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
                (name, tuple(array.shape), to_numpy(array).tobytes())
                for group in (episode.observations, episode.actions, episode.extras, contents(episode))
                for name, array in sorted(group.items())
            ),
        )
        for episode in episodes
    ]
