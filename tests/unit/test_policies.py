"""Policies: keyed noise, heads, batches that do not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyarms import EpisodeId
from manyarms.errors import ConfigError, RolloutError, UnknownName
from manyarms.policies import Observations, make_policy
from manyarms.policies.heads import BINS, GaussianHead, TokenHead
from manyarms.policies.network import NetworkPolicy
from manyarms.policies.noise import normal
from manyarms.policies.scripted import ReplayPolicy
from manyarms.policies.small import hashed
from manyarms.simulators.base import Field, Spec

LOW = np.array([-2.0, 0.0, -1.0], np.float32)
HIGH = np.array([2.0, 1.0, 3.0], np.float32)
SPEC = Spec(
    {
        "state": Field((5,)),
        "open": Field(()),
        "front_rgb": Field((24, 32, 3), "uint8", 0, 255, camera="front"),
        "expert_action": Field((3,)),
    },
    {"": Field((3,), "float32", LOW, HIGH)},
)


def observed(count: int, seed: int = 0) -> Observations:
    rng = np.random.default_rng(seed)
    fields = {
        "state": rng.normal(size=(count, 5)).astype(np.float32),
        "open": rng.random(count).astype(np.float32),
        "front_rgb": rng.integers(0, 256, (count, 24, 32, 3)).astype(np.uint8),
        "expert_action": rng.uniform(LOW, HIGH, (count, 3)).astype(np.float32),
    }
    texts = [f"open drawer number {i % 3}" for i in range(count)]
    return Observations(fields, texts, [EpisodeId("t", i) for i in range(count)], np.arange(count) * 4)


def network(name: str, **options: Any) -> NetworkPolicy:
    made: Any = make_policy(name, SPEC, {"hidden": 32, "chunk": 3, **options})
    assert isinstance(made.policy, NetworkPolicy)
    return made.policy


@pytest.mark.parametrize("name", ["random", "mlp", "pixel"])
def test_what_a_row_gets_depends_on_its_episode_and_step_only(name: str) -> None:
    options = {"deterministic": True, "batch_size": 8} if name != "random" else {}
    policy = make_policy(name, SPEC, {"chunk": 3, **options})
    everyone = observed(20)
    together = policy.act(everyone)
    for index in ([3], [19, 3, 7], list(range(11))):
        some = policy.act(everyone.rows(index))
        assert some.actions[""].tobytes() == together.actions[""][index].tobytes()
        for extra, values in some.extras.items():
            assert values.tobytes() == together.extras[extra][index].tobytes(), extra
    later = replace(everyone, steps=everyone.steps + 1)
    assert not np.array_equal(policy.act(later).actions[""], together.actions[""])


@settings(max_examples=30)
@given(st.permutations(range(8)))
def test_a_batch_of_one_size_gives_the_same_bits_in_any_order(order: list[int]) -> None:
    policy = make_policy("mlp", SPEC, {"hidden": 32, "chunk": 3, "deterministic": True, "batch_size": 8})
    everyone = observed(8)
    assert policy.act(everyone.rows(order)).actions[""].tobytes() == policy.act(everyone).actions[""][order].tobytes()


@pytest.mark.parametrize("name", ["mlp", "pixel"])
@pytest.mark.parametrize("head", ["gaussian", "tokens"])
def test_what_was_chosen_is_evaluated_to_the_same_log_probabilities(name: str, head: str) -> None:
    policy = network(name, head=head, value_head=True)
    observations = observed(6)
    chunk = policy.act(observations)
    assert chunk.actions[""].shape == (6, 3, 3)
    assert (chunk.actions[""] >= LOW).all()
    assert (chunk.actions[""] <= HIGH).all()
    evaluation = policy.evaluate(observations, chunk.extras["chosen"])
    np.testing.assert_allclose(evaluation.log_probs.detach().numpy(), chunk.extras["log_probs"], atol=1e-5)
    assert evaluation.values is not None
    np.testing.assert_allclose(evaluation.values.detach().numpy(), chunk.extras["values"], atol=1e-5)
    (evaluation.log_probs.sum() + evaluation.entropy.sum() + evaluation.values.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.parameters())


def test_the_gaussian_head_agrees_with_torch() -> None:
    head = GaussianHead(4, 2, 3)
    features, actions = torch.randn(5, 4), torch.randn(5, 2, 3)
    torch.nn.init.normal_(head.log_std)
    log_probs, entropy = head.evaluate(features, actions)
    known = torch.distributions.Normal(head.mean(features).view(5, 2, 3), head.log_std.exp())
    torch.testing.assert_close(log_probs, known.log_prob(actions))
    torch.testing.assert_close(entropy, known.entropy())


def test_the_token_head_agrees_with_torch_and_draws_what_it_says() -> None:
    head = TokenHead(4, 1, 2, temperature=1.6)
    torch.nn.init.normal_(head.logits.weight, std=1.0)
    features = torch.randn(1, 4)
    known = torch.distributions.Categorical(logits=head.logits(features).view(1, 1, 2, BINS) / 1.6)
    tokens = torch.randint(0, BINS, (1, 1, 2))
    log_probs, entropy = head.evaluate(features, tokens)
    torch.testing.assert_close(log_probs, known.log_prob(tokens))
    torch.testing.assert_close(entropy, known.entropy(), atol=1e-4, rtol=1e-4)
    many = torch.rand(4000, 1, 2, BINS, generator=torch.Generator().manual_seed(0))
    drawn, _ = head.sample(features.expand(4000, 4), many)
    share = torch.nn.functional.one_hot(drawn, BINS).float().mean(0)
    assert (share - known.probs[0]).abs().max() < 0.04
    assert head.encode(head.decode(torch.arange(BINS))).tolist() == list(range(BINS))


def test_tokens_stand_for_the_middles_of_their_bins() -> None:
    middles = TokenHead(4, 1, 1).decode(torch.arange(BINS))
    assert float(middles[0]) == pytest.approx(-1.0 + 1.0 / BINS)
    torch.testing.assert_close(middles, -middles.flip(0))


def test_numbers_that_hardly_change_are_not_blown_up() -> None:
    policy = network("mlp", fields=["state"])
    observations = observed(16)
    observations.fields["state"][:, 2] = 0.5  # always the same
    policy.fit_normalisation(observations)
    seen = {name: array.copy() for name, array in observations.fields.items()}
    seen["state"][:, 2] += 0.01
    before, after = (
        policy.act(replace(observations, fields=fields)).actions[""] for fields in (observations.fields, seen)
    )
    assert np.isfinite(after).all()
    assert float(policy.state_dict()["torso.std"][2]) == pytest.approx(0.02)
    assert np.abs(after - before).max() < 1.0


def test_a_pixel_policy_sees_images_upright() -> None:
    """Rows of the image are rows of what the network is fed, and columns are columns."""
    policy = network("pixel", images=["front_rgb"], image_side=24)
    observations = observed(1)
    image = np.zeros((1, 24, 32, 3), np.uint8)
    image[:, :12] = 255  # the upper half
    fed = policy.inputs(replace(observations, fields={**observations.fields, "front_rgb": image}))["images"][0]
    assert fed.shape[-2:] == (24, 24)
    assert float(fed[:, :10].min()) == pytest.approx(1.0 + float(fed[:, 14:].max()))


def test_actions_of_demonstrations_survive_the_way_through_the_head() -> None:
    actions = observed(7).fields["expert_action"][:, None].repeat(3, 1)
    for head, tolerance in (("gaussian", 1e-5), ("tokens", 2.0 / BINS * 2)):
        policy = network("mlp", head=head)
        np.testing.assert_allclose(
            policy.to_simulator(policy.head.decode(policy.encode_actions(observed(7), actions))),
            actions,
            atol=tolerance,
        )


def test_weights_follow_the_seed_and_leave_torch_alone() -> None:
    torch.manual_seed(5)
    before = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = network("mlp"), network("mlp"), network("mlp", seed=1)
    assert torch.equal(torch.rand(3), before)
    assert torch.equal(first.head.mean.weight, second.head.mean.weight)
    assert not torch.equal(first.head.mean.weight, other.head.mean.weight)


def test_greedy_actions_need_no_noise() -> None:
    policy = network("mlp")
    first = policy.act(observed(4), explore=False)
    later = policy.act(replace(observed(4), steps=np.arange(4) + 50), explore=False)
    assert policy.act(observed(4)).actions[""].tobytes() != first.actions[""].tobytes()
    assert first.actions[""].tobytes() == later.actions[""].tobytes()


def test_words_are_hashed_alike_everywhere() -> None:
    bag = hashed("Open the TOP drawer", 64)
    assert bag.tobytes() == hashed("open the top, drawer!", 64).tobytes()
    assert abs(float(np.linalg.norm(bag)) - 1.0) < 1e-6
    assert not np.array_equal(bag, hashed("open the bottom drawer", 64))
    assert [round(float(x), 3) for x in bag[:6]] == [0.0, 0.129, -0.258, 0.0, -0.129, -0.129], (
        "hashes must not change between versions"
    )


def test_noise_is_the_same_in_every_version() -> None:
    drawn = normal(0, observed(1), (2,))
    np.testing.assert_allclose(drawn, [[-0.05377293, 0.06655101]], rtol=1e-5)
    assert drawn.tobytes() == normal(0, observed(3), (2,))[:1].tobytes()


def test_replay_says_when_a_recording_is_too_short_or_missing() -> None:
    episode = EpisodeId("t", 0)
    policy = ReplayPolicy(SPEC, {episode.key: {"": np.zeros((4, 3), np.float32)}}, chunk=3)
    assert policy.act(observed(1)).actions[""].shape == (1, 3, 3)
    with pytest.raises(RolloutError, match="ends after 4"):
        policy.act(replace(observed(1), steps=np.array([4])))
    with pytest.raises(RolloutError, match="no recording"):
        policy.act(observed(2))


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("mlpp", {}, UnknownName, "mlp"),
        ("nowhere.at:all", {}, UnknownName, "nowhere"),
        ("mlp", {"chunks": 3}, ConfigError, "did you mean chunk"),
        ("random", {"chunk": 0}, ConfigError, "at least one"),
        ("mlp", {"head": "softmax"}, ConfigError, "gaussian"),
        ("mlp", {"fields": ["joints"]}, ConfigError, "joints"),
        ("pixel", {"images": ["state"]}, ConfigError, "front_rgb"),
        ("mlp", {"deterministic": True, "batch_size": 0}, ConfigError, "batch_size"),
        ("mlp", {"deterministic": "yes"}, ConfigError, "deterministic is 'yes'"),
        ("mlp", {"sample": 1.5}, ConfigError, "sample is 1.5"),
        ("mlp", {"batch_size": 1e9}, ConfigError, "batch_size is"),
        ("mlp", {"critic": "word_level"}, ConfigError, "chunk_level or action_level"),
        ("random", {"batch_size": 4}, ConfigError, "no option 'batch_size'"),
    ],
)
def test_wrong_names_and_options_are_told(
    name: str, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        make_policy(name, SPEC, options)


def test_the_expert_needs_its_field() -> None:
    blind = Spec({"state": Field((5,))}, SPEC.actions)
    with pytest.raises(ConfigError, match="no expert"):
        make_policy("expert", blind)
    chunk = make_policy("expert", SPEC).act(observed(3))
    np.testing.assert_array_equal(chunk.actions[""][:, 0], observed(3).fields["expert_action"])
