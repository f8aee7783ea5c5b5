"""Losses that a policy computes itself, and the algorithm that weighs them by advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyarms.algorithms import make_algorithm
from manyarms.algorithms.base import Episodes, Minibatch
from manyarms.algorithms.rwfm import RWFM
from manyarms.errors import ConfigError
from manyarms.learning.learner import Learner, LearnerConfig, OptimConfig
from manyarms.policies import Observations
from manyarms.policies.heads import Evaluation
from manyarms.policies.trainable import TrainablePolicy
from manyarms.rollout import Episode
from manyarms.vector import EpisodeId

CHUNK, HORIZON = 2, 3


class Follower(TrainablePolicy):
    """A policy whose loss is the distance to what was chosen, a horizon longer than it executes; it tells no odds."""

    chunk, explores = CHUNK, False

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(1, HORIZON)
        with torch.no_grad():
            self.mean.weight.fill_(0.5)
            self.mean.bias.zero_()
        self.draws: list[tuple[int, ...]] = []

    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        raise AssertionError("nobody needs log-probabilities")

    def imitation_loss(
        self, observations: Observations, chosen: np.ndarray | Tensor, draw: Sequence[int] = ()
    ) -> Tensor:
        self.draws.append(tuple(draw))
        found = self.mean(torch.from_numpy(observations.fields["x"]))
        return (found - torch.as_tensor(chosen)).square()[..., None]


def episode(seed: int, rewards: Sequence[float], last: int = CHUNK) -> Episode:
    """An episode of one chunk per reward, of the last of which `last` actions were executed."""
    rng, count = np.random.default_rng(seed), len(rewards)
    return Episode(
        EpisodeId(None, seed),
        "",
        {"x": rng.normal(size=(count, 1)).astype(np.float32)},
        {"x": np.zeros(1, np.float32)},
        {"": np.zeros((count, CHUNK, 1), np.float32)},
        np.array([[0.0] * (CHUNK - 1) + [reward] for reward in rewards]),
        np.array([CHUNK] * (count - 1) + [last]),
        {"chosen": rng.normal(size=(count, HORIZON)).astype(np.float32)},
        success=rewards[-1] > 0,
        terminated=True,
        truncated=False,
    )


EPISODES = list(enumerate([episode(0, [0.0, 0.0, 1.0], last=1), episode(1, [0.0, 0.0]), episode(2, [1.0])]))


def learnt(policy: TrainablePolicy, updates: int = 1, **batches: Any) -> dict[str, float]:
    learner = Learner(policy, RWFM(update_epoch=2), OptimConfig(lr=0.01), LearnerConfig(**batches))
    metrics: dict[str, float] = {}
    for update in range(updates):
        samples, layout, _ = learner.prepare(EPISODES)
        metrics = learner.update(samples, update, layout=layout)
    return metrics


def minibatch(own_loss: Tensor, advantages: Tensor, counts: float | None = None) -> Minibatch:
    """Decisions of one action each."""
    count = float(len(own_loss)) if counts is None else counts
    return Minibatch(
        advantages=advantages,
        log_probs=None,
        old_log_probs=None,
        behavior_log_probs=None,
        reference_log_probs=None,
        entropy=None,
        values=None,
        old_values=None,
        returns=None,
        mask=torch.ones(len(own_loss), 1),
        counts=(count, count, count),
        own_loss=own_loss,
    )


def test_the_weighted_loss_by_hand() -> None:
    own, advantages = torch.tensor([2.0, 1.0, 4.0], requires_grad=True), torch.tensor([0.5, -0.5, 9.0])
    found = RWFM(temperature=0.5, max_weight=10.0).loss(minibatch(own, advantages))
    # w = e^1, e^-1 and e^18 held to 10
    wanted = (2.0 * math.e + 1.0 / math.e + 4.0 * 10.0) / 3
    assert float(found.value.detach()) == pytest.approx(wanted)
    assert float(found.metrics["actor/weight"]) == pytest.approx((math.e + 1.0 / math.e + 10.0) / 3)
    assert float(found.metrics["actor/own_loss"]) == pytest.approx(7.0 / 3)
    found.value.backward()
    assert own.grad is not None
    torch.testing.assert_close(own.grad, torch.tensor([math.e, 1.0 / math.e, 10.0]) / 3)


def test_advantages_are_returns_from_each_decision_on_and_what_was_not_played_does_not_count() -> None:
    episodes = Episodes(
        rewards=np.array([[[0.0, 0.0], [4.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]]),
        mask=np.array([[[True, True], [True, False]], [[True, False], [False, False]]]),
        terminated=np.array([True, True]),
        success=np.array([True, False]),
        max_steps=np.array([9.0, 9.0]),
    )
    found = RWFM(gamma=0.5).targets(episodes).advantages[episodes.decisions]
    # R = 0.5·4 and 4; of the other 1: mean 7/3, deviation sqrt((1/9 + 25/9 + 16/9) / 3)
    wanted = (np.array([2.0, 4.0, 1.0]) - 7 / 3) / math.sqrt(42 / 27)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_policy_that_tells_no_odds_learns_by_its_own_loss() -> None:
    """`evaluate` is never asked, episodes hold no log-probabilities, and what is drawn is new in every pass."""
    policy = Follower()
    metrics = learnt(policy, updates=2, global_batch_size=100)
    assert policy.draws == [(0, 0), (0, 1), (1, 0), (1, 1)], "the update and the pass"
    assert metrics["actor/own_loss"] < learnt(Follower(), global_batch_size=100)["actor/own_loss"]
    assert not [name for name in metrics if "kl" in name or "ratio" in name]


def test_an_own_loss_is_the_mean_over_what_was_executed() -> None:
    policy, seen = Follower(), []

    class Watching(RWFM):
        def loss(self, batch: Minibatch) -> Any:
            seen.append(batch)
            return super().loss(batch)

    learner = Learner(policy, Watching(update_epoch=1), config=LearnerConfig(100))
    samples, layout, _ = learner.prepare(EPISODES)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    learner.update(samples, 0, layout=layout)
    (batch,) = seen
    assert batch.log_probs is batch.old_log_probs is batch.entropy is None
    assert batch.advantages.shape == batch.own_loss.shape == (6,)
    wanted = []
    for _, one in EPISODES:
        for t, steps in enumerate(one.num_steps):
            distance = before[0][:, 0].numpy() * one.observations["x"][t] - one.extras["chosen"][t]
            wanted.append(np.square(distance[:steps]).mean())
    np.testing.assert_allclose(sorted(batch.own_loss.tolist()), sorted(wanted), rtol=1e-5)


@pytest.mark.parametrize("size", [1, 4])
def test_parts_of_a_minibatch_teach_what_the_whole_teaches(size: int) -> None:
    whole, parts = Follower(), Follower()
    wanted = learnt(whole, updates=2, global_batch_size=100)
    found = learnt(parts, updates=2, global_batch_size=100, micro_batch_size=size)
    assert found == pytest.approx(wanted, rel=1e-5)
    for ours, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_what_cannot_learn_so_is_refused() -> None:
    class Mute(Follower):
        has_own_loss = False

    with pytest.raises(ConfigError, match="rwfm learns by the policy's own loss, and this policy has none"):
        Learner(Mute(), RWFM())
    with pytest.raises(ConfigError, match="reports no log-probabilities"):
        Learner(Follower(), make_algorithm("reinforce_pp"))
    useless: dict[str, Any] = {"logprob_type": "action_level", "kl_beta": 0.1, "entropy_bonus": 0.1, "target_kl": 0.1}
    for name, value in useless.items():
        with pytest.raises(ConfigError, match=f"{name} would do nothing: rwfm looks at no log-probabilities"):
            make_algorithm("rwfm", **{name: value})
    wrong: dict[str, tuple[Any, str]] = {
        "temperature": (0.0, "temperature must be above 0"),
        "max_weight": (-1.0, "max_weight must be above 0"),
        "gamma": (1.5, "gamma must be from 0 to 1"),
        "max_staleness": (1, "does not correct for older weights"),
    }
    for name, (value, says) in wrong.items():
        with pytest.raises(ConfigError, match=says):
            make_algorithm("rwfm", **{name: value})
