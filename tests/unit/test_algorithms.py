"""Every formula against a case computed by hand, and the properties it must have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manyarms.algorithms import BUILT_IN, find_algorithm, make_algorithm
from manyarms.algorithms.base import (
    Clipped,
    Episodes,
    Group,
    Minibatch,
    at_level,
    clipped_policy_loss,
    kl_to_reference,
    normalised,
    value_loss,
)
from manyarms.algorithms.dapo import DAPO
from manyarms.algorithms.grpo import GRPO, group_relative
from manyarms.algorithms.ppo import PPO, gae
from manyarms.algorithms.reinforce_pp import ReinforcePP
from manyarms.algorithms.rloo import RLOO, leave_one_out
from manyarms.errors import ConfigError, UnknownName
from manyarms.learning.batch import Batch, EpisodeSummary
from manyarms.learning.learner import explained_variance
from manyarms.learning.ranks import Ranks
from manyarms.learning.samples import Gathered, gather, samples_from
from manyarms.rollout import Episode
from manyarms.vector import EpisodeId

finite = st.floats(-10, 10)
episodes = hnp.arrays(np.float64, st.integers(1, 12), elements=finite)
groups = hnp.arrays(np.float64, st.integers(2, 8), elements=finite)


def one_gae(
    rewards: np.ndarray, values: np.ndarray, final: float, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns of one episode, with a step behind it that was not taken."""
    padded = [np.append(array, 7.0)[None] for array in (rewards, values)]
    mask = np.arange(len(rewards) + 1)[None] < len(rewards)
    advantages, returns = gae(padded[0], mask, padded[1], np.array([final]), gamma, lam)
    assert (advantages[~mask] == 0).all()
    assert (returns[~mask] == 0).all()
    return advantages[0, :-1], returns[0, :-1]


def test_gae_by_hand() -> None:
    rewards, values = np.array([1.0, 0.0, 2.0]), np.array([0.5, 1.0, 1.5])
    # δ = 1 + 0.9·1 - 0.5 = 1.4;  0 + 0.9·1.5 - 1 = 0.35;  2 + 0.9·V - 1.5
    advantages, returns = one_gae(rewards, values, 0.0, 0.9, 0.5)
    np.testing.assert_allclose(advantages, [1.4 + 0.45 * (0.35 + 0.45 * 0.5), 0.35 + 0.45 * 0.5, 0.5])
    np.testing.assert_allclose(returns, advantages + values)
    truncated, _ = one_gae(rewards, values, 2.0, 0.9, 0.5)
    assert truncated[2] == pytest.approx(0.5 + 1.8), "a truncated episode is worth what the critic says"


@given(episodes, finite, st.floats(0, 1))
def test_gae_with_lambda_one_is_returns_less_values(rewards: np.ndarray, final: float, gamma: float) -> None:
    values = np.cos(np.arange(len(rewards)))
    advantages, returns = one_gae(rewards, values, final, gamma, 1.0)
    tail = final
    discounted = []
    for reward in rewards[::-1]:
        tail = reward + gamma * tail
        discounted.append(tail)
    np.testing.assert_allclose(returns, discounted[::-1], atol=1e-9)
    np.testing.assert_allclose(advantages, np.array(discounted[::-1]) - values, atol=1e-9)


@given(episodes, finite)
def test_gae_with_lambda_zero_is_the_one_step_error(rewards: np.ndarray, final: float) -> None:
    values = np.sin(np.arange(len(rewards)))
    advantages, _ = one_gae(rewards, values, final, 0.97, 0.0)
    np.testing.assert_allclose(advantages, rewards + 0.97 * np.append(values[1:], final) - values, atol=1e-12)


def test_group_advantages_by_hand() -> None:
    np.testing.assert_allclose(leave_one_out(np.array([[1.0, 0.0, 0.0, 1.0]])), [[2 / 3, -2 / 3, -2 / 3, 2 / 3]])
    np.testing.assert_allclose(group_relative(np.array([[2.0, 0.0]])), [[1 / np.sqrt(2), -1 / np.sqrt(2)]], rtol=1e-5)
    np.testing.assert_allclose(group_relative(np.array([[3.0, 1.0]]), normalise=False), [[1.0, -1.0]])
    two = np.array([[1.0, 0.0], [8.0, 6.0]])
    np.testing.assert_allclose(leave_one_out(two), [[1.0, -1.0], [2.0, -2.0]], err_msg="each group by itself")


@given(groups, finite)
def test_group_advantages_sum_to_zero_and_ignore_a_constant(returns: np.ndarray, constant: float) -> None:
    for advantage in (leave_one_out, group_relative):
        found = advantage(returns[None])[0]
        assert abs(found.sum()) < 1e-6 * (1 + np.abs(found).sum())
        np.testing.assert_allclose(advantage(returns[None] + constant)[0], found, atol=1e-4)


@given(groups)
def test_leave_one_out_is_the_centred_return_times_a_constant(returns: np.ndarray) -> None:
    count = len(returns)
    wanted = (returns - returns.mean()) * count / (count - 1)
    np.testing.assert_allclose(leave_one_out(returns[None])[0], wanted, atol=1e-9)


def group(*returns: float, success: tuple[bool, ...] | None = None) -> Group:
    return Group(np.array(returns), np.array(success or [value > 0 for value in returns]), np.ones(len(returns)))


def test_groups_of_one_are_refused_and_uniform_ones_noticed() -> None:
    for kind in (GRPO, RLOO, DAPO):
        with pytest.raises(ConfigError, match="group_size"):
            kind(group_size=1)
        assert not kind(group_size=2).keeps(group(1.0, 1.0))
        assert kind(group_size=2).keeps(group(1.0, 0.0))
        assert kind(group_size=2, dynamic_sampling=False).keeps(group(1.0, 1.0)), "it is kept, for nothing"
    assert PPO().keeps(group(1.0))


def test_dapo_keeps_groups_in_which_some_succeed_and_some_fail() -> None:
    assert DAPO(group_size=2).keeps(group(2.0, 1.0, success=(True, False)))
    for success in ((True, True), (False, False)):
        assert not DAPO(group_size=2).keeps(group(2.0, 1.0, success=success)), "returns differ, success does not"


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=finite))
def test_what_is_normalised_has_mean_0_and_deviation_1_over_what_counts(values: np.ndarray) -> None:
    mask = np.ones(values.shape, bool)
    mask[:, -1] = False
    found = normalised(values, mask)
    assert abs(found[mask].mean()) < 1e-6
    assert found[mask].std() < 1 + 1e-6
    if values[mask].std() > 1e-2:
        assert found[mask].std() == pytest.approx(1.0, abs=1e-3)
    other = values.copy()
    other[~mask] = 1e6
    np.testing.assert_array_equal(normalised(other, mask)[mask], found[mask], err_msg="padding counts")


def test_levels_sum_what_was_taken() -> None:
    values = torch.arange(12.0).view(1, 3, 4)
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    assert at_level(values, mask, "token_level").shape == (1, 3, 4)
    assert at_level(values, mask, "action_level").tolist() == [[6.0, 22.0, 38.0]]
    assert at_level(values, mask, "chunk_level").tolist() == [28.0], "what was not taken does not count"
    with pytest.raises(ConfigError, match="token_level"):
        PPO(logprob_type="sentence_level")


def minibatch(log_probs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor | None = None, **others: Any) -> Minibatch:
    """B decisions of one action of one number each, weighed as chunks: everything is [B]."""
    taken = torch.ones(len(log_probs)) if mask is None else mask
    count = max(float(taken.sum()), 1.0)
    settings: dict[str, Any] = {
        "advantages": torch.ones(len(log_probs)),
        "behavior_log_probs": None,
        "reference_log_probs": None,
        "entropy": torch.zeros(len(log_probs)),
        "values": None,
        "old_values": None,
        "returns": None,
        "counts": (count, count, count),
    }
    return Minibatch(log_probs=log_probs, old_log_probs=old, mask=taken[:, None], **{**settings, **others})


def test_the_clipped_loss_by_hand() -> None:
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5, 4.0])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
    found = clipped_policy_loss(minibatch(ratio.log(), torch.zeros(5), advantages=advantages), 0.2, 0.28, 3.0)
    # -min(1.5, 1.28) = -1.28; -0.5; max(1.5, 1.28) = 1.5; max(0.5, 0.8) = 0.8; max(4, 1.28) = 4, dual-clipped to 3
    assert float(found.value) == pytest.approx((-1.28 - 0.5 + 1.5 + 0.8 + 3.0) / 5)
    assert float(found.metrics["actor/pg_clipfrac"]) == pytest.approx(2 / 5)
    assert float(found.metrics["actor/ratio"]) == pytest.approx(8.0 / 5)


def test_a_ratio_may_rise_and_fall_by_bounds_of_its_own() -> None:
    """Where a bound holds, more of the same is worth no more: its gradient is zero."""
    log_ratio = torch.tensor([1.25, 1.35, 0.85, 0.75]).log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    clipped_policy_loss(minibatch(log_ratio, torch.zeros(4), advantages=advantages), 0.2, 0.3).value.backward()
    assert log_ratio.grad is not None
    assert (log_ratio.grad != 0).tolist() == [True, False, True, False], "up by 0.3, down by 0.2"


def test_padding_never_counts() -> None:
    mask = torch.tensor([1.0, 0.0])
    log_ratio = torch.tensor([0.1, 5.0], requires_grad=True)
    batch = minibatch(log_ratio, torch.zeros(2), mask)
    assert float(batch.mean(torch.tensor([1.0, 100.0]))) == 1.0
    clipped_policy_loss(batch, 0.2, 0.2).value.backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad[1] == 0.0


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=6))
def test_without_a_change_nothing_is_clipped_and_kl_is_zero(log_probs: list[float]) -> None:
    same = torch.tensor(log_probs)
    found = clipped_policy_loss(minibatch(same, same), 0.2, 0.2)
    assert float(found.metrics["actor/approx_kl"]) == 0.0
    assert float(found.metrics["actor/pg_clipfrac"]) == 0.0
    assert float(kl_to_reference(minibatch(same, same, reference_log_probs=same)).value) == 0.0
    assert float(kl_to_reference(minibatch(same, same, reference_log_probs=same + 0.3)).value) > 0.0


def test_the_divergence_from_a_reference_by_hand() -> None:
    def distance(ours: torch.Tensor, reference: torch.Tensor) -> float:
        return float(kl_to_reference(minibatch(ours, ours, reference_log_probs=reference)).value)

    ours, reference = torch.tensor([0.5, 0.2]).log(), torch.tensor([0.25, 0.4]).log()
    # q / p - log(q / p) - 1, of actions that the policy p chose: 0.5 + log 2 - 1 and 2 - log 2 - 1
    wanted = ((0.5 + np.log(2.0) - 1.0) + (2.0 - np.log(2.0) - 1.0)) / 2
    assert distance(ours, reference) == pytest.approx(wanted)
    skewed = distance(torch.tensor([0.0]), torch.tensor([1.0]))
    assert skewed == pytest.approx(np.e - 2.0), "the other way round it would be 1 / e"


def test_the_value_loss_by_hand() -> None:
    values, old, returns = torch.tensor([2.0, 0.1]), torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])
    batch = minibatch(torch.zeros(2), torch.zeros(2), values=values, old_values=old, returns=returns)
    plain = value_loss(batch, None, 10.0)
    assert float(plain.value) == pytest.approx((0.5 * 1.0 + 0.5 * 0.01) / 2)
    held = value_loss(batch, 0.2, 10.0)
    assert float(held.value) == pytest.approx((0.5 * 1.8**2 + 0.5 * 0.01) / 2)
    assert float(held.metrics["actor/value_clip_ratio"]) == pytest.approx(0.5)
    huber = value_loss(batch, None, 0.5)
    assert float(huber.value) == pytest.approx((0.5 * (1.0 - 0.25) + 0.5 * 0.01) / 2)


def test_explained_variance() -> None:
    returns = np.array([1.0, 2.0, 3.0])
    for values, found in ((returns, 1.0), (np.full(3, 2.0), 0.0), (returns[::-1], -3.0)):
        assert explained_variance(returns, values) == pytest.approx(found)
    assert explained_variance(np.ones(3), returns) == 0.0


def episode(rewards: list[list[float]], taken: list[int], values: np.ndarray, *, terminated: bool = True) -> Episode:
    """An episode of chunks of two actions of one number."""
    count = len(taken)
    return Episode(
        EpisodeId(seed=0),
        "",
        {"": np.zeros((count, 1))},
        {"": np.zeros(1)},
        {"": np.zeros((count, 2, 1))},
        np.array(rewards),
        np.array(taken),
        {"values": values.astype(np.float32)},
        success=terminated,
        terminated=terminated,
        truncated=not terminated,
    )


def numbers(*found: Episode, final_values: list[float] | None = None, max_steps: float = np.inf) -> Episodes:
    """The numbers of some episodes, gathered on one rank."""
    final = None if final_values is None else np.array(final_values)
    return gather(list(enumerate(found)), final, max_steps, Ranks()).episodes


def test_ppo_judges_chunks_or_actions_by_hand() -> None:
    rewards, taken = [[1.0, 2.0], [4.0, 0.0]], [2, 1]
    by_chunk = PPO(gamma=0.5, gae_lambda=1.0, normalize_advantages=False)
    short = episode([[3.0, 0.0]], [1], np.array([1.0]))
    # R_1 = 4, R_0 = (1 + 2) + 0.5·4 = 5; an episode of one chunk beside it: R_0 = 3
    found = by_chunk.targets(numbers(episode(rewards, taken, np.array([1.0, 2.0])), short, final_values=[100.0, 100.0]))
    assert found.returns is not None
    np.testing.assert_allclose(found.returns, [[5.0, 4.0], [3.0, 0.0]])
    np.testing.assert_allclose(found.advantages, [[4.0, 2.0], [2.0, 0.0]])
    by_action = PPO(
        gamma=0.5,
        gae_lambda=1.0,
        reward_type="action_level",
        logprob_type="action_level",
        normalize_advantages=False,
    )
    one = episode(rewards, taken, np.array([[1.0, 1.0], [2.0, 9.0]]))
    # R = 4;  2 + 0.5·4 = 4;  1 + 0.5·4 = 3;  the last action of the last chunk was not taken
    found = by_action.targets(numbers(one, final_values=[100.0]))
    assert found.returns is not None
    np.testing.assert_allclose(found.returns, [[[3.0, 4.0], [4.0, 0.0]]])
    np.testing.assert_allclose(found.advantages, [[[2.0, 3.0], [2.0, 0.0]]])


def test_only_what_a_clock_cut_short_is_worth_anything_afterwards() -> None:
    config = PPO(gamma=0.5, gae_lambda=1.0)
    for terminated, wanted in ((True, 4.0), (False, 4.0 + 0.5 * 10.0)):
        one = episode([[4.0, 0.0]], [1], np.array([0.0]), terminated=terminated)
        returns = config.targets(numbers(one, final_values=[10.0])).returns
        assert returns == pytest.approx(np.array([[wanted]]))


def test_rloo_and_grpo_weigh_whole_episodes_by_hand() -> None:
    long, short = episode([[1.0, 2.0], [1.0, 0.0]], [2, 1], np.zeros(2)), episode([[0.0, 0.0]], [2], np.zeros(1))
    plain = RLOO(group_size=2, normalize_advantages=False).targets(numbers(long, short))
    np.testing.assert_allclose(plain.advantages[:, 0], [4.0, -4.0])
    # Over three decisions, two of which are the long episode's: mean 4/3, deviation sqrt(128/9)
    scaled = RLOO(group_size=2).targets(numbers(long, short)).advantages
    wanted = (np.array([4.0, -4.0]) - 4 / 3) / np.sqrt(128 / 9)
    np.testing.assert_allclose([scaled[0, 0], scaled[1, 0]], wanted, rtol=1e-5)
    np.testing.assert_allclose(
        GRPO(group_size=2).targets(numbers(long, short)).advantages, [0.5**0.5, -(0.5**0.5)], rtol=1e-5
    )


def test_reinforce_pp_counts_returns_from_each_decision_on() -> None:
    one = episode([[1.0, 1.0], [4.0, 0.0]], [2, 1], np.zeros(2))
    other = episode([[1.0, 0.0]], [1], np.zeros(1))
    found = ReinforcePP(gamma=0.5).targets(numbers(one, other)).advantages
    # R = 2 + 0.5·4 = 4, and 4; of the other 1: mean 3, deviation sqrt(2)
    np.testing.assert_allclose(found[np.array([[True, True], [True, False]])], np.array([1, 1, -2]) / 2**0.5, rtol=1e-5)


def test_dapo_has_episodes_pay_that_come_near_the_time_limit() -> None:
    episodes = [episode([[1.0, 0.0]] * n, [2] * n, np.zeros(n)) for n in (1, 3, 4)]  # 2, 6 and 8 actions of 8
    settings = {"group_size": 3, "overlong_buffer": 4, "overlong_penalty": 2.0}
    found = DAPO(**settings).targets(numbers(*episodes, max_steps=8))  # type: ignore[arg-type]
    # 1 - 0, 3 - 2·(6 - 4)/4 = 2, 4 - 2 = 2
    np.testing.assert_allclose(found.advantages, group_relative(np.array([[1.0, 2.0, 2.0]]))[0])
    unlimited = DAPO(**settings).targets(numbers(*episodes))  # type: ignore[arg-type]
    np.testing.assert_allclose(unlimited.advantages, group_relative(np.array([[1.0, 3.0, 4.0]]))[0])


@given(hnp.arrays(np.float64, (3, 4), elements=finite), st.integers(1, 2))
def test_means_of_parts_add_up_to_the_mean_of_the_whole(values: np.ndarray, cut: int) -> None:
    whole, mask = torch.from_numpy(values), torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])

    def mean(rows: slice) -> float:
        part = whole[rows]
        batch = minibatch(part[:, 0], part[:, 0], counts=(3.0, 7.0, 7.0))
        return float(replace(batch, mask=mask[rows]).mean(part))

    wanted = float((whole * mask).sum() / 7)
    assert mean(slice(cut)) + mean(slice(cut, None)) == pytest.approx(wanted, abs=1e-9)


def summary(reward: float) -> EpisodeSummary:
    return EpisodeSummary("", reward > 0, reward, 1)


def filled(batch: Batch[int], rewards: list[float]) -> list[bool]:
    """Play all groups that may be played at once; return what each episode made of it."""
    batch.take(batch.most)
    return [batch.add(place, summary(reward), place) for place, reward in enumerate(rewards)]


def test_a_batch_keeps_to_its_bounds_and_to_its_limit() -> None:
    bounds = {"filter_rewards": True, "rewards_lower_bound": 0.4, "rewards_upper_bound": 0.8}
    batch: Batch[int] = Batch(make_algorithm("grpo", group_size=2, max_rejected=2, **bounds), 0, 0, 0, target=2)
    heard = filled(batch, [1.0, 0.0, 0.0, 0.0, 1.0, 0.9, 1.0, 0.0])  # kept; all the same; too good; kept
    assert (batch.kept, batch.rejected) == ([0, 3], 2)
    assert list(batch.kept_places()) == [0, 1, 6, 7]
    assert heard == [False] * 7 + [True]
    bounds |= {"rewards_lower_bound": 0.25, "rewards_upper_bound": 0.75}
    batch = Batch(make_algorithm("grpo", group_size=2, **bounds), 0, 0, 0, target=2)
    filled(batch, [0.0, 0.5, 0.5, 1.0])  # means of 0.25 and 0.75
    assert (len(batch.kept), batch.rejected) == (2, 0), "a bound is within"
    batch = Batch(GRPO(group_size=2, max_rejected=0), 0, 0, 0, target=1)
    assert filled(batch, [1.0, 1.0]) == [False, True]
    with pytest.raises(ConfigError, match="nothing to learn from"):
        batch.check()
    batch = Batch(GRPO(group_size=2, dynamic_sampling=False), 0, 0, 0, target=2)
    assert filled(batch, [1.0, 1.0, 0.0, 0.0]) == [False, False, False, True]
    assert (len(batch.kept), batch.rejected) == (2, 0)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=80, max_size=80), st.randoms(use_true_random=False))
def test_a_batch_is_the_same_in_a_stream_in_rounds_and_in_any_order(rewards: list[float], random: Any) -> None:
    """What is kept depends on places in the schedule alone."""
    algorithm = GRPO(group_size=4, max_rejected=10)
    stream: Batch[int] = Batch(algorithm, 0, 0, 0, target=5)
    stream.take(stream.most)
    for place, reward in enumerate(rewards):
        if stream.add(place, summary(reward), place):
            break
    rounds: Batch[int] = Batch(algorithm, 0, 0, 0, target=5)
    while not rounds.complete:
        places = [place for one in rounds.take(rounds.missing) for place in rounds.places(one)]
        random.shuffle(places)
        for place in places:
            rounds.add(place, summary(rewards[place]), place)
    assert (rounds.kept, rounds.decided) == (stream.kept, stream.decided)
    assert list(rounds.kept_places()) == list(stream.kept_places())
    assert rounds.payloads == stream.payloads


class TwoRanks(Ranks):
    """A rank of two in one process: what both have was written down beforehand."""

    def gather(self, mine: Any) -> Any:
        return self.everyone  # type: ignore[attr-defined]


def test_what_ranks_gather_is_the_same_and_each_finds_its_own_in_it() -> None:
    """Two ranks see one rank's numbers, and together cut every minibatch as it would."""
    rng = np.random.default_rng(0)
    lengths = [3, 1, 2, 4]
    found = []
    for length in lengths:
        one = episode(rng.normal(size=(length, 2)).tolist(), [2] * (length - 1) + [1], rng.normal(size=length))
        numbers = {name: rng.normal(size=(length, 2, 1)) for name in ("chosen", "log_probs")}
        found.append(replace(one, extras={**one.extras, **numbers}))
    alone = gather(list(enumerate(found)), np.arange(4.0), 9, Ranks())
    shares = [[(0, found[0]), (3, found[3])], [(1, found[1]), (2, found[2])]]
    told: list[Any] = []
    for share in shares:

        class Hearing(Ranks):
            def gather(self, mine: Any) -> Any:
                told.append(mine)
                return [mine]

        gather(share, np.array([float(place) for place, _ in share]), 9, Hearing())
    ranks = [TwoRanks(rank, 2) for rank in range(2)]
    for one in ranks:
        object.__setattr__(one, "everyone", told)
    both: list[Gathered] = [
        gather(share, np.array([float(place) for place, _ in share]), 9, rank)
        for share, rank in zip(shares, ranks, strict=True)
    ]
    for one in both:
        for name in ("rewards", "mask", "values", "final_values", "terminated"):
            np.testing.assert_array_equal(getattr(one.episodes, name), getattr(alone.episodes, name), err_msg=name)
        np.testing.assert_array_equal(one.layout.actions, alone.layout.actions)
    targets = PPO().targets(alone.episodes)
    whole = samples_from(alone, targets, found, None)
    parts = [samples_from(one, targets, [e for _, e in share], None) for one, share in zip(both, shares, strict=True)]
    index = np.array([9, 0, 5, 4, 7])
    wanted = sorted(whole.rows(index).advantages.tolist())
    rows = [part.rows(layout.layout.micro_batches(index, None)[0][0]) for part, layout in zip(parts, both, strict=True)]
    assert sorted(np.concatenate([row.advantages for row in rows]).tolist()) == wanted
    counts = [[filler for _, filler in layout.layout.micro_batches(np.array([0, 1, 2, 3]), 2)] for layout in both]
    assert counts == [[False, False], [False, True]], "a rank with less to do takes part all the same"


def test_algorithms_are_found_by_name_as_plug_ins_and_by_import_string() -> None:
    for name in BUILT_IN:
        kind = find_algorithm(name)
        assert kind().adv_type == name
    assert find_algorithm("manyarms.algorithms.rloo:RLOO") is RLOO
    with pytest.raises(ConfigError, match="did you mean grpo"):
        find_algorithm("gpro")
    with pytest.raises(ConfigError, match="not an algorithm"):
        find_algorithm("manyarms.algorithms.base:Targets")
    with pytest.raises(UnknownName, match="clip_ratio_low"):
        make_algorithm("grpo", clip_ratio_lo=0.1)
    assert make_algorithm("decoupled_ppo").max_staleness == 1

    class OnPolicy(Clipped):
        off_policy = False

        def targets(self, episodes: Episodes) -> Any: ...

    with pytest.raises(ConfigError, match="older weights"):
        OnPolicy(max_staleness=1)


def test_every_rank_has_its_share_and_all_is_shared_out() -> None:
    for count in range(12):
        for world in range(1, 5):
            shares = [Ranks(rank, world).share(count) for rank in range(world)]
            assert [i for share in shares for i in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
