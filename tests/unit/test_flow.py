"""The maths of flows, by hand and by property."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyarms.policies.pi0 import flow

TIMES = st.floats(0.05, 0.95)


def at(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


def test_the_grid_goes_from_noise_to_actions() -> None:
    assert flow.times_of(4).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_step_along_the_flow_is_eulers() -> None:
    step = flow.euler(at(0.75), at(0.5))
    assert (float(step.alpha), float(step.beta), float(step.gamma)) == (1.0, -0.25, 0.0)


def test_a_noisy_step_is_the_one_computed_by_hand() -> None:
    # t = ½, Δ = ¼, a = 1: σ² = 1, x0 has weight ¾, x1 has ¼ - ¼ = 0, so μ = ¾ (x - ½ v) and the spread is √¼
    step = flow.flow_sde(at(0.5), at(0.25), 1.0)
    assert float(step.alpha) == pytest.approx(0.75)
    assert float(step.beta) == pytest.approx(-0.375)
    assert float(step.gamma) == pytest.approx(0.5)


def test_the_first_step_has_the_spread_of_the_next_point() -> None:
    # t = 1: σ² = a² ¾ / ¼ = 3 a²; x0 has weight ¼, x1 has ¾ - 3 a² / 8
    step = flow.flow_sde(at(1.0), at(0.75), 0.5)
    assert float(step.gamma) == pytest.approx((0.75 * 0.25) ** 0.5)
    assert float(step.alpha) == pytest.approx(0.25 + 0.75 - 0.75 / 8)
    assert float(step.beta) == pytest.approx(-0.25)


@given(TIMES, st.floats(0.01, 1.0))
def test_without_noise_a_noisy_step_is_a_plain_one(t: float, share: float) -> None:
    after = t * (1.0 - share)
    noisy, plain = flow.flow_sde(at(t), at(after), 0.0), flow.euler(at(t), at(after))
    for name in ("alpha", "beta", "gamma"):
        torch.testing.assert_close(getattr(noisy, name), getattr(plain, name), rtol=0, atol=1e-12)


@given(TIMES, st.floats(0.01, 0.5), st.floats(0.05, 1.0), st.floats(-2, 2))
def test_noise_leaves_the_distribution_as_the_flow_has_it(t: float, share: float, level: float, action: float) -> None:
    """With one action a, x_t is normal around (1 - t) a with spread t: so must be what a step leads to, up to Δ²."""
    delta = t * share
    after = t - delta
    step = flow.flow_sde(at(t), at(after), level)
    # v = (x - a) / t, so x' = (α + β / t) x - β a / t + γ ε
    slope = float(step.alpha + step.beta / t)
    mean = slope * (1.0 - t) * action - float(step.beta) / t * action
    variance = (slope * t) ** 2 + float(step.gamma) ** 2
    assert mean == pytest.approx((1.0 - after) * action, abs=1e-9)
    sigma2 = float(step.gamma) ** 2 / delta
    bound = delta**2 * (sigma2 / t + sigma2**2 / (4 * t**2))
    assert abs(variance - after**2) <= bound + 1e-9


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.01, 3))
def test_densities_and_entropies_are_those_of_the_normal_distribution(x: float, mean: float, std: float) -> None:
    normal = torch.distributions.Normal(at(mean), at(std))
    torch.testing.assert_close(flow.log_prob(at(x), at(mean), at(std)), normal.log_prob(at(x)))
    torch.testing.assert_close(flow.entropy(at(std)), normal.entropy())


@given(TIMES)
def test_the_velocity_to_learn_leads_from_the_point_to_both_ends(t: float) -> None:
    generator = torch.Generator().manual_seed(0)
    actions, noise = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    point, velocity = flow.noised(actions, noise, at(t))
    torch.testing.assert_close(point - t * velocity, actions)
    torch.testing.assert_close(point + (1 - t) * velocity, noise)


def test_a_chain_is_kept_with_its_times() -> None:
    points, times = torch.randn(2, 3, 5, 4), torch.rand(2, 3)
    found, when = flow.unpacked(flow.packed(points, times), (5, 4))
    assert torch.equal(found, points)
    assert torch.equal(when, times)


def test_noise_goes_only_where_it_is_wanted() -> None:
    mask = torch.tensor([True, False])
    step = flow.chosen_where(mask, flow.flow_sde(at(0.5), at(0.25), 1.0), flow.euler(at(0.5), at(0.25)))
    assert step.gamma.tolist() == [0.5, 0.0]
    assert step.alpha.tolist() == [0.75, 1.0]
