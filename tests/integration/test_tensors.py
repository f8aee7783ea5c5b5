"""Observations that are tensors are played and learnt from as arrays are, and stay tensors on the way."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

import manyarms
from manyarms import EpisodeId
from manyarms.algorithms.ppo import PPO
from manyarms.learning.learner import Learner, LearnerConfig
from manyarms.policies.registry import make_trainable
from manyarms.policies.trainable import Batched
from manyarms.rollout import Episode, Runner, RunnerConfig
from manyarms.simulators.base import Spec
from rollouts import TensorRows, fingerprint
from standins import Walker

ROWS, LIMIT = 3, 9
EPISODES = [EpisodeId(("near", "far")[i % 2], i) for i in range(8)]


def policy(kind: str, spec: Spec) -> Batched:
    options = {"chunk": 2, "hidden": 16, "fields": ["position"], "critic": "chunk_level", "deterministic": True}
    return make_trainable(kind, spec, {**options, "batch_size": 4, **({"image_side": 17} if kind == "pixel" else {})})


def played(envs: Any, kind: str) -> tuple[Batched, list[Episode]]:
    acting = policy(kind, envs.simulator_spec)
    runner = Runner(cast(Any, envs), acting, RunnerConfig(keep=acting.reads))
    return acting, list(runner.play(EPISODES))


@pytest.mark.parametrize("kind", ["mlp", "pixel"])
def test_tensors_are_played_and_learnt_from_as_arrays_are(kind: str) -> None:
    with manyarms.make_vec("standins:Walker", ROWS, rows_per_worker=3, max_episode_steps=LIMIT, goal=0.9) as envs:
        found = [played(envs, kind), played(TensorRows(lambda: Walker(goal=0.9), ROWS, LIMIT), kind)]
    (_, arrays), (_, tensors) = found
    assert fingerprint(tensors) == fingerprint(arrays)
    for group in (tensors[0].observations, tensors[0].actions, tensors[0].extras, tensors[0].final_observation):
        assert group
        assert all(isinstance(array, torch.Tensor) for array in group.values())
    weights = []
    for acting, episodes in found:
        learner = Learner(acting, PPO(update_epoch=2), config=LearnerConfig(global_batch_size=8))
        samples, layout, _ = learner.prepare(list(enumerate(episodes)), LIMIT)
        learner.update(samples, 0, 0.0, layout)
        weights.append(acting.policy.state_dict())
    before = policy(kind, Walker(goal=0.9).spec).policy.state_dict()
    assert any(not torch.equal(weights[0][name], before[name]) for name in before), "something was learnt"
    for name in weights[0]:
        assert torch.equal(weights[0][name], weights[1][name]), name
