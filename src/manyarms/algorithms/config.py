"""What can be chosen about an algorithm, checked once; a setting that would do nothing is an error."""

from __future__ import annotations

import math
from dataclasses import dataclass

from manyarms.algorithms.levels import LEVELS
from manyarms.errors import ConfigError

ADVANTAGES = ("gae", "grpo", "rloo")
LOSSES = ("actor_critic", "actor")


@dataclass(frozen=True)
class AlgorithmConfig:
    """PPO, GRPO or RLOO, in the words that RLinf's users know."""

    adv_type: str = "gae"
    """gae (PPO), grpo or rloo."""
    loss_type: str = "actor_critic"
    """actor_critic, or actor for grpo and rloo."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    group_size: int = 1
    """Episodes that begin alike and are compared with each other (grpo, rloo)."""
    normalize_advantages: bool = True
    """Scale advantages by their spread: of the whole batch (gae, rloo) or of each group (grpo)."""
    reward_type: str = "chunk_level"
    """gae: a chunk is one step with one value and the sum of its rewards, or action_level: every action is a step."""
    logprob_type: str = "chunk_level"
    """What a ratio is of: token_level, action_level or chunk_level."""
    entropy_type: str = "token_level"
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float | None = None
    """Dual clip: bound on the loss of actions that turned out badly."""
    value_clip: float | None = None
    huber_delta: float = 10.0
    value_coef: float = 0.5
    entropy_bonus: float = 0.0
    kl_beta: float = 0.0
    """Weight of the distance to the policy that training began with."""
    update_epoch: int = 4
    """Passes over each batch of episodes."""
    target_kl: float | None = None
    """Stop the passes of an update when the policy has moved this far."""
    dynamic_sampling: bool = True
    """grpo, rloo: play others in place of groups whose episodes all earned the same; False: keep them, for nothing."""
    filter_rewards: bool = False
    """grpo, rloo: keep only groups whose mean return lies within the bounds."""
    rewards_lower_bound: float | None = None
    rewards_upper_bound: float | None = None
    max_rejected: int = 64
    """grpo, rloo: groups without use an update may play in vain, beyond those it wants, before it makes do."""
    max_staleness: int = 0
    """Updates by which the policy that plays is behind the one that learns: with 1 or more, both work at once."""
    behave_weight_threshold: float | None = None
    """max_staleness: the most that an action counts for having become likelier since it was chosen; default 2."""

    def __post_init__(self) -> None:
        for name, choices in (("adv_type", ADVANTAGES), ("loss_type", LOSSES)):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} is {getattr(self, name)!r}", do=f"choose from {', '.join(choices)}")
        for name in ("reward_type", "logprob_type", "entropy_type"):
            if getattr(self, name) not in LEVELS:
                raise ConfigError(f"{name} is {getattr(self, name)!r}", do=f"choose from {', '.join(LEVELS)}")
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be from 0 to 1")
        if self.reward_type == "token_level":
            raise ConfigError("no simulator rewards single numbers of an action", do="reward_type: action_level")
        if self.update_epoch < 1:
            raise ConfigError(f"update_epoch is {self.update_epoch}; learn from episodes at least once")
        self._check_effects()

    @property
    def grouped(self) -> bool:
        return self.adv_type in ("grpo", "rloo")

    @property
    def reward_bounds(self) -> tuple[float, float] | None:
        """The mean returns of groups that are learnt from; None: any."""
        if not self.filter_rewards:
            return None
        low, high = self.rewards_lower_bound, self.rewards_upper_bound
        return -math.inf if low is None else low, math.inf if high is None else high

    def _check_effects(self) -> None:
        """Refuse combinations in which a setting does nothing."""
        if self.grouped and self.group_size < 2:
            raise ConfigError(f"{self.adv_type} compares episodes of a group, but group_size is {self.group_size}")
        if not self.grouped and self.group_size != 1:
            raise ConfigError("gae does not group episodes: group_size would do nothing", do="leave it at 1")
        if self.grouped and self.loss_type != "actor":
            raise ConfigError(f"{self.adv_type} has no critic", do="loss_type: actor")
        if not self.grouped and self.loss_type != "actor_critic":
            raise ConfigError("gae needs a critic", do="loss_type: actor_critic")
        if self.loss_type == "actor" and self.value_clip is not None:
            raise ConfigError("there is no critic: value_clip would do nothing", do="leave it out")
        if self.grouped and self.reward_type != "chunk_level":
            raise ConfigError(f"{self.adv_type} weighs whole episodes: reward_type would do nothing", do="leave it out")
        if self.reward_type == "action_level" and self.logprob_type == "chunk_level":
            raise ConfigError(
                "advantages of single actions cannot weigh the ratio of a chunk",
                do="logprob_type: action_level or token_level",
            )
        self._check_bounds()
        self._check_staleness()

    @property
    def behave_cap(self) -> float:
        return 2.0 if self.behave_weight_threshold is None else self.behave_weight_threshold

    def _check_staleness(self) -> None:
        if self.max_staleness < 0:
            raise ConfigError(f"max_staleness is {self.max_staleness}; 0 is as fresh as can be")
        if self.behave_weight_threshold is not None and not self.max_staleness:
            raise ConfigError("behave_weight_threshold would do nothing: max_staleness is 0", do="leave it out")
        if self.behave_cap < 1:
            raise ConfigError("behave_weight_threshold must be 1 at least", why="an action as likely as ever counts 1")

    def _check_bounds(self) -> None:
        if not self.dynamic_sampling and (not self.grouped or self.filter_rewards):
            raise ConfigError(
                "dynamic_sampling: false keeps every group of grpo and rloo, but "
                + ("filter_rewards drops some" if self.grouped else "gae does not group episodes"),
                do="leave one of them out",
            )
        given = self.rewards_lower_bound is not None or self.rewards_upper_bound is not None
        if self.filter_rewards and not self.grouped:
            raise ConfigError("gae does not group episodes: filter_rewards would do nothing", do="leave it out")
        if given != self.filter_rewards:
            raise ConfigError(
                "filter_rewards and its bounds, rewards_lower_bound and rewards_upper_bound, only work together"
            )
