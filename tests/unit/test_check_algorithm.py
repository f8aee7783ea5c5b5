"""The conformance suite of algorithms: ours hold to it, and it names what others break."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from manyarms.algorithms import BUILT_IN, find_algorithm
from manyarms.algorithms.base import Episodes, Group, Loss, Minibatch, Targets
from manyarms.algorithms.grpo import GRPO
from manyarms.algorithms.ppo import PPO
from manyarms.algorithms.rwfm import RWFM
from manyarms.testing.algorithms import check_algorithm


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_algorithm_holds_to_the_suite(name: str) -> None:
    check_algorithm(name)
    if find_algorithm(name).needs_log_probs:
        check_algorithm(name, logprob_type="action_level", entropy_bonus=0.1)


def test_values_of_actions_hold_to_it_too() -> None:
    check_algorithm("gae", reward_type="action_level", logprob_type="token_level", value_clip=0.2, clip_ratio_c=3.0)


@dataclass(frozen=True, kw_only=True)
class AveragesByItself(PPO):
    def loss(self, batch: Minibatch) -> Loss:
        assert batch.log_probs is not None
        return Loss((-batch.advantages * batch.log_probs).mean())


@dataclass(frozen=True, kw_only=True)
class SeesPadding(PPO):
    def targets(self, episodes: Episodes) -> Targets:
        found = super().targets(episodes)
        assert episodes.values is not None
        return replace(found, advantages=found.advantages - episodes.values.mean())


@dataclass(frozen=True, kw_only=True)
class WrongShape(GRPO):
    def targets(self, episodes: Episodes) -> Targets:
        return Targets(super().targets(episodes).advantages[:, None, None, None])


@dataclass(frozen=True, kw_only=True)
class WithoutReturns(PPO):
    def targets(self, episodes: Episodes) -> Targets:
        return replace(super().targets(episodes), returns=None)


@dataclass(frozen=True, kw_only=True)
class Fickle(GRPO):
    def keeps(self, group: Group) -> bool:
        return bool(np.random.default_rng().random() < 0.5)

    def targets(self, episodes: Episodes) -> Targets:
        return Targets(np.random.default_rng().normal(size=len(episodes.rewards)))


@dataclass(frozen=True, kw_only=True)
class PushesPadding(GRPO):
    logprob_type: str = "action_level"

    def loss(self, batch: Minibatch) -> Loss:
        assert batch.log_probs is not None
        return Loss((-batch.advantages * batch.log_probs).sum() / batch.counts[1])


@dataclass(frozen=True, kw_only=True)
class HoldsTheGraph(PPO):
    def loss(self, batch: Minibatch) -> Loss:
        found = super().loss(batch)
        return Loss(found.value, {**found.metrics, "actor/mine": found.value})


@dataclass(frozen=True, kw_only=True)
class WeighsByItself(RWFM):
    def loss(self, batch: Minibatch) -> Loss:
        assert batch.own_loss is not None
        return Loss((batch.advantages.exp() * batch.own_loss).mean())


@dataclass(frozen=True, kw_only=True)
class AsksForNothing(RWFM):
    needs_own_loss = False


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (AveragesByItself, "do not add up"),
        (SeesPadding, "padding"),
        (WrongShape, "advantages have the shape"),
        (WithoutReturns, "must give its returns"),
        (PushesPadding, "not executed have a gradient"),
        (HoldsTheGraph, "holds on to the graph"),
        (WeighsByItself, "do not add up"),
        (AsksForNothing, "nothing that depends on the policy"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_promise_is_named(kind: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_algorithm(f"{__name__}:{kind.__name__}")


def test_an_algorithm_that_decides_by_chance_is_named() -> None:
    said = set()
    for _ in range(40):
        with pytest.raises(AssertionError) as caught:
            check_algorithm(f"{__name__}:Fickle")
        said.add(str(caught.value).partition("\n")[0])
    assert said == {"keeps() decides differently on the same group", "targets() gives others the second time"}
