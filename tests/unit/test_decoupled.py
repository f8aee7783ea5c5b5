"""Decoupled PPO: actions of older weights, judged by the policy that an update begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyarms.algorithms.config import AlgorithmConfig
from manyarms.algorithms.losses import behaviour_weight
from manyarms.errors import ConfigError
from manyarms.learning.learner import Learner, LearnerConfig
from manyarms.learning.objective import Objective, Totals
from manyarms.learning.samples import Samples
from manyarms.policies.base import Observations
from manyarms.policies.heads import Evaluation
from manyarms.policies.registry import make_policy
from manyarms.policies.trainable import TrainablePolicy
from manyarms.simulators.base import Field, Spec
from manyarms.vector import EpisodeId

SPEC = Spec(observations={"state": Field((3,), "float32")}, actions={"": Field((2,), "float32", -1.0, 1.0)})
ALGORITHM = AlgorithmConfig(max_staleness=1, update_epoch=2)


def policy_of(seed: int) -> TrainablePolicy:
    found = make_policy("mlp", SPEC, {"chunk": 2, "hidden": 8, "value_head": True, "seed": seed})
    assert isinstance(found, TrainablePolicy)
    return found


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
        np.arange(count),
        rng.normal(size=count).astype(np.float32),
        found.values.numpy(),
    )


def loss_of(samples: Samples, log_probs: np.ndarray, algorithm: AlgorithmConfig) -> torch.Tensor:
    objective = Objective(algorithm, samples, Totals(len(samples), 2.0 * len(samples), 2), torch.device("cpu"))
    current = torch.from_numpy(log_probs)
    return objective.loss(Evaluation(current, torch.zeros_like(current), None), None)


def test_the_weight_is_how_much_likelier_an_action_became_up_to_a_bound() -> None:
    proximal, behaviour = torch.log(torch.tensor([0.2, 0.6, 0.1])), torch.log(torch.tensor([0.2, 0.1, 0.4]))
    proximal.requires_grad_()
    weight = behaviour_weight(proximal, behaviour, 2.0)
    assert weight.tolist() == pytest.approx([1.0, 2.0, 0.25])
    assert not weight.requires_grad


def test_with_weights_that_did_not_change_it_is_ppo_to_the_last_bit() -> None:
    fresh = samples_of(policy_of(0))
    stale = replace(fresh, proximal=fresh.log_probs)
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
    algorithm = AlgorithmConfig(max_staleness=1, logprob_type="token_level", clip_ratio_low=0.1, clip_ratio_high=0.1)
    samples = replace(
        samples_of(policy_of(0), 1), mask=np.ones((1, 2), np.float32), advantages=np.ones(1, np.float32), returns=None
    )
    behaviour = np.zeros((1, 2, 2), np.float32)
    proximal = np.full((1, 2, 2), np.log(1.5), np.float32)
    current = np.full((1, 2, 2), np.log(3.0), np.float32)
    samples = replace(samples, log_probs=behaviour, proximal=proximal, values=None)
    # ρ = 3 / 1.5, held to 1.1; w = 1.5: L = -1.5 · 1.1
    assert float(loss_of(samples, current, algorithm)) == pytest.approx(-1.65)
    # Against the policy that played, it would be -1.1.
    assert float(loss_of(replace(samples, proximal=None), current, algorithm)) == pytest.approx(-1.1)
    # ρ = 1.05, which is not held back, though the policy that played is further away: L = -1.5 · 1.05
    current = np.full((1, 2, 2), np.log(1.5 * 1.05), np.float32)
    assert float(loss_of(samples, current, algorithm)) == pytest.approx(-1.575)


def test_a_learner_judges_anew_what_older_weights_chose() -> None:
    old = samples_of(policy_of(0))
    learner = Learner(policy_of(1), ALGORITHM, config=LearnerConfig(micro_batch_size=5))
    anew = learner.judge_anew(old)
    with torch.no_grad():
        wanted = learner.policy.evaluate(old.observations, old.chosen).log_probs.numpy()
    assert anew.proximal is not None
    np.testing.assert_allclose(anew.proximal, wanted, rtol=1e-5)
    assert not np.allclose(anew.proximal, old.log_probs)
    metrics = learner.update(anew, 0)
    assert metrics["actor/behave_weight"] != 1.0


def test_what_does_not_fit_is_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_staleness": -1}, "as fresh as can be"),
        ({"behave_weight_threshold": 3.0}, "max_staleness is 0"),
        ({"behave_weight_threshold": 0.5, "max_staleness": 1}, "1 at least"),
    ]
    for wrong, says in refused:
        with pytest.raises(ConfigError, match=says):
            AlgorithmConfig(**wrong)
