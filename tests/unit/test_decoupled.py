"""Decoupled PPO: actions of older weights, judged by the policy that an update begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyarms.algorithms.base import Minibatch, clipped_policy_loss
from manyarms.algorithms.ppo import PPO
from manyarms.errors import ConfigError
from manyarms.learning.learner import Learner, LearnerConfig
from manyarms.learning.samples import Samples
from manyarms.policies.base import Observations
from manyarms.policies.registry import make_policy
from manyarms.policies.trainable import TrainablePolicy
from manyarms.rollout import Episode
from manyarms.simulators.base import Field, Spec
from manyarms.vector import EpisodeId

SPEC = Spec(observations={"state": Field((3,), "float32")}, actions={"": Field((2,), "float32", -1.0, 1.0)})
ALGORITHM = PPO(max_staleness=1, update_epoch=2)


def policy_of(seed: int) -> TrainablePolicy:
    made: Any = make_policy("mlp", SPEC, {"chunk": 2, "hidden": 8, "value_head": True, "seed": seed})
    assert isinstance(made.policy, TrainablePolicy)
    return made.policy


def samples_of(policy: TrainablePolicy, count: int = 12) -> Samples:
    rng = np.random.default_rng(0)
    seen = Observations(
        {"state": rng.normal(size=(count, 3)).astype(np.float32)},
        [""] * count,
        [EpisodeId(None, seed) for seed in range(count)],
        np.zeros(count, np.int64),
    )
    chosen = rng.normal(size=(count, 2, 2)).astype(np.float32)
    with torch.no_grad():
        found = policy.evaluate(seen, chosen)
    assert found.values is not None
    return Samples(
        seen,
        chosen,
        found.log_probs.numpy(),
        np.ones((count, 2), np.float32),
        rng.normal(size=count).astype(np.float32),
        rng.normal(size=count).astype(np.float32),
        found.values.numpy(),
    )


def episode_of(samples: Samples) -> Episode:
    """An episode of these decisions."""
    count = len(samples)
    extras = {"chosen": samples.chosen, "log_probs": samples.log_probs, "values": samples.values}
    return Episode(
        EpisodeId(None, 0),
        "",
        dict(samples.observations.fields),
        {"state": samples.observations.fields["state"][-1]},
        {"": samples.chosen},
        np.random.default_rng(1).normal(size=(count, 2)),
        np.full(count, 2),
        extras,  # type: ignore[arg-type]
        success=True,
        terminated=True,
        truncated=False,
    )


def minibatch(current: Any, old: Any, behavior: Any = None, advantages: Any = 1.0) -> Minibatch:
    """One decision of as many actions as there are log-probabilities, of one number each."""
    log_probs = torch.as_tensor(current)[None]
    count = float(log_probs.shape[1])
    return Minibatch(
        advantages=torch.as_tensor(advantages).expand_as(log_probs),
        log_probs=log_probs,
        old_log_probs=torch.as_tensor(old)[None],
        behavior_log_probs=None if behavior is None else torch.as_tensor(behavior)[None],
        reference_log_probs=None,
        entropy=torch.zeros_like(log_probs),
        values=None,
        old_values=None,
        returns=None,
        mask=torch.ones_like(log_probs),
        counts=(1.0, count, count),
    )


def test_the_weight_is_how_much_likelier_an_action_became_up_to_a_bound() -> None:
    old, behavior = torch.log(torch.tensor([0.2, 0.6, 0.1])), torch.log(torch.tensor([0.2, 0.1, 0.4]))
    old.requires_grad_()
    found = clipped_policy_loss(minibatch(old.detach(), old, behavior), 0.2, 0.2, behavior_cap=2.0)
    # weights of 1, 6 held to 2, and 0.25; the ratio to the policy that the update began with is 1
    assert float(found.value.detach()) == pytest.approx(-(1.0 + 2.0 + 0.25) / 3)
    assert float(found.metrics["actor/behave_weight"]) == pytest.approx((1.0 + 2.0 + 0.25) / 3)
    assert not found.metrics["actor/behave_weight"].requires_grad


def test_with_weights_that_did_not_change_it_is_ppo_to_the_last_bit() -> None:
    fresh = samples_of(policy_of(0))
    stale = replace(fresh, old_log_probs=fresh.log_probs)
    learnt = {}
    for name, samples in (("plain", fresh), ("decoupled", stale)):
        learner = Learner(policy_of(0), ALGORITHM, config=LearnerConfig(global_batch_size=4))
        metrics = learner.update(samples, 0)
        learnt[name] = [tensor.numpy().tobytes() for tensor in learner.policy.state_dict().values()]
        assert metrics.pop("actor/behave_weight", 1.0) == 1.0
        learnt[f"{name} metrics"] = metrics
    assert learnt["decoupled"] == learnt["plain"]
    assert learnt["decoupled metrics"] == learnt["plain metrics"]


def test_the_clipped_ratio_is_to_the_policy_that_the_update_begins_with() -> None:
    behavior, old = torch.zeros(2), torch.full((2,), np.log(1.5))
    current = torch.full((2,), np.log(3.0))
    # ρ = 3 / 1.5, held to 1.1; w = 1.5: L = -1.5 · 1.1
    assert float(clipped_policy_loss(minibatch(current, old, behavior), 0.1, 0.1).value) == pytest.approx(-1.65)
    # Against the policy that acted, it would be -1.1.
    assert float(clipped_policy_loss(minibatch(current, behavior), 0.1, 0.1).value) == pytest.approx(-1.1)
    # ρ = 1.05, which is not held back, though the policy that acted is further away: L = -1.5 · 1.05
    current = torch.full((2,), np.log(1.5 * 1.05))
    assert float(clipped_policy_loss(minibatch(current, old, behavior), 0.1, 0.1).value) == pytest.approx(-1.575)


def test_a_learner_recomputes_what_older_weights_chose() -> None:
    seen: dict[str, Minibatch] = {}

    class Watching(PPO):
        def loss(self, batch: Minibatch) -> Any:
            seen.setdefault("batch", batch)
            return super().loss(batch)

    newer = policy_of(1)
    learner = Learner(newer, Watching(max_staleness=1, update_epoch=1), config=LearnerConfig(1000, micro_batch_size=5))
    episode = episode_of(samples_of(policy_of(0), 6))
    samples, layout, _ = learner.prepare([(0, episode)], stale=True)
    with torch.no_grad():
        wanted = newer.evaluate(samples.observations, samples.chosen).log_probs.numpy()
    assert samples.old_log_probs is not None
    assert samples.log_probs is not None
    np.testing.assert_allclose(samples.old_log_probs, wanted, rtol=1e-5)
    assert not np.allclose(samples.old_log_probs, samples.log_probs)
    metrics = learner.update(samples, 0, layout=layout)
    assert metrics["actor/behave_weight"] != 1.0
    current, old = seen["batch"].log_probs, seen["batch"].old_log_probs
    assert current is not None
    assert old is not None
    assert float(current.detach().sub(old).abs().max()) < 1e-5, "it is not stale to it"


def test_what_does_not_fit_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_staleness": -1}, "0 or more, got -1"),
        ({"behave_weight_threshold": 3.0}, "max_staleness is 0"),
        ({"behave_weight_threshold": 0.5, "max_staleness": 1}, "at least 1"),
    ]
    for wrong, says in refused:
        with pytest.raises(ConfigError, match=says):
            PPO(**wrong)
