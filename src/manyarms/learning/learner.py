"""One update: several passes over a batch of decisions, in minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyarms.algorithms.config import AlgorithmConfig
from manyarms.errors import ConfigError, LearningError
from manyarms.learning.adamw import AdamW
from manyarms.learning.objective import Objective, Totals
from manyarms.learning.parallel import ParallelPolicy, local_tensor, whole_tensor
from manyarms.learning.ranks import Ranks
from manyarms.learning.samples import Samples, shuffled
from manyarms.policies.trainable import TrainablePolicy

#: From how much of training is over to the share of the learning rate that is left.
_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser."""

    lr: float = 3e-4
    value_lr: float | None = None
    """Of the critic's head; default: lr."""
    clip_grad: float = 1.0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-5
    critic_warmup_steps: int = 0
    """First steps in which only the critic learns."""
    schedule: str = "constant"
    """constant, or down to nothing at the end of training: linear, cosine."""

    def __post_init__(self) -> None:
        if self.schedule not in _SCHEDULES:
            raise ConfigError(f"schedule is {self.schedule!r}", do=f"choose from {', '.join(_SCHEDULES)}")
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
    training_backend: str = "ddp"
    """With several ranks: ddp, a copy each, or fsdp, weights in shards."""

    def __post_init__(self) -> None:
        if self.global_batch_size < 1 or (self.micro_batch_size is not None and self.micro_batch_size < 1):
            raise ConfigError("batch sizes must be at least 1")


class Learner:
    """Moves a policy's weights towards what turned out well."""

    def __init__(
        self,
        policy: TrainablePolicy,
        algorithm: AlgorithmConfig,
        optim: OptimConfig | None = None,
        config: LearnerConfig | None = None,
        reference: TrainablePolicy | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Train `policy`; `reference` is what `kl_beta` holds it to."""
        self.policy, self.algorithm = policy, algorithm
        self.optim, self.config = optim or OptimConfig(), config or LearnerConfig()
        self.reference, self.ranks = reference, ranks or Ranks()
        _check_fit(policy, algorithm, self.optim, reference)
        policy.prepare_to_learn()
        self.steps = 0
        """Steps of the optimiser so far."""
        self.parallel = ParallelPolicy(policy, self.ranks, self.config.training_backend)
        self.optimizer = AdamW(
            self._groups(),
            betas=(self.optim.adam_beta1, self.optim.adam_beta2),
            eps=self.optim.adam_eps,
            weight_decay=self.optim.weight_decay,
        )

    def _groups(self) -> list[dict[str, Any]]:
        critic = self.policy.critic_parameters()
        others = [p for p in self.policy.parameters() if p.requires_grad and all(p is not c for c in critic)]
        groups: list[dict[str, Any]] = [{"params": others, "lr": self.optim.lr}]
        if critic:
            groups.append({"params": critic, "lr": self.optim.value_lr or self.optim.lr})
        for group in groups:
            group["first_lr"] = group["lr"]
        return groups

    def judge_anew(self, samples: Samples) -> Samples:
        """Add what the policy makes now of actions that older weights chose: decoupled PPO needs both."""
        size = self.config.micro_batch_size or self.config.global_batch_size
        parts = []
        with torch.no_grad(), self.parallel.whole():
            for start in range(0, len(samples), size):
                part = samples.pick(np.arange(start, min(start + size, len(samples))))
                parts.append(self.policy.evaluate(part.observations, part.chosen).log_probs.float().cpu().numpy())
        return replace(samples, proximal=np.concatenate(parts))

    def update(self, samples: Samples, iteration: int, progress: float = 0.0) -> dict[str, float]:
        """Learn from a batch; return the means of what people watch. `progress` is how much of training is over."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["first_lr"] * _SCHEDULES[self.optim.schedule](progress)
        self.policy.train()
        layout = _Layout(samples, self.ranks)
        means: list[dict[str, float]] = []
        for epoch in range(self.algorithm.update_epoch):
            seed = (self.config.seed, iteration, epoch)
            batches = shuffled(layout.count, self.config.global_batch_size, seed)
            means += self._together([self._step(samples, layout, index) for index in batches])
            if self.algorithm.target_kl is not None and means[-1]["actor/approx_kl"] > self.algorithm.target_kl:
                break
        self.policy.eval()
        metrics = {name: float(np.mean([one[name] for one in means])) for name in means[0]}
        metrics["actor/lr"] = float(self.optimizer.param_groups[0]["lr"])
        return metrics

    def _step(self, samples: Samples, layout: _Layout, index: np.ndarray) -> dict[str, Tensor]:
        """Take one step of the optimiser for a minibatch of all ranks; return this rank's share of its means."""
        self.optimizer.zero_grad(set_to_none=True)
        totals = Totals(float(len(index)), layout.actions(index), samples.log_probs.shape[-1])
        parts = layout.parts(index, self.config.micro_batch_size)
        shares: dict[str, Tensor] = {}
        for i, (rows, real) in enumerate(parts):
            part = samples.pick(rows) if real else samples.pick(rows).without_effect()
            with self.parallel.adding_up(last=i == len(parts) - 1):
                objective = Objective(self.algorithm, part, totals, self.policy.device)
                found = self.parallel.evaluate(part.observations, part.chosen)
                loss = objective.loss(found, self._reference_log_probs(part))
                # Ranks' gradients are averaged, but their losses are shares of one mean: they have to be added up.
                (loss * self.ranks.world).backward()
            for name, value in objective.metrics.items():
                shares[name] = shares[name] + value if name in shares else value
        return {**shares, "actor/grad_norm": self._apply_gradients()}

    def _reference_log_probs(self, part: Samples) -> Tensor | None:
        if self.reference is None or not self.algorithm.kl_beta:
            return None
        with torch.no_grad():
            return self.reference.evaluate(part.observations, part.chosen).log_probs

    def _apply_gradients(self) -> Tensor:
        """Step, unless something is not finite; return the gradient's norm."""
        if self.steps < self.optim.critic_warmup_steps:
            for parameter in self.optimizer.param_groups[0]["params"]:
                parameter.grad = None
        norm = whole_tensor(nn.utils.clip_grad_norm_(self.policy.parameters(), self.optim.clip_grad))
        if not math.isfinite(float(norm)):
            raise LearningError(self._first_bad())
        self.optimizer.step()
        self.steps += 1
        return norm / self.ranks.world

    def _together(self, steps: list[dict[str, Tensor]]) -> list[dict[str, float]]:
        """Add up the ranks' shares of every step's means."""
        names = list(steps[0])
        shares = torch.stack([torch.stack([step[name].float() for name in names]) for step in steps])
        totals = self.ranks.add_up(shares.flatten().tolist())
        return [
            dict(zip(names, totals[start : start + len(names)], strict=True))
            for start in range(0, len(totals), len(names))
        ]

    def _first_bad(self) -> str:
        """Name the first tensor that is not finite."""
        for name, parameter in self.policy.named_parameters():
            for kind, tensor in (("weights", parameter), ("gradient", parameter.grad)):
                if tensor is not None and not torch.isfinite(local_tensor(tensor)).all():
                    return f"the {kind} of {name} is not finite after {self.steps} steps"
        return f"the gradient's norm is not finite after {self.steps} steps"


class _Layout:
    """Where this rank's decisions lie among those of all ranks: minibatches are drawn from all of them together.

    Nothing has to be moved: each rank computes its own part of every minibatch. So what is learnt does not depend on
    how many ranks there are.
    """

    def __init__(self, samples: Samples, ranks: Ranks) -> None:
        everyone = ranks.gather((samples.places, samples.mask.sum(1)[: len(samples.places)]))
        self._rank = ranks.rank
        self.count = sum(len(places) for places, _ in everyone)
        self._actions = np.zeros(self.count)
        self._owner = np.zeros(self.count, np.int64)
        self._row = np.zeros(self.count, np.int64)
        for rank, (places, actions) in enumerate(everyone):
            self._actions[places], self._owner[places] = actions, rank
            self._row[places] = np.arange(len(places))
        self._world = ranks.world

    def actions(self, index: np.ndarray) -> float:
        """Return how many actions some decisions took."""
        return float(self._actions[index].sum())

    def parts(self, index: np.ndarray, size: int | None) -> list[tuple[np.ndarray, bool]]:
        """Return this rank's rows of a minibatch in parts, as many on every rank; False: a part only to keep step."""
        owned = [int((self._owner[index] == rank).sum()) for rank in range(self._world)]
        size = size or max(owned)
        rows = self._row[index[self._owner[index] == self._rank]]
        parts = [(rows[start : start + size], True) for start in range(0, len(rows), size)]
        idle = [(np.zeros(1, np.int64), False)] * (-(-max(owned) // size) - len(parts))
        return parts + idle


def _check_fit(
    policy: TrainablePolicy, algorithm: AlgorithmConfig, optim: OptimConfig, reference: TrainablePolicy | None
) -> None:
    """Refuse what cannot work together, or would do nothing."""
    if not policy.explores:
        raise ConfigError(
            "this policy draws nothing whose probability it could tell",
            do="let it explore (pi0: noise: flow_sde; openvla_oft: sample: true)",
        )
    if algorithm.loss_type == "actor_critic" and policy.value is None:
        raise ConfigError("an actor-critic loss needs a policy with a value head", do="value_head: true")
    if algorithm.loss_type == "actor" and policy.value is not None:
        raise ConfigError(f"{algorithm.adv_type} uses no critic: value_head would do nothing", do="value_head: false")
    if policy.value is not None and policy.config.value_type != algorithm.reward_type:
        raise ConfigError(
            f"reward_type is {algorithm.reward_type}, but the policy's values are {policy.config.value_type}",
            do=f"value_type: {algorithm.reward_type}",
        )
    if algorithm.loss_type == "actor" and (optim.value_lr is not None or optim.critic_warmup_steps):
        raise ConfigError("there is no critic: value_lr and critic_warmup_steps would do nothing", do="leave them out")
    if algorithm.kl_beta and reference is None:
        raise ConfigError("kl_beta needs a reference policy")
