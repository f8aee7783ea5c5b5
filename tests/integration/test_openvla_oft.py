"""OpenVLA-OFT: the numbers of the original code, batches that do not matter, learning, and what is refused.

Another golden folder of the same layout can be checked: ``pytest tests/integration/test_openvla_oft.py --golden PATH``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conftest import goldens
from manyarms import cli
from manyarms.algorithms.ppo import PPO
from manyarms.cli import eval as evaluation
from manyarms.cli.eval import EvalConfig
from manyarms.errors import ConfigError
from manyarms.learning.learner import Learner, LearnerConfig, OptimConfig
from manyarms.learning.samples import Samples
from manyarms.learning.settings import load
from manyarms.learning.training import train
from manyarms.policies.openvla_oft.fast import FusedNetwork
from manyarms.policies.openvla_oft.folder import OftFolder, load_part
from manyarms.policies.openvla_oft.heads import L1Head, StateProjector, TokenHead
from manyarms.policies.openvla_oft.model import STOP_TOKEN, Sequence, text_ids
from manyarms.policies.openvla_oft.policy import OpenVlaOftPolicy
from manyarms.policies.remote import RemotePolicy
from manyarms.policies.transforms import MaskedQuantile
from manyarms.serving.server import PolicyServer, ServerConfig
from manyarms.simulators.base import Field
from oft import GOLDEN, SPEC, STATE, batched_of, golden_with_tokenizer, made, observed, policy_of
from training import in_folder, lines, written

CPU = torch.device("cpu")


class Oracle:
    """A golden folder: its network and heads, and what the original code made of some inputs."""

    def __init__(self, path: Path) -> None:
        self.folder = OftFolder(path)
        with np.load(path / "oracle.npz") as file:
            self.inputs = dict(file)
        self.network = self.folder.network(torch.float32, CPU)
        _, chunk, width = self.inputs["actions_l1"].shape
        self.slots = chunk * width
        text = self.folder.config.text_config
        regression, state = self.folder.action_head(), self.folder.state_projector()
        assert regression is not None
        assert state is not None
        self.l1 = L1Head(text.hidden_size, chunk, width, len(regression["model.fc1.bias"]), 0.0)
        load_part(self.l1, regression, "l1", own=("log_scale",))
        self.projector = StateProjector(state["fc1.weight"].shape[1], text.hidden_size)
        load_part(self.projector, state, "state")
        first, bins = self.folder.config.first_action_token, self.folder.config.n_action_bins
        self.tokens = TokenHead(self.network.language_model.lm_head, first, bins, (chunk, width), 1.0)
        self.scale = MaskedQuantile(self.folder.statistics(None)[1]["action"])

    @torch.inference_mode()
    def features(
        self, rows: list[int], longest: int | None = None, forward: Callable[..., Tensor] | None = None
    ) -> Any:
        prompts = [self.inputs["input_ids"][row].tolist() for row in rows]
        ids, lengths = text_ids(prompts, self.slots, longest)
        sequence = Sequence(ids, lengths, self.slots, longest is not None)
        pixels = torch.from_numpy(self.inputs["pixel_values"][rows]).float()
        state = self.projector(torch.from_numpy(self.inputs["proprio"][rows]))
        return (forward or self.network)(pixels, sequence, state)

    @torch.inference_mode()
    def actions(self, head: Any, features: Tensor) -> np.ndarray:
        return self.scale.undo(head.decode(head.sample(features, None)[0]).double().numpy())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check our golden folder, and the one that is named on the command line where it is an OpenVLA's."""
    if "oracle" in metafunc.fixturenames:
        folders = goldens(metafunc.config, GOLDEN, "openvla")
        metafunc.parametrize("oracle", folders, indirect=True, ids=[folder.name for folder in folders], scope="module")


@pytest.fixture(scope="module")
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return Oracle(request.param)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden folder with a tokenizer."""
    return golden_with_tokenizer(tmp_path_factory.mktemp("golden") / "oft")


# -- the original's numbers -------------------------------------------------------------------------------------------


def test_actions_are_those_of_the_original_code(oracle: Oracle) -> None:
    everyone = list(range(len(oracle.inputs["proprio"])))
    features = oracle.features(everyone)
    assert np.abs(oracle.actions(oracle.l1, features) - oracle.inputs["actions_l1"]).max() <= 1e-5
    discrete = oracle.actions(oracle.tokens, features)
    np.testing.assert_array_equal(discrete, oracle.inputs["actions_discrete"].astype(np.float32))


def test_rows_get_the_same_alone_as_together_and_padding_changes_nothing(oracle: Oracle) -> None:
    everyone = list(range(len(oracle.inputs["proprio"])))
    together = oracle.features(everyone)
    alone = torch.cat([oracle.features([row]) for row in everyone])
    padded = oracle.features(everyone, longest=oracle.inputs["input_ids"].shape[1] + 9)
    for other in (alone, padded):
        torch.testing.assert_close(other, together, atol=2e-6, rtol=1e-5)
        found = oracle.actions(oracle.tokens, other)
        np.testing.assert_array_equal(found, oracle.inputs["actions_discrete"].astype(np.float32))


def test_fused_layers_compute_the_same_and_give_their_matrices_back(oracle: Oracle) -> None:
    everyone = list(range(len(oracle.inputs["proprio"])))
    plain, weights = oracle.features(everyone), oracle.network.state_dict()
    before = {name: tensor.clone() for name, tensor in weights.items()}
    with torch.inference_mode():
        fused = FusedNetwork(oracle.network, compiled=False)
    torch.testing.assert_close(oracle.features(everyone, forward=fused), plain, atol=2e-6, rtol=1e-5)
    longest = oracle.inputs["input_ids"].shape[1] + 5
    torch.testing.assert_close(oracle.features(everyone, longest, fused), plain, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(oracle.features(everyone), plain, atol=0, rtol=0)
    assert not any(parameter.is_inference() for parameter in oracle.network.parameters()), "they may have to learn"
    fused.release()
    after = oracle.network.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert len({t.untyped_storage().data_ptr() for t in after.values()}) == len(after)


def test_layers_in_eight_bits_compute_nearly_the_same(oracle: Oracle) -> None:
    everyone = list(range(len(oracle.inputs["proprio"])))
    plain = oracle.features(everyone)
    with torch.inference_mode():
        fused = FusedNetwork(oracle.network, compiled=False, eight_bits=True)
    found = oracle.features(everyone, forward=fused)
    fused.release()
    error = float((found - plain).norm() / plain.norm())
    assert 1e-3 < error < 0.05, "eight bits, and no more than they cost"


@pytest.mark.parametrize("adapted", [False, True])
def test_eight_bits_are_for_acting_on_a_gpu(golden: Path, adapted: bool) -> None:
    with pytest.raises(ConfigError, match=r"needs an NVIDIA GPU"):
        policy_of(golden, **STATE, precision="fp8", device="cpu")
    with pytest.raises(ConfigError, match=r"fast is false"):
        policy_of(golden, **STATE, precision="fp8", fast=False)
    policy = policy_of(golden, **STATE, lora_rank=4 if adapted else 0)
    policy.config = replace(policy.config, precision="fp8")
    with pytest.raises(ConfigError, match=r"cannot learn with precision fp8"):
        policy.prepare_to_learn()


def test_adapters_are_put_into_weights_of_eight_bits(golden: Path) -> None:
    policy = policy_of(golden, **STATE, head="tokens", lora_rank=4, lora_alpha=8)
    inputs = policy._senses(observed(3), CPU)
    assert policy.state_projector is not None
    assert inputs.state is not None
    with torch.inference_mode():
        given = (inputs.pixels, inputs.sequence, policy.state_projector(inputs.state))
        before = policy.network(*given)
    with torch.no_grad():  # as if they had learnt something
        for name, parameter in policy.network.named_parameters():
            if "lora_B" in name:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)), alpha=0.05)
    with torch.inference_mode():
        wanted = policy.network(*given)
        found = FusedNetwork(policy.network, compiled=False, eight_bits=True)(*given)
    error, learnt = (float((other - wanted).norm() / wanted.norm()) for other in (found, before))
    assert error < 0.1
    assert learnt > 0.4, "or adapters do not matter"


def test_fused_layers_compute_the_same_with_adapters_that_learn(golden: Path) -> None:
    policy = policy_of(golden, **STATE, head="tokens", lora_rank=4, lora_alpha=8)
    network, inputs = policy.network, policy._senses(observed(3), CPU)
    assert policy.state_projector is not None
    assert inputs.state is not None
    assert FusedNetwork.fits(network)
    held = sum(parameter.numel() for parameter in network.parameters())
    with torch.inference_mode():
        fused = FusedNetwork(network, compiled=False)
        given = (inputs.pixels, inputs.sequence, policy.state_projector(inputs.state))
        first = network(*given)
        torch.testing.assert_close(fused(*given), first, atol=2e-6, rtol=1e-5)
    with torch.no_grad():  # as if they had learnt something
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)), alpha=0.02)
    with torch.inference_mode():
        wanted = network(*given)
        assert (wanted - first).abs().max() > 1e-2
        torch.testing.assert_close(fused(*given), wanted, atol=2e-5, rtol=1e-4)
    places = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in network.parameters()}
    assert sum(places.values()) == 4 * held, "views, not copies"
    fused.release()
    with torch.inference_mode():
        torch.testing.assert_close(network(*given), wanted, atol=0, rtol=0)
    other = network.layers[1].mlp
    other.down_proj = other.down_proj.base_layer
    assert not FusedNetwork.fits(network), "an adapter is on all or on none"


def test_small_steps_of_adapters_are_not_rounded_away_beside_weights_of_bfloat16(golden: Path) -> None:
    policy = policy_of(golden, **STATE, head="tokens", lora_rank=4, precision="bf16")
    layer = policy.network.layers[0]
    with torch.no_grad():
        layer.mlp.down_proj.lora_B["default"].weight.fill_(1e-6)
    fused = FusedNetwork(policy.network, compiled=False)
    matrix = fused._layers[0].down
    x = torch.ones(1, matrix.weight.shape[1], dtype=torch.bfloat16)
    wanted = layer.mlp.down_proj.lora_A["default"].weight.detach().sum() * 1e-6 * layer.mlp.down_proj.scaling["default"]
    assert wanted.abs() > 0
    found = torch.zeros(1, len(matrix.weight), dtype=torch.bfloat16)
    matrix.adapt(found, x)
    torch.testing.assert_close(found.float(), wanted.expand(1, len(matrix.weight)), rtol=2e-2, atol=0)


def test_transformers_finds_the_network_by_its_config(oracle: Oracle) -> None:
    from transformers import AutoModel

    found = AutoModel.from_pretrained(oracle.folder.path).eval()
    assert found.state_dict().keys() == oracle.network.state_dict().keys()
    torch.testing.assert_close(oracle.features([0], forward=found), oracle.features([0]), atol=0, rtol=0)


# -- as a policy ------------------------------------------------------------------------------------------------------


def test_a_policy_gives_what_its_network_makes_of_what_it_sees(golden: Path) -> None:
    policy = policy_of(golden, **STATE, gripper="raw")
    observations = observed(1)
    with torch.inference_mode():
        inputs = policy._senses(observations, CPU)
        assert policy.state_projector is not None
        state = np.concatenate([observations.fields["pose"], observations.fields["open"][:, None]], 1)
        statistics = OftFolder(golden).statistics("libero_spatial")[1]
        np.testing.assert_array_equal(inputs.state, MaskedQuantile(statistics["proprio"], clip=True).apply(state))
        features = policy.network(inputs.pixels, inputs.sequence, policy.state_projector(inputs.state))
        unit = policy.head.sample(features, None)[0].numpy()
    wanted = MaskedQuantile(statistics["action"]).undo(unit).clip(-1.0, 1.0)
    np.testing.assert_allclose(policy.act(observations).actions[""], wanted, atol=1e-6)
    assert policy.cameras == ("front", "wrist")
    assert policy.reads == ("front_rgb", "wrist_rgb", "pose", "open")


@pytest.mark.parametrize("head", ["l1", "tokens"])
def test_a_checkpoint_acts_without_noise_unless_it_is_told_to_explore(golden: Path, head: str) -> None:
    observations = observed(3)
    later = replace(observations, steps=observations.steps + 1)
    told: list[dict[str, Any]] = [{}, {"sample": False}, {"sample": True}]
    plain, best, drawn = (batched_of(golden, **STATE, head=head, **options) for options in told)
    np.testing.assert_array_equal(plain.act(observations).actions[""], best.act(observations).actions[""])
    np.testing.assert_array_equal(plain.act(observations).actions[""], plain.act(later).actions[""])
    assert not np.array_equal(drawn.act(observations).actions[""], drawn.act(later).actions[""])


@pytest.mark.parametrize("head", ["l1", "tokens"])
def test_a_batch_of_different_prompts_is_as_one_by_one(golden: Path, head: str) -> None:
    policy = policy_of(golden, **STATE, head=head)
    everyone = observed(5)
    lengths = [len(policy._senses._prompts(text)) for text in everyone.texts]
    assert len(set(lengths)) == 3, "or nothing is ragged"
    together = policy.act(everyone, explore=True)
    for row in range(5):
        alone = policy.act(everyone.rows([row]), explore=True)
        np.testing.assert_allclose(alone.actions[""][0], together.actions[""][row], atol=1e-5)
        np.testing.assert_allclose(alone.extras["log_probs"][0], together.extras["log_probs"][row], atol=1e-4)


def test_what_a_row_gets_does_not_depend_on_its_neighbours_bit_for_bit(golden: Path) -> None:
    policy = batched_of(
        golden, **STATE, head="tokens", sample=True, deterministic=True, batch_size=4, critic="chunk_level"
    )
    everyone = observed(6)
    together = policy.act(everyone)
    for index in ([2], [5, 0, 3]):
        some = policy.act(everyone.rows(index))
        assert some.actions[""].tobytes() == together.actions[""][index].tobytes()
        for extra, values in some.extras.items():
            assert values.tobytes() == together.extras[extra][index].tobytes(), extra
    later = replace(everyone, steps=everyone.steps + 1)
    assert not np.array_equal(policy.act(later).actions[""], together.actions[""]), "noise belongs to episode and step"
    with pytest.raises(ConfigError, match=r"prompt of \d+ tokens, but prompt_length is 16"):
        batched_of(golden, **STATE, deterministic=True, prompt_length=16).act(everyone)


def test_the_gripper_follows_libero_where_the_statistics_do(golden: Path) -> None:
    observations = observed(3)
    raw = policy_of(golden, **STATE, gripper="raw").act(observations).actions[""]
    converted = policy_of(golden, **STATE).act(observations).actions[""]
    np.testing.assert_array_equal(converted[..., :-1], raw[..., :-1])
    np.testing.assert_array_equal(converted[..., -1], -np.sign(2.0 * raw[..., -1] - 1.0))


@pytest.mark.parametrize("head", ["l1", "tokens"])
def test_actions_to_imitate_come_back_as_they_were(golden: Path, head: str) -> None:
    policy = policy_of(golden, **STATE, head=head, gripper="raw")
    actions = np.random.default_rng(0).uniform(-0.8, 0.7, (4, 8, 7)).astype(np.float32)
    unit = policy.head.decode(policy.encode_actions(observed(len(actions)), actions)).numpy()
    error = np.abs(policy._actions.to_simulator(unit) - actions).max()
    assert error <= (1e-6 if head == "l1" else 2.2 / 255)


@pytest.mark.parametrize(
    ("images", "width", "chunk", "regression"), [(1, 23, 4, True), (3, 7, 2, False), (2, 2, 1, True)]
)
def test_any_width_chunk_and_number_of_images(
    tmp_path: Path, images: int, width: int, chunk: int, regression: bool
) -> None:
    folder = made(tmp_path / "made", width, regression=regression, num_action_chunks=chunk)
    spec = replace(SPEC, actions={"": Field((width,), "float32", -1.0, 1.0)})
    policy = policy_of(folder, spec, num_images=images, critic="action_level")
    observations = observed(2, spec=spec)
    chunked = policy.act(observations, explore=True)
    assert chunked.actions[""].shape == chunked.extras["log_probs"].shape == (2, chunk, width)
    assert chunked.extras["values"].shape == policy.values(observations).shape == (2, chunk)
    assert isinstance(policy.head, L1Head if regression else TokenHead)
    assert policy.cameras is not None
    assert policy.reads is not None
    assert len(policy.cameras) == images
    last = policy.reads[-1]
    changed = observations.with_fields(**{last: 255 - observations.fields[last]})
    again = policy.act(changed, explore=True)
    assert not np.array_equal(again.extras["log_probs"], chunked.extras["log_probs"]), "it looks at all"


def test_actions_stay_within_the_simulators_bounds(golden: Path) -> None:
    narrow = replace(SPEC, actions={"": Field((7,), "float32", -0.01, 0.01)})
    actions = policy_of(golden, narrow, **STATE, gripper="raw").act(observed(6)).actions[""]
    assert actions.min() == np.float32(-0.01)
    assert actions.max() == np.float32(0.01)


def test_the_critic_reads_the_state_before_the_first_number_of_the_chunk(golden: Path) -> None:
    policy = policy_of(golden, **STATE, head="tokens", critic="chunk_level")
    assert policy.value is not None
    with torch.no_grad():
        for parameter in policy.value.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
        features = policy._features(policy._senses(observed(3), CPU), policy.network)
        wanted = policy.value(features[:, 0].float())[:, 0]
    np.testing.assert_allclose(policy.act(observed(3)).extras["values"], wanted, atol=1e-5)
    assert np.abs(policy.value(features[:, -1].float())[:, 0].detach().numpy() - wanted.numpy()).max() > 1e-3


def test_a_checkpoint_of_adapters_holds_all_that_learns(golden: Path) -> None:
    policy = policy_of(golden, **STATE, head="l1", critic="chunk_level", lora_rank=2)
    learns = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert set(policy.trainable_state()) == learns
    for part in ("value.", "head.log_scale", "lora_"):
        assert any(part in name for name in learns), part


def test_without_a_stop_token_actions_stand_last(golden: Path) -> None:
    everyone = observed(5)
    policy, other = (policy_of(golden, **STATE, head="tokens", stop_token=stop) for stop in (True, False))
    longer, shorter = (one._senses.sequence(list(everyone.texts), CPU) for one in (policy, other))
    assert longer.ids.shape[1] == shorter.ids.shape[1] + 1
    assert (longer.ids == STOP_TOKEN).sum() == 5
    assert not (shorter.ids == STOP_TOKEN).any()
    found = other.act(everyone)
    assert not np.array_equal(found.extras["log_probs"], policy.act(everyone).extras["log_probs"])
    for row in range(5):  # ragged: what only fills up is seen by nobody
        alone = other.act(everyone.rows([row]))
        np.testing.assert_allclose(alone.extras["log_probs"][0], found.extras["log_probs"][row], atol=1e-4)
    with torch.inference_mode():
        inputs = other._senses(everyone, CPU)
        assert other.state_projector is not None
        assert inputs.state is not None
        given = (inputs.pixels, inputs.sequence, other.state_projector(inputs.state))
        plain = other.network(*given)
        fused = FusedNetwork(other.network, compiled=False)(*given)
    torch.testing.assert_close(fused, plain, atol=2e-6, rtol=1e-5)


# -- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["l1", "tokens"])
def test_recomputed_log_probabilities_are_the_rollouts(golden: Path, head: str) -> None:
    batched = batched_of(golden, **STATE, head=head, sample=True, value_head=True, deterministic=True, batch_size=4)
    policy, observations = batched.policy, observed(6)
    chunk = batched.act(observations)
    policy.train()
    found = policy.evaluate(observations, chunk.extras["chosen"])
    assert found.values is not None
    np.testing.assert_allclose(found.log_probs.detach(), chunk.extras["log_probs"], atol=2e-5)
    np.testing.assert_allclose(found.values.detach(), chunk.extras["values"], atol=2e-5)
    (found.log_probs.sum() + found.entropy.sum()).backward()
    reached = {name for name, p in policy.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    for part in (
        "featurizer.blocks.0",
        "fused_featurizer.blocks.0",
        "projector.fc1",
        "layers.0.mlp",
        "state_projector",
    ):
        assert any(part in name for name in reached), part
    assert any(name.startswith("head.") if head == "l1" else "lm_head" in name for name in reached)
    left = [n for n, p in policy.named_parameters() if p.requires_grad and p.grad is None and not n.startswith("value")]
    assert not left, "ranks would wait for these"


def decisions(policy: OpenVlaOftPolicy, count: int = 6) -> Samples:
    """Return decisions with advantages that differ."""
    observations = observed(count)
    chunk = policy.act(observations, explore=True)
    advantages = np.linspace(-1.0, 1.0, count).astype(np.float32)
    mask = np.ones(chunk.extras["log_probs"].shape[:2], np.float32)
    return Samples(
        *(observations, chunk.extras["chosen"], chunk.extras["log_probs"], mask, advantages),
        returns=advantages * 2.0,
        values=chunk.extras["values"],
    )


@pytest.mark.parametrize(
    ("options", "lr"), [({"head": "l1"}, 1e-5), ({"head": "tokens"}, 1e-4), ({"head": "tokens", "lora_rank": 4}, 1e-3)]
)
def test_a_step_of_ppo_lowers_the_loss_on_its_batch(golden: Path, options: dict[str, Any], lr: float) -> None:
    policy = policy_of(golden, **STATE, **options, critic="chunk_level", gradient_checkpointing=True)
    algorithm = PPO(update_epoch=1, logprob_type="token_level")
    learner = Learner(policy, algorithm, OptimConfig(lr=lr), LearnerConfig(6))
    batch = decisions(policy)
    base = {name: tensor.clone() for name, tensor in policy.network.state_dict().items() if "lora" not in name}
    found = [learner.update(batch, step) for step in range(3)]
    for part in ("actor/loss", "actor/policy_loss"):
        assert found[2][part] < found[1][part] < found[0][part], part
    after = policy.network.state_dict()
    changed = any(not torch.equal(after[name], base[name]) for name in base)
    assert changed == ("lora_rank" not in options)


def test_adapters_begin_at_nothing_and_are_all_that_is_saved(golden: Path, tmp_path: Path) -> None:
    options = {**STATE, "head": "tokens"}
    plain = policy_of(golden, **options)
    policy = policy_of(golden, **options, lora_rank=4)
    np.testing.assert_array_equal(policy.act(observed(6)).actions[""], plain.act(observed(6)).actions[""])
    saved = policy.trainable_state()
    assert saved
    assert all("lora_" in name or name.startswith("state_projector") for name in saved)
    assert len(saved) < len(policy.state_dict())
    assert not [name for name in saved if "blocks.2" in name or "attn_pool" in name], "what is not used needs none"


def test_one_policy_explores_and_is_evaluated_without_a_copy_of_its_weights(golden: Path) -> None:
    explores = batched_of(golden, **STATE, sample=True, batch_size=4)
    evaluated = explores.for_evaluation()
    assert evaluated.policy is explores.policy
    wanted = batched_of(golden, **STATE, sample=False, deterministic=True, batch_size=4).act(observed(2)).actions[""]
    np.testing.assert_array_equal(evaluated.act(observed(2)).actions[""], wanted)
    assert not np.array_equal(explores.act(observed(2)).actions[""], wanted)


def test_in_bf16_all_weights_learn_in_float32(golden: Path) -> None:
    policy = policy_of(golden, **STATE, head="tokens", precision="bf16", critic="chunk_level")
    assert {p.dtype for p in policy.network.parameters()} == {torch.bfloat16}
    acted = policy.act(observed(3)).extras["log_probs"]
    learner = Learner(policy, PPO(update_epoch=1), OptimConfig(lr=1e-6), LearnerConfig(3))
    assert {p.dtype for p in policy.network.parameters()} == {torch.float32}
    np.testing.assert_allclose(policy.act(observed(3)).extras["log_probs"], acted, atol=0.2)
    before = {name: tensor.clone() for name, tensor in policy.network.state_dict().items()}
    learner.update(decisions(policy, 3), 0)
    moved = [name for name, tensor in policy.network.state_dict().items() if not torch.equal(tensor, before[name])]
    assert any("q_proj" in name for name in moved), "steps of a millionth count"


def test_in_bf16_adapters_learn_in_float32_beside_weights_that_stay(golden: Path) -> None:
    policy = policy_of(golden, **STATE, head="tokens", precision="bf16", lora_rank=4)
    policy.prepare_to_learn()
    kinds = {(parameter.requires_grad, parameter.dtype) for parameter in policy.network.parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    chunk = policy.act(observed(2))
    found = policy.evaluate(observed(2), chunk.extras["chosen"])
    np.testing.assert_allclose(found.log_probs.detach(), chunk.extras["log_probs"], atol=1e-3)


# -- end to end -------------------------------------------------------------------------------------------------------

_TABLETOP = ("arm_mode=delta_ee", "cameras=[front,wrist]", "image_size=48")


def test_eval_gives_the_same_for_any_number_of_environments(golden: Path, tmp_path: Path) -> None:
    options = (f"model_path={golden}", "unnorm_key=libero_spatial", "state=[gripper_pose,gripper_open]")
    options = (*options, "deterministic=true", "batch_size=2", "prompt_length=96")
    settings: dict[str, Any] = {"episodes": 3, "max_episode_steps": 16, "policy_options": options, "options": _TABLETOP}
    results = [
        evaluation.run(
            EvalConfig(
                "tabletop/reach_target", policy="openvla_oft", num_envs=count, out=tmp_path / str(count), **settings
            )
        )
        for count in (1, 2)
    ]
    first, second = ([(r.seed, r.length, r.total_reward) for r in result.results] for result in results)
    assert first == second
    assert len(first) == 3


def test_a_served_policy_acts_as_a_local_one(golden: Path) -> None:
    policy, observations = batched_of(golden, **STATE, deterministic=True, batch_size=4), observed(4)
    numbers = {name: observations.fields[name].astype(np.float32) for name in ("pose", "open")}
    observations = observations.with_fields(**numbers)
    with PolicyServer(policy, SPEC, ServerConfig(port=0)) as server:
        remote = RemotePolicy(SPEC, port=server.port)
        assert (remote.chunk, remote.cameras) == (8, ("front", "wrist"))
        found = remote.act(observations)
        remote.close()
    local = policy.act(observations)
    np.testing.assert_array_equal(found.actions[""], local.actions[""])
    np.testing.assert_array_equal(found.extras["log_probs"], local.extras["log_probs"])


_CONFIG = """
runner: {{max_steps: 2, val_check_interval: 2, save_interval: 1, logger: {{logger_backends: []}}}}
algorithm: {algorithm}
env:
  train:
    simulator: tabletop/reach_target
    total_num_envs: 2
    rows_per_worker: 2
    max_episode_steps: 16
    options: {{arm_mode: delta_ee, cameras: [front, wrist], image_size: 48, shaped_rewards: true}}
  eval: {{episodes: 2}}
rollout: {{batch_size: 2}}
actor:
  global_batch_size: 4
  model:
    model_type: openvla_oft
    num_action_chunks: 8
    action_dim: 7
    options:
      model_path: {folder}
      unnorm_key: libero_spatial
      state: [gripper_pose, gripper_open]
      prompt_length: 96
      {options}
  optim: {{lr: 1.0e-3}}
"""


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("{update_epoch: 2, episodes_per_step: 2, logprob_type: token_level}", "{head: tokens, lora_rank: 4}"),
        ("{adv_type: grpo, loss_type: actor, group_size: 2, update_epoch: 1, episodes_per_step: 2}", "{head: l1}"),
    ],
)
def test_training_runs_and_its_checkpoint_evaluates_to_the_same(
    golden: Path, tmp_path: Path, algorithm: str, options: str
) -> None:
    inside = "\n      ".join(options.strip("{}").split(", "))
    config = written(tmp_path, _CONFIG.format(algorithm=algorithm, folder=golden, options=inside))
    result = train(load(config, in_folder(tmp_path, "oft")))
    assert result.updates == 2
    logged = lines(result.folder)
    assert all(np.isfinite(value) for line in logged for value in line.values())
    assert logged[1]["actor/ratio"] == pytest.approx(1.0, abs=0.2)
    recipe = json.loads((result.folder / "checkpoints" / "global_step_2" / "policy.json").read_text())
    assert recipe["options"]["sample"], "training explores"
    checkpoint = result.folder / "checkpoints" / "global_step_2"
    names = load_file(checkpoint / "model.safetensors")
    base = "network.language_model.model.embed_tokens.weight"
    assert (base in names) == ("lora_rank" not in options), "of adapters, the base is named and not copied"
    again = evaluation.run(
        EvalConfig(
            *("tabletop/reach_target",),
            policy=str(checkpoint),
            episodes=2,
            seed=1_000_000,
            num_envs=2,
            out=tmp_path / "x",
        )
    )
    assert np.mean([r.total_reward for r in again.results]) == pytest.approx(logged[2]["eval/return"], rel=1e-6)


def test_the_command_line_names_a_checkpoint_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "tabletop/reach_target", "--policy", "openvla_oft", "--policy-options", f"model_path={tmp_path}"]
    assert cli.run([*words, "--options", *_TABLETOP, "--out", str(tmp_path / "out")]) == 2
    assert "holds no model.safetensors" in capsys.readouterr().err
