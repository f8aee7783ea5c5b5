"""What one update minimises, term by term, for a part of a minibatch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyarms.algorithms.config import AlgorithmConfig
from manyarms.algorithms.losses import (
    at_level,
    behaviour_weight,
    clipped_policy_loss,
    kl_to_reference,
    masked_mean,
    spread,
    value_loss,
)
from manyarms.learning.samples import Samples
from manyarms.policies.heads import Evaluation


@dataclass(frozen=True)
class Totals:
    """How much the whole minibatch holds, over all its parts and ranks: means of parts then add up to its mean."""

    decisions: float
    actions: float
    width: int
    """Numbers an action."""

    def at(self, level: str) -> float:
        return {
            "chunk_level": self.decisions,
            "action_level": self.actions,
            "token_level": self.actions * self.width,
        }[level]


class Objective:
    """The loss of a part, and the metrics that go with it, all as shares of the minibatch's."""

    def __init__(self, algorithm: AlgorithmConfig, batch: Samples, totals: Totals, device: torch.device) -> None:
        self._algorithm, self._totals, self._device = algorithm, totals, device
        self._batch = batch
        self._taken = self._tensor(batch.mask)
        self.metrics: dict[str, Tensor] = {}

    def loss(self, found: Evaluation, reference: Tensor | None) -> Tensor:
        """Add up the terms; `reference` are log-probabilities of the policy that `kl_beta` holds to."""
        algorithm = self._algorithm
        loss = self._policy(found)
        # L = L_policy - β_H H + β_KL KL + c_V L_V
        entropy = self._entropy(found)
        loss = loss - algorithm.entropy_bonus * entropy
        if reference is not None:
            loss = loss + algorithm.kl_beta * self._distance(found, reference)
        if found.values is not None:
            loss = loss + algorithm.value_coef * self._critic(found.values)
        self.metrics["actor/loss"] = loss.detach()
        return loss

    def _policy(self, found: Evaluation) -> Tensor:
        algorithm, level = self._algorithm, self._algorithm.logprob_type
        log_probs, mask = at_level(found.log_probs, self._taken, level)
        old, _ = at_level(self._tensor(self._batch.log_probs), self._taken, level)
        advantages = spread(self._tensor(self._batch.advantages), log_probs)
        if self._batch.proximal is not None:
            # w max(-A ρ, …) = max(-(w A) ρ, …), for w is never negative
            proximal, _ = at_level(self._tensor(self._batch.proximal), self._taken, level)
            weight = behaviour_weight(proximal, old, algorithm.behave_cap)
            old, advantages = proximal, advantages * weight
            self.metrics["actor/behave_weight"] = masked_mean(weight, mask, self._totals.at(level))
        actor = clipped_policy_loss(
            log_probs,
            old,
            advantages,
            mask,
            clip_low=algorithm.clip_ratio_low,
            clip_high=algorithm.clip_ratio_high,
            clip_c=algorithm.clip_ratio_c,
            total=self._totals.at(level),
        )
        self.metrics["actor/policy_loss"] = actor.loss.detach()
        self.metrics["actor/approx_kl"] = actor.approx_kl
        self.metrics["actor/pg_clipfrac"] = actor.clip_fraction
        self.metrics["actor/ratio"] = actor.ratio
        return actor.loss

    def _entropy(self, found: Evaluation) -> Tensor:
        level = self._algorithm.entropy_type
        entropy = masked_mean(*at_level(found.entropy, self._taken, level), self._totals.at(level))
        self.metrics["actor/entropy_loss"] = entropy.detach()
        return entropy

    def _distance(self, found: Evaluation, reference: Tensor) -> Tensor:
        level = self._algorithm.logprob_type
        log_probs, mask = at_level(found.log_probs, self._taken, level)
        theirs, _ = at_level(reference, self._taken, level)
        distance = kl_to_reference(log_probs, theirs, mask, self._totals.at(level))
        self.metrics["actor/kl_loss"] = distance.detach()
        return distance

    def _critic(self, values: Tensor) -> Tensor:
        assert self._batch.returns is not None
        assert self._batch.values is not None
        level = self._algorithm.reward_type
        critic = value_loss(
            values,
            self._tensor(self._batch.values),
            self._tensor(self._batch.returns),
            self._taken if level == "action_level" else self._taken.any(-1).to(values.dtype),
            value_clip=self._algorithm.value_clip,
            huber_delta=self._algorithm.huber_delta,
            total=self._totals.at(level),
        )
        self.metrics["actor/value_loss"] = critic.loss.detach()
        self.metrics["actor/value_clip_ratio"] = critic.clip_ratio
        return critic.loss

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)
