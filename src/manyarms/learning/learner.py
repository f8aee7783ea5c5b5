"""One update: several passes over a batch of decisions, in minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyarms.algorithms.base import Algorithm, Minibatch, Targets, at_level
from manyarms.errors import ConfigError, LearningError
from manyarms.learning.adamw import AdamW
from manyarms.learning.parallel import ParallelPolicy, local_tensor, whole_tensor
from manyarms.learning.ranks import Ranks
from manyarms.learning.samples import Gathered, Layout, Samples, final_observations_of, gather, samples_from, shuffled
from manyarms.policies.heads import Evaluation
from manyarms.policies.trainable import Batched, TrainablePolicy
from manyarms.rollout import Episode

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
    """Decisions per optimiser step."""
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
        policy: Batched | TrainablePolicy,
        algorithm: Algorithm,
        optim: OptimConfig | None = None,
        config: LearnerConfig | None = None,
        reference: TrainablePolicy | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Train `policy`; `reference` is what `kl_beta` holds it to."""
        self.batched = policy if isinstance(policy, Batched) else Batched(policy)
        """What acts, and what says how much the end of an episode is worth."""
        policy = self.batched.policy
        self.policy, self.algorithm = policy, algorithm
        self.optim, self.config = optim or OptimConfig(), config or LearnerConfig()
        self.reference, self.ranks = reference, ranks or Ranks()
        _check_fit(policy, algorithm, self.optim, reference)
        policy.prepare_to_learn()
        self.steps = 0
        """Steps of the optimiser so far."""
        self.parallel = ParallelPolicy(policy, algorithm, self.ranks, self.config.training_backend)
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

    def prepare(
        self,
        episodes: Sequence[tuple[int, Episode]],
        time_limit: float = math.inf,
        filler: Episode | None = None,
        *,
        stale: bool = False,
    ) -> tuple[Samples, Layout, dict[str, float]]:
        """Return what this rank's episodes teach, where it lies among what all ranks have, and what to log of it.

        Each episode comes with its place in the schedule of all ranks; a rank without any takes `filler` along without
        effect. `stale`: older weights than these have acted. Every rank has to call this.
        """
        own = [episode for _, episode in episodes]
        gathered = gather(episodes, self._final_values(own), time_limit, self.ranks)
        targets = self.algorithm.targets(gathered.episodes)
        needed = ("chosen", "log_probs") if self.algorithm.needs_log_probs else ("chosen",)
        samples = samples_from(gathered, targets, own, filler, needed)
        if stale:
            samples = self._with_old_log_probs(samples)
        return samples, gathered.layout, _summary(gathered, targets)

    def _final_values(self, episodes: Sequence[Episode]) -> np.ndarray | None:
        """Return what the critic makes of the last frames: [E]."""
        if self.algorithm.critic is None:
            return None
        with self.parallel.whole():
            values = self.batched.values(final_observations_of(episodes))
        # At action level, what follows the last frame is worth what its first action would be.
        return values if values.ndim == 1 else values[:, 0]

    def _with_old_log_probs(self, samples: Samples) -> Samples:
        """Add the log-probabilities that the policy gives now to actions that older weights chose."""
        size = self.config.micro_batch_size or self.config.global_batch_size
        parts = []
        with torch.no_grad(), self.parallel.whole():
            for start in range(0, len(samples), size):
                part = samples.rows(np.arange(start, min(start + size, len(samples))))
                parts.append(self.policy.evaluate(part.observations, part.chosen).log_probs.float().cpu().numpy())
        return replace(samples, old_log_probs=np.concatenate(parts))

    def update(
        self, samples: Samples, iteration: int, progress: float = 0.0, layout: Layout | None = None
    ) -> dict[str, float]:
        """Learn from this rank's samples; return the means of what is logged.

        `progress` is the fraction of training that is over; `layout` says what the other ranks learn from.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = group["first_lr"] * _SCHEDULES[self.optim.schedule](progress)
        self.policy.train()
        layout = samples.layout(self.ranks) if layout is None else layout
        means: list[dict[str, float]] = []
        for epoch in range(self.algorithm.update_epoch):
            seed = (self.config.seed, iteration, epoch)
            minibatches = shuffled(len(layout), self.config.global_batch_size, seed)
            means += self._sum_over_ranks(
                [self._step(samples, layout, index, (iteration, epoch)) for index in minibatches]
            )
            if self.algorithm.target_kl is not None and means[-1]["actor/approx_kl"] > self.algorithm.target_kl:
                break
        self.policy.eval()
        metrics = {name: float(np.mean([one[name] for one in means])) for name in means[0]}
        metrics["actor/lr"] = float(self.optimizer.param_groups[0]["lr"])
        return metrics

    def _step(self, samples: Samples, layout: Layout, index: np.ndarray, draw: tuple[int, int]) -> dict[str, Tensor]:
        """Take one optimiser step for a minibatch of all ranks; return this rank's share of its means.

        `draw` is the update and the pass: what an own loss draws is new in each.
        """
        self.optimizer.zero_grad(set_to_none=True)
        actions = float(layout.actions[index].sum())
        numbers = 1 if samples.log_probs is None else samples.log_probs.shape[-1]
        counts = (float(len(index)), actions, actions * numbers)
        parts = layout.micro_batches(index, self.config.micro_batch_size)
        shares: dict[str, Tensor] = {}
        for i, (rows, is_filler) in enumerate(parts):
            part = samples.rows(rows).without_effect() if is_filler else samples.rows(rows)
            with self.parallel.adding_up(last=i == len(parts) - 1):
                found, own_loss = self.parallel.evaluate(part.observations, part.chosen, draw)
                reference = self._reference_log_probs(part)
                given = part.tensors(self.policy.device)
                loss = self.algorithm.loss(minibatch_of(self.algorithm, found, given, counts, reference, own_loss))
                # Ranks' gradients are averaged, but their losses are shares of one mean: they have to be summed.
                (loss.value * self.ranks.world).backward()
            for name, value in {**loss.metrics, "actor/loss": loss.value.detach()}.items():
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

    def _sum_over_ranks(self, steps: list[dict[str, Tensor]]) -> list[dict[str, float]]:
        """Sum the ranks' shares of every step's means."""
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


def minibatch_of(
    algorithm: Algorithm,
    found: Evaluation | None,
    given: Mapping[str, Tensor],
    counts: tuple[float, float, float],
    reference_log_probs: Tensor | None = None,
    own_loss: Tensor | None = None,
) -> Minibatch:
    """Return what an algorithm sees of some decisions.

    Log-probabilities, [B, K, A], are summed up to its level; an own loss, [B, K, A] or longer, becomes the mean over
    the numbers of a decision that were executed.
    """
    mask, advantages, old = given["mask"], given["advantages"], given.get("old_log_probs")

    def at(x: Tensor | None, level: str = algorithm.logprob_type) -> Tensor | None:
        return at_level(x, mask, level) if x is not None and algorithm.needs_log_probs else None

    acted, current = at(given.get("log_probs")), at(None if found is None else found.log_probs)
    if current is not None:
        advantages = advantages[(..., *[None] * (current.dim() - advantages.dim()))].expand_as(current)
    return Minibatch(
        advantages=advantages,
        log_probs=current,
        old_log_probs=acted if old is None else at(old),
        behavior_log_probs=None if old is None else acted,
        reference_log_probs=at(reference_log_probs),
        own_loss=None if own_loss is None else _per_decision(own_loss, mask),
        entropy=at(None if found is None else found.entropy, algorithm.entropy_type),
        values=None if found is None else found.values,
        old_values=given.get("values"),
        returns=given.get("returns"),
        mask=mask,
        counts=counts,
    )


def _per_decision(loss: Tensor, mask: Tensor) -> Tensor:
    """Return the mean [B] of a loss [B, K or more, A] over the actions of `mask` [B, K]."""
    per_action = loss[:, : mask.shape[1]].mean(-1)
    return (per_action * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)


def _summary(gathered: Gathered, targets: Targets) -> dict[str, float]:
    """Return the mean advantage of all ranks' decisions or actions, and how much of the returns the critic foresaw."""
    advantages = gathered.per_decision(targets.advantages)
    executed = gathered.mask if advantages.ndim == 2 else slice(None)
    metrics = {"rollout/advantages_mean": float(advantages[executed].mean())}
    if targets.returns is not None and gathered.episodes.values is not None:
        returns = gathered.per_decision(targets.returns)[executed]
        values = gathered.per_decision(gathered.episodes.values)[executed]
        metrics["rollout/returns_mean"] = float(returns.mean())
        metrics["critic/explained_variance"] = explained_variance(returns, values)
    return metrics


def explained_variance(returns: np.ndarray, values: np.ndarray) -> float:
    """Return how much of the returns' variance the critic foresaw: 1 all, 0 none, below 0 worse than a constant."""
    # 1 - Var(R - V) / Var(R)
    variance = float(returns.var())
    return 1.0 - float((returns - values).var()) / variance if variance > 0 else 0.0


def _check_fit(
    policy: TrainablePolicy, algorithm: Algorithm, optim: OptimConfig, reference: TrainablePolicy | None
) -> None:
    """Refuse what cannot work together, or would do nothing."""
    if not policy.explores and algorithm.needs_evaluation:
        raise ConfigError(
            "this policy reports no log-probabilities, so it cannot be trained by reinforcement learning",
            do="let it explore (pi0: noise: flow_sde)",
        )
    if algorithm.needs_own_loss and not policy.has_own_loss:
        raise ConfigError(
            f"{algorithm.adv_type} learns by the policy's own loss, and this policy has none for what it chose",
            do="give it one (docs/add/algorithm.md; pi0: noise: none)",
        )
    if algorithm.critic is not None and policy.critic is None:
        raise ConfigError(
            f"{algorithm.adv_type} needs a policy that estimates values",
            do=f"critic: {algorithm.critic}; in a config, actor.model.add_value_head: true",
        )
    if algorithm.critic is None and policy.critic is not None:
        raise ConfigError(
            f"{algorithm.adv_type} uses no critic: the policy's would do nothing", do="leave add_value_head out"
        )
    if policy.critic != algorithm.critic:
        raise ConfigError(
            f"reward_type is {algorithm.critic}, but the policy's values are {policy.critic}",
            do=f"critic: {algorithm.critic}",
        )
    if algorithm.critic is None and (optim.value_lr is not None or optim.critic_warmup_steps):
        raise ConfigError("there is no critic: value_lr and critic_warmup_steps would do nothing", do="leave them out")
    if optim.critic_warmup_steps and not policy.critic_parameters():
        raise ConfigError(
            "critic_warmup_steps would freeze everything: the policy has no weights that only values depend on",
            do="name its critic's modules in critic_parts",
        )
    if algorithm.kl_beta and reference is None:
        raise ConfigError("kl_beta needs a reference policy")
