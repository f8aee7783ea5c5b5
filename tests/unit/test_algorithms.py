"""Every formula against a case computed by hand, and the properties it must have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manyarms.algorithms import ppo
from manyarms.algorithms.advantages import (
    explained_variance,
    gae,
    group_relative,
    is_uniform,
    leave_one_out,
    moments_of,
    normalised,
)
from manyarms.algorithms.config import AlgorithmConfig
from manyarms.algorithms.groups import DynamicSampling
from manyarms.algorithms.losses import (
    at_level,
    clipped_policy_loss,
    kl_to_reference,
    masked_mean,
    spread,
    value_loss,
)
from manyarms.errors import ConfigError
from manyarms.learning.ranks import Ranks
from manyarms.rollout import Episode
from manyarms.vector import EpisodeId

finite = st.floats(-10, 10)
episodes = hnp.arrays(np.float64, st.integers(1, 12), elements=finite)
groups = hnp.arrays(np.float64, st.integers(2, 8), elements=finite)


def test_gae_by_hand() -> None:
    rewards, values = np.array([1.0, 0.0, 2.0]), np.array([0.5, 1.0, 1.5])
    # δ = 1 + 0.9·1 - 0.5 = 1.4;  0 + 0.9·1.5 - 1 = 0.35;  2 + 0.9·V - 1.5
    advantages, returns = gae(rewards, values, 0.0, gamma=0.9, gae_lambda=0.5)
    np.testing.assert_allclose(advantages, [1.4 + 0.45 * (0.35 + 0.45 * 0.5), 0.35 + 0.45 * 0.5, 0.5])
    np.testing.assert_allclose(returns, advantages + values)
    truncated, _ = gae(rewards, values, 2.0, gamma=0.9, gae_lambda=0.5)
    assert truncated[2] == pytest.approx(0.5 + 1.8), "a truncated episode is worth what the critic says"


@given(episodes, finite, st.floats(0, 1))
def test_gae_with_lambda_one_is_returns_less_values(rewards: np.ndarray, final: float, gamma: float) -> None:
    values = np.cos(np.arange(len(rewards)))
    advantages, returns = gae(rewards, values, final, gamma=gamma, gae_lambda=1.0)
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
    advantages, _ = gae(rewards, values, final, gamma=0.97, gae_lambda=0.0)
    np.testing.assert_allclose(advantages, rewards + 0.97 * np.append(values[1:], final) - values, atol=1e-12)


def test_group_advantages_by_hand() -> None:
    np.testing.assert_allclose(leave_one_out(np.array([1.0, 0.0, 0.0, 1.0])), [2 / 3, -2 / 3, -2 / 3, 2 / 3])
    np.testing.assert_allclose(group_relative(np.array([2.0, 0.0])), [1 / np.sqrt(2), -1 / np.sqrt(2)], rtol=1e-5)
    np.testing.assert_allclose(group_relative(np.array([3.0, 1.0]), normalise=False), [1.0, -1.0])


@given(groups, finite)
def test_group_advantages_sum_to_zero_and_ignore_a_constant(returns: np.ndarray, constant: float) -> None:
    for advantage in (leave_one_out, group_relative):
        found = advantage(returns)
        assert abs(found.sum()) < 1e-6 * (1 + np.abs(found).sum())
        np.testing.assert_allclose(advantage(returns + constant), found, atol=1e-4)


@given(groups)
def test_leave_one_out_is_the_centred_return_times_a_constant(returns: np.ndarray) -> None:
    count = len(returns)
    np.testing.assert_allclose(leave_one_out(returns), (returns - returns.mean()) * count / (count - 1), atol=1e-9)


def test_groups_of_one_are_refused_and_uniform_ones_noticed() -> None:
    with pytest.raises(ConfigError, match="group_size"):
        leave_one_out(np.array([1.0]))
    assert is_uniform(np.array([1.0, 1.0]))
    assert not is_uniform(np.array([1.0, 0.0]))


@given(st.lists(hnp.arrays(np.float64, st.integers(1, 6), elements=finite), min_size=2, max_size=5))
def test_ranks_that_add_up_their_moments_normalise_as_one(parts: list[np.ndarray]) -> None:
    together = normalised(parts)
    first, second = moments_of(parts[:1]), moments_of(parts[1:])
    total = (first[0] + second[0], first[1] + second[1], first[2] + second[2])
    apart = normalised(parts[:1], total) + normalised(parts[1:], total)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert abs(np.concatenate(together).mean()) < 1e-6


def test_levels_sum_what_was_taken() -> None:
    values = torch.arange(12.0).view(1, 3, 4)
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    tokens, token_mask = at_level(values, mask, "token_level")
    assert tokens.shape == token_mask.shape == (1, 3, 4)
    actions, _ = at_level(values, mask, "action_level")
    assert actions.tolist() == [[6.0, 22.0, 38.0]]
    chunks, chunk_mask = at_level(values, mask, "chunk_level")
    assert chunks.tolist() == [28.0], "what was not taken does not count"
    assert chunk_mask.tolist() == [1.0]
    with pytest.raises(ConfigError, match="token_level"):
        at_level(values, mask, "sentence_level")
    assert spread(torch.tensor([2.0]), values).shape == values.shape


def test_the_clipped_loss_by_hand() -> None:
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5, 4.0])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
    found = clipped_policy_loss(
        ratio.log(), torch.zeros(5), advantages, torch.ones(5), clip_low=0.2, clip_high=0.28, clip_c=3.0
    )
    # -min(1.5, 1.28) = -1.28; -0.5; max(1.5, 1.28) = 1.5; max(0.5, 0.8) = 0.8; max(4, 1.28) = 4, dual-clipped to 3
    assert float(found.loss) == pytest.approx((-1.28 - 0.5 + 1.5 + 0.8 + 3.0) / 5)
    assert float(found.clip_fraction) == pytest.approx(2 / 5)
    assert float(found.ratio) == pytest.approx(8.0 / 5)


def test_a_ratio_may_rise_and_fall_by_bounds_of_its_own() -> None:
    """Where a bound holds, more of the same is worth no more: its gradient is zero."""
    log_ratio = torch.tensor([1.25, 1.35, 0.85, 0.75]).log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    clipped_policy_loss(
        log_ratio, torch.zeros(4), advantages, torch.ones(4), clip_low=0.2, clip_high=0.3
    ).loss.backward()
    assert log_ratio.grad is not None
    assert (log_ratio.grad != 0).tolist() == [True, False, True, False], "up by 0.3, down by 0.2"


def test_padding_never_counts() -> None:
    values = torch.tensor([1.0, 100.0])
    mask = torch.tensor([1.0, 0.0])
    assert float(masked_mean(values, mask)) == 1.0
    assert float(masked_mean(values, torch.zeros(2))) == 0.0
    ratio = torch.tensor([0.1, 5.0], requires_grad=True)
    found = clipped_policy_loss(ratio, torch.zeros(2), torch.ones(2), mask, clip_low=0.2, clip_high=0.2)
    found.loss.backward()
    assert ratio.grad is not None
    assert ratio.grad[1] == 0.0


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=6))
def test_without_a_change_nothing_is_clipped_and_kl_is_zero(log_probs: list[float]) -> None:
    same = torch.tensor(log_probs)
    found = clipped_policy_loss(same, same, torch.ones(len(same)), torch.ones(len(same)), clip_low=0.2, clip_high=0.2)
    assert float(found.approx_kl) == 0.0
    assert float(found.clip_fraction) == 0.0
    assert float(kl_to_reference(same, same, torch.ones(len(same)))) == 0.0
    assert float(kl_to_reference(same, same + 0.3, torch.ones(len(same)))) > 0.0


def test_the_divergence_from_a_reference_by_hand() -> None:
    ours, reference = torch.tensor([0.5, 0.2]).log(), torch.tensor([0.25, 0.4]).log()
    # q / p - log(q / p) - 1, of actions that the policy p chose: 0.5 + log 2 - 1 and 2 - log 2 - 1
    wanted = ((0.5 + np.log(2.0) - 1.0) + (2.0 - np.log(2.0) - 1.0)) / 2
    assert float(kl_to_reference(ours, reference, torch.ones(2))) == pytest.approx(wanted)
    skewed = float(kl_to_reference(torch.tensor([0.0]), torch.tensor([1.0]), torch.ones(1)))
    assert skewed == pytest.approx(np.e - 2.0), "the other way round it would be 1 / e"


def test_the_value_loss_by_hand() -> None:
    values, old, returns = torch.tensor([2.0, 0.1]), torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])
    mask = torch.ones(2)
    plain = value_loss(values, old, returns, mask, value_clip=None, huber_delta=10.0)
    assert float(plain.loss) == pytest.approx((0.5 * 1.0 + 0.5 * 0.01) / 2)
    held = value_loss(values, old, returns, mask, value_clip=0.2, huber_delta=10.0)
    assert float(held.loss) == pytest.approx((0.5 * 1.8**2 + 0.5 * 0.01) / 2)
    assert float(held.clip_ratio) == pytest.approx(0.5)
    huber = value_loss(values, old, returns, mask, value_clip=None, huber_delta=0.5)
    assert float(huber.loss) == pytest.approx((0.5 * (1.0 - 0.25) + 0.5 * 0.01) / 2)


def test_explained_variance() -> None:
    returns = np.array([1.0, 2.0, 3.0])
    for values, found in ((returns, 1.0), (np.full(3, 2.0), 0.0), (returns[::-1], -3.0)):
        assert explained_variance(moments_of([returns]), moments_of([returns - values])) == pytest.approx(found)
    assert explained_variance(moments_of([np.ones(3)]), moments_of([returns])) == 0.0


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


def test_ppo_judges_chunks_or_actions_by_hand() -> None:
    rewards, taken = [[1.0, 2.0], [4.0, 0.0]], [2, 1]
    by_chunk = AlgorithmConfig(gamma=0.5, gae_lambda=1.0)
    one = episode(rewards, taken, np.array([1.0, 2.0]))
    # R_1 = 4, R_0 = (1 + 2) + 0.5·4 = 5
    advantages, returns = ppo.targets([one], np.array([100.0]), by_chunk)
    np.testing.assert_allclose(returns[0], [5.0, 4.0])
    np.testing.assert_allclose(advantages[0], [4.0, 2.0])
    by_action = AlgorithmConfig(gamma=0.5, gae_lambda=1.0, reward_type="action_level", logprob_type="action_level")
    one = episode(rewards, taken, np.array([[1.0, 1.0], [2.0, 9.0]]))
    # R = 4;  2 + 0.5·4 = 4;  1 + 0.5·4 = 3;  the last action of the last chunk was not taken
    advantages, returns = ppo.targets([one], np.array([100.0]), by_action)
    np.testing.assert_allclose(returns[0], [[3.0, 4.0], [4.0, 0.0]])
    np.testing.assert_allclose(advantages[0], [[2.0, 3.0], [2.0, 0.0]])


def test_only_what_a_clock_cut_short_is_worth_anything_afterwards() -> None:
    config = AlgorithmConfig(gamma=0.5, gae_lambda=1.0)
    for terminated, wanted in ((True, 4.0), (False, 4.0 + 0.5 * 10.0)):
        one = episode([[4.0, 0.0]], [1], np.array([0.0]), terminated=terminated)
        _, returns = ppo.targets([one], np.array([10.0]), config)
        assert returns[0] == pytest.approx([wanted])


@given(hnp.arrays(np.float64, (3, 4), elements=finite), st.integers(1, 2))
def test_means_of_parts_add_up_to_the_mean_of_the_whole(values: np.ndarray, cut: int) -> None:
    whole, mask = torch.from_numpy(values), torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    parts = [masked_mean(whole[rows], mask[rows], total=7.0) for rows in (slice(cut), slice(cut, None))]
    assert float(sum(parts)) == pytest.approx(float(masked_mean(whole, mask)), abs=1e-9)


def test_dynamic_sampling_keeps_to_its_bounds_and_to_its_limit() -> None:
    sampling = DynamicSampling(2, 2, bounds=(0.4, 0.8), most=4)
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 0.9, 1.0, 0.0]  # kept; all the same; too good; kept
    heard = [sampling(episode([[r, 0.0]], [1], np.zeros(1))) for r in rewards]
    assert (sampling.groups, sampling.rejected) == (2, 2)
    assert [place for place, _ in sampling.kept] == [0, 1, 6, 7]
    assert heard == [False] * 7 + [True]
    on_the_bounds = DynamicSampling(2, 2, bounds=(0.25, 0.75))
    for reward in (0.0, 0.5, 0.5, 1.0):  # means of 0.25 and 0.75
        on_the_bounds(episode([[reward, 0.0]], [1], np.zeros(1)))
    assert (on_the_bounds.groups, on_the_bounds.rejected) == (2, 0), "a bound is within"
    limited = DynamicSampling(2, 2, most=1)
    assert [limited(episode([[1.0, 0.0]], [1], np.zeros(1))) for _ in range(2)] == [False, True]
    everything = DynamicSampling(2, 2, keep_all=True)
    heard = [everything(episode([[r, 0.0]], [1], np.zeros(1))) for r in (1.0, 1.0, 0.0, 0.0)]
    assert heard == [False, False, False, True]
    assert (everything.groups, everything.rejected) == (2, 0)


def test_every_rank_has_its_share_and_all_is_shared_out() -> None:
    for count in range(12):
        for world in range(1, 5):
            shares = [Ranks(rank, world).share(count) for rank in range(world)]
            assert [i for share in shares for i in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
