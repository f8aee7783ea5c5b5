"""One update: several passes over a batch of decisions, in minibatches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyarms.algorithms.config import AlgorithmConfig
from manyarms.algorithms.losses import (
    at_level,
    clipped_policy_loss,
    explained_variance,
    kl_to_reference,
    masked_mean,
    spread,
    value_loss,
)
from manyarms.errors import ConfigError, LearningError
from manyarms.learning.samples import Samples, shuffled
from manyarms.policies.network import NetworkPolicy


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser."""

    lr: float = 3e-4
    value_lr: float | None = None
    """Of the critic's head; default: lr."""
    clip_grad: float = 1.0
    weight_decay: float = 0.0
    critic_warmup_steps: int = 0
    """First steps in which only the critic learns."""
    schedule: str = "constant"
    """constant, or linear: down to nothing at the end of training."""

    def __post_init__(self) -> None:
        if self.schedule not in ("constant", "linear"):
            raise ConfigError(f"schedule is {self.schedule!r}", do="choose constant or linear")
        if self.lr <= 0 or (self.value_lr is not None and self.value_lr <= 0) or self.clip_grad <= 0:
            raise ConfigError("lr, value_lr and clip_grad must be above 0")


@dataclass(frozen=True)
class LearnerConfig:
    """How a batch is cut up."""

    global_batch_size: int = 256
    """Decisions a step of the optimiser."""
    micro_batch_size: int | None = None
    """Decisions in memory at once; default: all of a step's."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.global_batch_size < 1 or (self.micro_batch_size is not None and self.micro_batch_size < 1):
            raise ConfigError("batch sizes must be at least 1")


class Learner:
    """Moves a policy's weights towards what turned out well."""

    def __init__(
        self,
        policy: NetworkPolicy,
        algorithm: AlgorithmConfig,
        optim: OptimConfig | None = None,
        config: LearnerConfig | None = None,
        reference: NetworkPolicy | None = None,
    ) -> None:
        """Train `policy`; `reference` is what `kl_beta` holds it to."""
        self.policy, self.algorithm = policy, algorithm
        self.optim, self.config = optim or OptimConfig(), config or LearnerConfig()
        self.reference = reference
        if algorithm.loss_type == "actor_critic" and policy.value is None:
            raise ConfigError("an actor-critic loss needs a policy with a value head", do="value_head: true")
        if algorithm.loss_type == "actor" and policy.value is not None:
            raise ConfigError(
                f"{algorithm.adv_type} uses no critic: value_head would do nothing", do="value_head: false"
            )
        if algorithm.kl_beta and reference is None:
            raise ConfigError("kl_beta needs a reference policy")
        self.steps = 0
        """Steps of the optimiser so far."""
        self.optimizer = torch.optim.AdamW(self._groups(), eps=1e-5, weight_decay=self.optim.weight_decay)

    def _groups(self) -> list[dict[str, Any]]:
        critic = list(self.policy.value.parameters()) if self.policy.value is not None else []
        others = [p for p in self.policy.parameters() if all(p is not c for c in critic)]
        groups: list[dict[str, Any]] = [{"params": others, "lr": self.optim.lr}]
        if critic:
            groups.append({"params": critic, "lr": self.optim.value_lr or self.optim.lr})
        for group in groups:
            group["first_lr"] = group["lr"]
        return groups

    def update(self, samples: Samples, iteration: int, progress: float = 0.0) -> dict[str, float]:
        """Learn from a batch; return the means of what people watch. `progress` is how much of training is over."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["first_lr"] * (1.0 - progress if self.optim.schedule == "linear" else 1.0)
        self.policy.train()
        seen: list[dict[str, float]] = []
        for epoch in range(self.algorithm.update_epoch):
            for index in shuffled(len(samples), self.config.global_batch_size, (self.config.seed, iteration, epoch)):
                seen.append(self._step(samples.pick(index)))
            if self.algorithm.target_kl is not None and seen[-1]["actor/approx_kl"] > self.algorithm.target_kl:
                break
        self.policy.eval()
        metrics = {name: float(np.mean([one[name] for one in seen])) for name in seen[0]}
        metrics["actor/lr"] = float(self.optimizer.param_groups[0]["lr"])
        if samples.returns is not None and samples.values is not None:
            foreseen = explained_variance(torch.from_numpy(samples.values), torch.from_numpy(samples.returns))
            metrics["critic/explained_variance"] = foreseen
        return metrics

    def _step(self, batch: Samples) -> dict[str, float]:
        """Take one step of the optimiser, over micro-batches whose gradients add up."""
        self.optimizer.zero_grad(set_to_none=True)
        size = self.config.micro_batch_size or len(batch)
        parts: list[dict[str, float]] = []
        for start in range(0, len(batch), size):
            part = batch.pick(np.arange(start, min(start + size, len(batch))))
            loss, metrics = self._loss(part)
            share = len(part) / len(batch)
            (loss * share).backward()
            parts.append({name: value * share for name, value in metrics.items()})
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.optim.clip_grad)
        if not math.isfinite(float(norm)):
            raise LearningError(*self._first_bad())
        self.optimizer.step()
        self.steps += 1
        totals = {name: sum(part[name] for part in parts) for name in parts[0]}
        return {**totals, "actor/grad_norm": float(norm)}

    def _loss(self, batch: Samples) -> tuple[Tensor, dict[str, float]]:
        algorithm = self.algorithm
        device = self.policy.offset.device
        found = self.policy.evaluate(batch.observations, batch.chosen)
        taken = torch.from_numpy(batch.mask).to(device)
        log_probs, mask = at_level(found.log_probs, taken, algorithm.logprob_type)
        old, _ = at_level(torch.from_numpy(batch.log_probs).to(device), taken, algorithm.logprob_type)
        advantages = spread(torch.from_numpy(batch.advantages).to(device), log_probs)
        actor = clipped_policy_loss(
            log_probs,
            old,
            advantages,
            mask,
            clip_low=algorithm.clip_ratio_low,
            clip_high=algorithm.clip_ratio_high,
            clip_c=algorithm.clip_ratio_c,
        )
        entropy = masked_mean(*at_level(found.entropy, taken, algorithm.entropy_type))
        warming = self.steps < self.optim.critic_warmup_steps
        loss = torch.zeros((), device=device) if warming else actor.loss - algorithm.entropy_bonus * entropy
        metrics = {
            "actor/policy_loss": float(actor.loss.detach()),
            "actor/entropy_loss": float(entropy.detach()),
            "actor/approx_kl": float(actor.approx_kl),
            "actor/pg_clipfrac": float(actor.clip_fraction),
            "actor/ratio": float(actor.ratio),
        }
        if algorithm.kl_beta and self.reference is not None and not warming:
            with torch.no_grad():
                reference = self.reference.evaluate(batch.observations, batch.chosen).log_probs
            distance = kl_to_reference(log_probs, at_level(reference, taken, algorithm.logprob_type)[0], mask)
            loss = loss + algorithm.kl_beta * distance
            metrics["actor/kl_loss"] = float(distance.detach())
        if found.values is not None and batch.returns is not None and batch.values is not None:
            critic = value_loss(
                found.values,
                torch.from_numpy(batch.values).to(device),
                torch.from_numpy(batch.returns).to(device),
                torch.ones_like(found.values),
                value_clip=algorithm.value_clip,
                huber_delta=algorithm.huber_delta,
            )
            loss = loss + algorithm.value_coef * critic.loss
            metrics["actor/value_loss"] = float(critic.loss.detach())
            metrics["actor/value_clip_ratio"] = float(critic.clip_ratio)
        metrics["actor/loss"] = float(loss.detach())
        return loss, metrics

    def _first_bad(self) -> tuple[str, ...]:
        """Name the first tensor that is not finite."""
        for name, parameter in self._named():
            for kind, tensor in (("weights", parameter), ("gradient", parameter.grad)):
                if tensor is not None and not torch.isfinite(tensor).all():
                    return (f"the {kind} of {name} is not finite after {self.steps} steps",)
        return (f"the gradient's norm is not finite after {self.steps} steps",)

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.policy.named_parameters()
