"""π0: golden outputs of the original code, checkpoints of all layouts, probabilities, learning, and the commands."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional

from conftest import goldens
from manyarms import EpisodeId, cli
from manyarms.algorithms.ppo import PPO
from manyarms.algorithms.rwfm import RWFM
from manyarms.errors import ConfigError
from manyarms.learning.cloning import CloningConfig, clone
from manyarms.learning.demonstrations import Demonstrations
from manyarms.learning.learner import Learner, LearnerConfig, OptimConfig
from manyarms.learning.samples import Samples
from manyarms.learning.settings import from_mapping
from manyarms.placement.learners import LearnerRole
from manyarms.placement.roles import Report, RolloutRole
from manyarms.placement.seats import Seat
from manyarms.policies import Observations, make_policy, noise
from manyarms.policies.checkpoints import CheckpointFolder, TensorInfo, inspect
from manyarms.policies.pi0 import flow, loading
from manyarms.policies.pi0.fast import Draw, FastPath
from manyarms.policies.pi0.fused import FusedWeights, product
from manyarms.policies.pi0.model import Inputs, prefix_of, velocities
from manyarms.policies.pi0.policy import Pi0Policy
from manyarms.policies.pi0.preprocessing import Words, image_fields, resized
from manyarms.policies.trainable import Batched
from manyarms.simulators.base import Field
from pi0_checkpoints import GOLDEN, pi0_folder, statistics
from standins import Walker

SPEC = Walker().spec


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check the golden folder that comes with the tests, and one given with --golden."""
    if "golden" in metafunc.fixturenames:
        folders = goldens(metafunc.config, GOLDEN, "pi0")
        metafunc.parametrize("golden", folders, ids=lambda path: path.name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pi0_folder(tmp_path_factory.mktemp("pi0") / "checkpoint")


def oracle(golden: Path) -> tuple[Inputs, torch.Tensor, torch.Tensor]:
    """Return what the original code was given, the noise it began with, and what came out."""
    found = {name: torch.from_numpy(array) for name, array in np.load(golden / "oracle.npz").items()}
    seen = torch.ones(found["images"].shape[:2], dtype=torch.bool)
    inputs = Inputs(found["images"], seen, found["tokens"], found["token_mask"], found["state"])
    return inputs, found["noise"], found["actions"]


def part(inputs: Inputs, rows: slice) -> Inputs:
    whole = (inputs.images, inputs.image_mask, inputs.tokens, inputs.token_mask, inputs.state)
    return Inputs(*(tensor[rows] for tensor in whole))


@torch.no_grad()
def followed(model: Any, inputs: Inputs, noise: torch.Tensor, steps: int | None = None) -> torch.Tensor:
    """Follow the flow, as plainly as can be, in the steps that the checkpoint says."""
    prefix, x = prefix_of(model, inputs), noise
    times = flow.times_of(steps or model.config.num_inference_steps)
    for t, after in pairwise(times):
        velocity, _ = velocities(model, prefix, inputs.state, x[:, None], t.expand(len(x), 1))
        x = x + (after - t) * velocity[:, 0]
    return x


def loaded(path: Path) -> Any:
    return loading.load(CheckpointFolder.open(path), torch.float32, "cpu")


def batched_of(folder: Path, **options: Any) -> Batched:
    made = make_policy("pi0", SPEC, {"model_path": str(folder), "state": ["position"], "chunk": 4, **options})
    assert isinstance(made, Batched)
    return made


def policy_of(folder: Path, **options: Any) -> Pi0Policy:
    made = batched_of(folder, **options).policy
    assert isinstance(made, Pi0Policy)
    return made


def seen(count: int, seed: int = 0) -> Observations:
    """Return observations of a walker in the middle of different episodes."""
    rng = np.random.default_rng(seed)
    fields = {
        "position": rng.normal(size=(count, 2)),
        "front_rgb": rng.integers(0, 255, (count, 4, 6, 3), np.uint8),
        "wrist_rgb": rng.integers(0, 255, (count, 4, 6, 3), np.uint8),
    }
    texts = [("go near", "go far away from here")[i % 2] for i in range(count)]
    return Observations(fields, texts, [EpisodeId("near", seed + i) for i in range(count)], np.arange(count) * 4)


# -- the model --------------------------------------------------------------------------------------------------------


def test_actions_are_those_of_the_original_code(golden: Path) -> None:
    assert loading.fit_of(CheckpointFolder.open(golden), loading.architecture(CheckpointFolder.open(golden)))
    model = loaded(golden)
    inputs, noise, actions = oracle(golden)
    assert golden != GOLDEN or not inputs.token_mask.all()  # some prompts are padded
    found = followed(model, inputs, noise)
    assert float((found - actions).abs().max()) <= 2e-5
    one_by_one = [followed(model, part(inputs, slice(i, i + 1)), noise[i : i + 1]) for i in range(len(noise))]
    assert float((torch.cat(one_by_one) - actions).abs().max()) <= 2e-5


def test_the_fast_path_gives_the_actions_of_the_original_code(golden: Path) -> None:
    model = loaded(golden)
    inputs, noise, actions = oracle(golden)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    fast = FastPath(model, torch.float32)
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    steps = model.config.num_inference_steps
    times = flow.times_of(steps)
    shape = (len(noise), steps, *noise.shape[1:])
    plain = flow.euler(times[:-1, None, None].expand(shape), times[1:, None, None].expand(shape))
    found = fast.draw(inputs, Draw(noise, times, plain, torch.zeros(shape)))[:, -1]
    assert float((found - actions).abs().max()) <= 2e-5


def test_ours_is_what_transformers_samples(golden: Path) -> None:
    model = loaded(golden)
    inputs, noise, _ = oracle(golden)
    vision = model.config.vlm_config.vision_config
    patches = inputs.image_mask.shape[1] * (vision.image_size // vision.patch_size) ** 2
    images = torch.full((len(noise), patches), model.config.vlm_config.image_token_id)
    theirs = model.sample_actions(
        state=inputs.state,
        input_ids=torch.cat([images, inputs.tokens], 1),
        pixel_values=inputs.images,
        noise=noise,
        attention_mask=torch.cat([torch.ones_like(images), inputs.token_mask.long()], 1),
        pixel_attention_mask=inputs.image_mask,
        num_steps=7,
    )
    assert float((followed(model, inputs, noise, 7) - theirs).abs().max()) <= 2e-5


def test_an_image_that_is_masked_might_as_well_not_be_there() -> None:
    model = loaded(GOLDEN)
    inputs, noise, _ = oracle(GOLDEN)
    mask = torch.tensor([[True, False]]).expand(len(noise), 2)
    masked = followed(model, replace(inputs, image_mask=mask), noise)
    without = followed(model, replace(inputs, images=inputs.images[:, :1], image_mask=mask[:, :1]), noise)
    assert float((masked - without).abs().max()) <= 2e-5
    assert float((masked - followed(model, inputs, noise)).abs().max()) > 1e-3


# -- checkpoints ------------------------------------------------------------------------------------------------------


def renamed_as_older_lerobot(name: str) -> str:
    """Return the names that LeRobot's first checkpoints had."""
    name = name.replace("paligemma.lm_head", "paligemma.language_model.lm_head")
    name = name.replace("paligemma.model.language_model.", "paligemma.language_model.model.")
    return "model." + name.replace("paligemma.model.", "paligemma.")


@pytest.mark.parametrize(
    ("rename", "layout"),
    [
        (lambda name: f"model.{name}", "LeRobot"),
        (renamed_as_older_lerobot, "LeRobot"),
        (loading.native_name, "transformers"),
    ],
)
def test_every_layout_gives_the_same_model(rename: Callable[[str], str], layout: str, tmp_path: Path) -> None:
    path = pi0_folder(tmp_path / "other")
    weights = load_file(path / "model.safetensors")
    save_file({rename(name): tensor for name, tensor in weights.items()}, path / "model.safetensors")
    assert loading.layout_of(CheckpointFolder.open(path)) == layout
    inputs, noise, actions = oracle(GOLDEN)
    assert float((followed(loaded(path), inputs, noise) - actions).abs().max()) <= 2e-5


def test_weights_in_several_files_are_found(tmp_path: Path) -> None:
    path = pi0_folder(tmp_path / "sharded")
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    files = {"model-00001-of-00002.safetensors": names[:40], "model-00002-of-00002.safetensors": names[40:]}
    for file, inside in files.items():
        save_file({name: weights[name] for name in inside}, path / file)
    places = {name: file for file, inside in files.items() for name in inside}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    inputs, noise, actions = oracle(GOLDEN)
    assert float((followed(loaded(path), inputs, noise) - actions).abs().max()) <= 2e-5
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"there is no .*model-00002-of-00002"):
        loaded(path)


def test_configs_of_openpi_and_lerobot_are_understood() -> None:
    lerobot = {"type": "pi0", "chunk_size": 30, "max_state_dim": 20, "max_action_dim": 24, "num_inference_steps": 5}
    config = loading.architecture(CheckpointFolder(Path("somewhere"), lerobot, {}))
    assert (config.chunk_size, config.max_state_dim, config.max_action_dim) == (30, 20, 24)
    assert config.num_inference_steps == 5
    openpi = {"action_dim": 32, "action_horizon": 50, "paligemma_variant": "gemma_2b", "precision": "bfloat16"}
    config = loading.architecture(CheckpointFolder(Path("somewhere"), openpi, {}))
    assert (config.chunk_size, config.vlm_config.text_config.hidden_size, config.dit_config.hidden_size) == (
        50,
        2048,
        1024,
    )


def weights_of_openpi() -> dict[str, TensorInfo]:
    """Return some of the weights that openpi's training saves, with no config beside them."""
    shapes: dict[str, tuple[int, ...]] = {"action_in_proj.weight": (1024, 32), "state_proj.weight": (1024, 32)}
    for part, width, inner in (
        ("paligemma.model.language_model", 2048, 16384),
        ("gemma_expert.model", 1024, 4096),
    ):
        for layer in range(18):
            shapes[f"paligemma_with_expert.{part}.layers.{layer}.mlp.gate_proj.weight"] = (inner, width)
    return {name: TensorInfo(shape, "BF16", Path("model.safetensors")) for name, shape in shapes.items()}


def test_weights_without_a_config_tell_what_they_are_but_for_the_horizon() -> None:
    folder = CheckpointFolder(Path("somewhere"), {}, weights_of_openpi())
    with pytest.raises(ConfigError, match=r"there is no .*config.json(?s:.*)horizon"):
        loading.architecture(folder)
    config = loading.architecture(folder, horizon=10)
    assert (config.chunk_size, config.max_action_dim, config.max_state_dim) == (10, 32, 32)
    assert (config.vlm_config.text_config.hidden_size, config.dit_config.hidden_size) == (2048, 1024)
    fewer = {name: tensor for name, tensor in folder.tensors.items() if ".layers.17." not in name}
    with pytest.raises(ConfigError, match=r"17 layers .*(?s:.*)gemma_2b"):
        loading.architecture(CheckpointFolder(Path("somewhere"), {}, fewer), horizon=10)


def test_a_horizon_other_than_the_configs_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json says 10"):
        policy_of(folder, horizon=50)


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def scramble_header(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:8] + b"\xff" * 64 + file.read_bytes()[72:])


def put_garbage(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"these are no weights, whatever they are called")


def put_pointer(path: Path) -> None:
    (path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def spoil_a_number(path: Path) -> None:
    change(path, lambda weights: weights["action_out_proj.bias"].fill_(float("nan")))


def drop_a_weight(path: Path) -> None:
    change(path, lambda weights: weights.pop("state_proj.bias"))


def add_a_weight(path: Path) -> None:
    change(path, lambda weights: weights.update(surplus=torch.zeros(1)))


def cut_a_weight(path: Path) -> None:
    change(path, lambda weights: weights.update({"action_in_proj.weight": torch.zeros(32, 16)}))


def make_it_pi05(path: Path) -> None:
    change(path, lambda weights: weights.update({"time_mlp_in.weight": torch.zeros(32, 32)}))


def change(path: Path, how: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(path / "model.safetensors")
    how(weights)
    save_file(weights, path / "model.safetensors")


def claim_a_long_header(path: Path) -> None:
    """A file of holes, which is as long as its header claims."""
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", (1 << 40) - 8))
        file.truncate(1 << 40)


def name_tokens_beyond(path: Path) -> None:
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = dict.fromkeys(tokenizer["model"]["vocab"], 10**9)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))


def lose_the_unknown_word(path: Path) -> None:
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["model"] = {"type": "WordLevel", "vocab": {}, "unk_token": "x"}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))


def give_one_mean_for_all(path: Path) -> None:
    statistics = json.loads((path / "norm_stats.json").read_text())
    statistics["norm_stats"]["state"] = {"mean": 0.0, "std": 1.0}
    (path / "norm_stats.json").write_text(json.dumps(statistics))


def give_means_of_images(path: Path) -> None:
    statistics = json.loads((path / "norm_stats.json").read_text())
    statistics["norm_stats"]["state"] = {"mean": [[[0.0]]] * 3, "std": [[[1.0]]] * 3}
    (path / "norm_stats.json").write_text(json.dumps(statistics))


def call_it_bert(path: Path) -> None:
    (path / "config.json").write_text('{"model_type": "bert"}')


def break_the_config(path: Path) -> None:
    (path / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (truncate, r"model.safetensors is truncated"),
        (scramble_header, r"model.safetensors is corrupted"),
        (put_garbage, "truncated or no safetensors file"),
        (put_pointer, "Git LFS pointer"),
        (spoil_a_number, "action_out_proj.bias is not finite"),
        (drop_a_weight, "1 missing: embed_action_time.state_proj.bias"),
        (add_a_weight, "1 unexpected: surplus"),
        (cut_a_weight, r"of another shape: embed_action_time.action_in_proj.weight \[32, 16\] instead of \[32, 32\]"),
        (make_it_pi05, "is a checkpoint of pi0.*other layers than π0"),
        (call_it_bert, "config.json says bert"),
        (break_the_config, "config.json cannot be read"),
        (lambda path: (path / "model.safetensors").unlink(), "holds no model.safetensors"),
        (claim_a_long_header, "no safetensors file.*its header claims to have"),
        (name_tokens_beyond, "tokenizer.json makes token 1000000000, but the network knows"),
        (lose_the_unknown_word, "tokenizer.json is no tokenizer.*it fails at"),
        (give_one_mean_for_all, "'state' has single numbers or arrays of unlike shapes"),
        (give_means_of_images, "not of a row of numbers"),
        (lambda path: (path / "tokenizer.json").unlink(), "there is no .*tokenizer.json"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "tokenizer.json is no tokenizer"),
        (lambda path: (path / "norm_stats.json").unlink(), "has no norm_stats.json"),
        (lambda path: (path / "norm_stats.json").write_text('{"mean": 0}'), "norm_stats.json holds no norm_stats"),
    ],
)
def test_a_checkpoint_that_would_not_work_is_refused_by_name(
    spoil: Callable[[Path], Any], says: str, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "spoilt"
    shutil.copytree(folder, path)
    spoil(path)
    with pytest.raises(ConfigError, match=rf"(?s){says}"):
        policy_of(path).act(seen(1))


def test_options_that_cannot_be_meant_are_errors(folder: Path) -> None:
    for options, says in (
        ({"imagse": []}, "images"),
        ({"chunk": 11}, "gives 10 actions"),
        ({"noise": "flow_ode"}, "flow_sde"),
        ({"noise": "flow_sde", "noise_level": 0.0}, "above 0"),
        ({"steps": 10**9}, "steps is 1000000000; it must be from 1 to 1000"),
        ({"relative": 2**63}, "relative is 9223372036854775808"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"norm_stats": "/dev/zero"}, "it is no file"),
        ({"noise": "flow_sde", "steps": 1}, "at least two steps"),
        ({"images": ["top_rgb"]}, "front_rgb"),
        ({"images": {"base_rgb": "front_rgb"}}, "base_0_rgb"),
        ({"norm_stats": "nowhere/norm_stats.json"}, "there is no nowhere"),
    ):
        with pytest.raises(ConfigError, match=says):
            policy_of(folder, **options)


def test_inspection_tells_what_a_folder_is_and_what_it_lacks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["policy", "inspect", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "all there, none too many" in said
    assert "openpi's names" in said
    assert "state of 32 numbers" in said
    found = inspect(GOLDEN)  # no tokenizer and no statistics there
    assert found.kind == "pi0"
    assert any("tokenizer.json" in problem for problem in found.problems)
    assert any("norm_stats" in sentence for sentence in found.advice)
    assert cli.run(["policy", "inspect", str(GOLDEN)]) == 1


def test_inspection_names_statistics_that_say_nothing_of_actions(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder, tmp_path / "half")
    content = json.loads((path / "norm_stats.json").read_text())
    del content["norm_stats"]["actions"]
    (path / "norm_stats.json").write_text(json.dumps(content))
    assert any("no statistics of actions" in problem for problem in inspect(path).problems)


# -- seeing -----------------------------------------------------------------------------------------------------------


def test_images_are_scaled_as_openpi_scales_them() -> None:
    rng = np.random.default_rng(0)
    image = np.asarray(Image.fromarray(rng.integers(0, 255, (9, 16, 3), np.uint8)).resize((160, 90)))
    found = resized(torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float(), 56)[0]
    theirs = np.zeros((56, 56, 3), np.float32)
    theirs[12:43] = np.asarray(Image.fromarray(image).resize((56, 31), Image.Resampling.BILINEAR))
    ours = (found.permute(1, 2, 0).numpy() + 1.0) / 2.0 * 255.0
    assert np.abs(ours - theirs).max() <= 1.01


def test_an_instruction_is_read_as_openpi_reads_it(folder: Path) -> None:
    tokens, mask = Words(folder, 16, 2, 512).read(["  open_drawer ", "go"])
    letters = Words(folder, 48, 2, 512).read(["open drawer"])[0][0]
    assert tokens[0, 0] == 2
    assert tokens[0].tolist()[:13] == letters.tolist()[:13]  # <bos>, the letters, a newline
    assert mask.sum(1).tolist() == [13, 4]
    assert tokens[1, 3] == tokens[0, 12]  # the newline
    with pytest.raises(ConfigError, match="raise prompt_length"):
        Words(folder, 16, 2, 512).read(["a sentence that is too long"])


def test_slots_decide_the_order_of_images() -> None:
    wanted = {"left_wrist_0_rgb": "wrist_rgb", "base_0_rgb": "front_rgb"}
    assert image_fields(SPEC, wanted) == ["front_rgb", "wrist_rgb"]
    assert image_fields(SPEC, ["wrist_rgb"]) == ["wrist_rgb"]


def test_states_and_actions_are_in_the_units_of_the_statistics(folder: Path) -> None:
    observations = seen(3)
    known = json.loads((folder / "norm_stats.json").read_text())["norm_stats"]
    for kind, low, scale in (
        ("z_score", known["state"]["mean"], known["state"]["std"]),
        ("quantile", known["state"]["q01"], known["state"]["q99"]),
        ("min_max", known["state"]["min"], known["state"]["max"]),
    ):
        policy = policy_of(folder, normalise=kind, clip_actions=False)
        inputs = policy._seeing.inputs(observations, torch.device("cpu"))
        first = observations.fields["position"] - np.array(low[:2])
        if kind == "z_score":
            wanted = first / (np.array(scale[:2]) + 1e-6)
        else:
            wanted = first / (np.array(scale[:2]) - np.array(low[:2]) + 1e-6) * 2 - 1
        np.testing.assert_allclose(inputs.state[:, :2].numpy(), wanted, atol=1e-5)
        assert not inputs.state[:, 2:].any()
        actions = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
        back = policy._seeing.to_simulator(policy._seeing.from_simulator(actions, observations), observations)
        np.testing.assert_allclose(back, actions, atol=1e-5)


def told(folder: Path, path: Path, **settings: Any) -> Path:
    """Copy a folder, and put settings into its config."""
    shutil.copytree(folder, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | settings))
    return path


@pytest.mark.parametrize(("mode", "kind"), [("QUANTILES", "quantile"), ("MIN_MAX", "min_max"), ("MEAN_STD", "z_score")])
def test_states_and_actions_are_scaled_as_lerobots_config_says(
    folder: Path, tmp_path: Path, mode: str, kind: str
) -> None:
    path = told(folder, tmp_path / "told", normalization_mapping={"VISUAL": "IDENTITY", "STATE": mode, "ACTION": mode})
    observations = seen(3)
    found = policy_of(path, clip_actions=False).act(observations).actions[""]
    others = {
        other: policy_of(folder, normalise=other, clip_actions=False).act(observations).actions[""]
        for other in ("quantile", "min_max", "z_score")
    }
    np.testing.assert_array_equal(found, others.pop(kind))
    assert all(np.abs(found - other).max() > 1e-2 for other in others.values())


def test_each_of_state_and_actions_may_be_scaled_in_its_own_way(folder: Path, tmp_path: Path) -> None:
    path = told(folder, tmp_path / "told", normalization_mapping={"STATE": "IDENTITY", "ACTION": "QUANTILES"})
    normal = policy_of(path)._seeing._normal
    assert normal.state is None
    assert type(normal.actions).__name__ == "Quantile"
    for mapping, says in (({"STATE": "QUANTILE10"}, "QUANTILE10"), ({"VISUAL": "MEAN_STD"}, "scales images")):
        spoilt = told(folder, tmp_path / says.split()[0], normalization_mapping=mapping)
        with pytest.raises(ConfigError, match=says):
            policy_of(spoilt)
        assert any(says in problem for problem in inspect(spoilt).problems)


@pytest.mark.parametrize(("relative", "mask"), [(2, [1, 1]), (1, [1, 0]), ((-1, 1), [0, 1]), (0, [0, 0])])
def test_actions_count_from_the_state_where_a_checkpoint_was_trained_so(
    folder: Path, relative: Any, mask: list[int]
) -> None:
    options: dict[str, Any] = {"clip_actions": False, "noise": "flow_sde"}
    plain, policy = (policy_of(folder, **options, relative=wanted) for wanted in (None, relative))
    observations = seen(3)
    offset = (observations.fields["position"] * np.array(mask)).astype(np.float32)[:, None]
    without, found = plain.act(observations), policy.act(observations)
    np.testing.assert_allclose(found.actions[""], without.actions[""] + offset, atol=1e-6)
    # What is learnt from is the model's own: nothing of it changes.
    np.testing.assert_array_equal(found.extras["chosen"], without.extras["chosen"])
    judged = policy.evaluate(observations, found.extras["chosen"]).log_probs.detach()
    np.testing.assert_allclose(judged, found.extras["log_probs"], atol=1e-4)
    actions = np.random.default_rng(0).normal(size=(3, 10, 2)).astype(np.float32)
    losses = [
        one.imitation_loss(observations, one.encode_actions(observations, example)).mean().item()
        for one, example in ((plain, actions), (policy, actions + offset))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_actions_that_lerobot_trained_as_relative_are_given_as_absolute(folder: Path, tmp_path: Path) -> None:
    observations = seen(2)
    state = observations.fields["position"].astype(np.float32)[:, None]
    plain = policy_of(folder, clip_actions=False).act(observations).actions[""]
    named = {"use_relative_actions": True, "action_feature_names": ["x", "Gripper.pos"]}
    for name, settings, mask in (
        ("names", named, [1, 0]),
        ("all", {**named, "relative_exclude_joints": []}, [1, 1]),
        ("nameless", {**named, "action_feature_names": None}, [1, 1]),
        ("off", {**named, "use_relative_actions": False}, [0, 0]),
    ):
        policy = policy_of(told(folder, tmp_path / name, **settings), clip_actions=False)
        np.testing.assert_allclose(policy.act(observations).actions[""], plain + state * mask, atol=1e-6)
    overruled = policy_of(tmp_path / "all", clip_actions=False, relative=0)
    np.testing.assert_allclose(overruled.act(observations).actions[""], plain, atol=1e-6)


def test_numbers_that_count_from_the_state_need_one(folder: Path) -> None:
    with pytest.raises(ConfigError, match="relative is 3, but an action has 2"):
        policy_of(folder, relative=3)
    with pytest.raises(ConfigError, match=r"first 2 numbers .* the state, which has 1"):
        policy_of(folder, relative=2, state=["clock"])
    with pytest.raises(ConfigError, match="relative is of type int"):
        policy_of(folder, relative="six")


def test_statistics_are_found_below_the_name_of_a_robot(folder: Path, tmp_path: Path) -> None:
    for place in ("physical-intelligence/libero", "libero", "assets/physical-intelligence/libero"):
        path = shutil.copytree(folder, tmp_path / place.replace("/", "_"))
        (path / place).mkdir(parents=True)
        (path / "norm_stats.json").rename(path / place / "norm_stats.json")
        found = policy_of(path).act(seen(2)).actions[""]
        np.testing.assert_array_equal(found, policy_of(folder).act(seen(2)).actions[""])


def test_the_field_named_state_is_the_state_where_its_width_is_the_statistics(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder, tmp_path / "eight")
    (path / "norm_stats.json").write_text(json.dumps(statistics(state=8)))
    fields = {"joints": Field((7,)), "state": Field((8,)), "objects": Field((70,))}
    spec = replace(SPEC, observations={**{n: f for n, f in SPEC.observations.items() if f.camera}, **fields})
    policy: Any = make_policy("pi0", spec, {"model_path": str(path)})
    assert policy.policy._seeing.fields == ["state"]


def test_statistics_that_lerobot_saves_with_a_policy_are_read(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "lerobot"
    shutil.copytree(folder, path)
    known = json.loads((path / "norm_stats.json").read_text())["norm_stats"]
    (path / "norm_stats.json").unlink()
    saved = {
        f"{feature}.{what}": torch.tensor(known[name][what])
        for feature, name in (("observation.state", "state"), ("action", "actions"))
        for what in ("mean", "std")
    }
    save_file(saved, path / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    observations = seen(2)
    found = policy_of(path).act(observations).actions[""]
    np.testing.assert_allclose(found, policy_of(folder).act(observations).actions[""], atol=1e-4)


# -- acting -----------------------------------------------------------------------------------------------------------


def test_a_row_gets_the_same_whatever_its_neighbours(folder: Path) -> None:
    policy = batched_of(folder, deterministic=True, batch_size=4, noise="flow_sde")
    observations = seen(6)
    together = policy.act(observations)
    alone = [policy.act(observations.rows([i])) for i in range(6)]
    assert together.actions[""].shape == (6, 4, 2)
    assert np.array_equal(together.actions[""], np.concatenate([chunk.actions[""] for chunk in alone]))
    assert np.array_equal(together.extras["chosen"], np.concatenate([chunk.extras["chosen"] for chunk in alone]))
    assert np.abs(together.actions[""]).max() <= 1.0  # the simulator's bounds


@pytest.mark.parametrize("kind", ["none", "flow_sde", "flow_sde_one"])
@pytest.mark.parametrize("lora_rank", [0, 2])
def test_the_fast_path_draws_what_the_plain_one_draws(kind: str, lora_rank: int, folder: Path) -> None:
    plain = policy_of(folder, noise=kind, lora_rank=lora_rank, clip_actions=False)
    fast = policy_of(folder, noise=kind, lora_rank=lora_rank, clip_actions=False, fast=True)
    observations = seen(3)
    first = plain.act(observations).actions[""]
    for _ in range(2):
        wanted, found = plain.act(observations), fast.act(observations)
        np.testing.assert_allclose(found.actions[""], wanted.actions[""], atol=2e-5)
        for policy in (plain, fast):  # as if they had learnt something
            with torch.no_grad():
                for parameter in policy.parameters():
                    if parameter.requires_grad:
                        parameter.add_(0.02)
    assert np.abs(plain.act(observations).actions[""] - first).max() > 1e-3


def test_small_steps_of_adapters_are_not_rounded_away_beside_weights_of_bfloat16(folder: Path) -> None:
    policy = policy_of(folder, lora_rank=2, precision="bf16")
    policy.prepare_to_learn()
    count = sum(parameter.numel() for parameter in policy.model.parameters())
    weights = FusedWeights(policy.model, torch.bfloat16)
    gate, up = (getattr(policy.model.model.dit.layers[0].mlp, f"{name}_proj") for name in ("gate", "up"))
    x = torch.randn(3, gate.in_features, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        before = product(x, weights.expert[0].gate_up)
        for part, step in ((gate, 1e-5), (up, -1e-5)):
            part.lora_B["default"].weight.add_(step)
        weights.refresh()
        matrix = weights.expert[0].gate_up
        assert torch.equal(functional.linear(x, matrix.weight), before)
        assert matrix.down is not None
        assert matrix.up is not None
        learnt = functional.linear(functional.linear(x.float(), matrix.down.float()), matrix.up.float())
        wanted = torch.cat([p.get_delta_weight("default").float() @ x.float().T for p in (gate, up)]).T
    torch.testing.assert_close(learnt, wanted, rtol=0.05, atol=1e-7)
    own = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    assert matrix.weight.untyped_storage().data_ptr() in own, "views, not copies"
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == count


def test_weights_that_lie_elsewhere_than_before_are_noticed(folder: Path) -> None:
    plain, fast = (policy_of(folder, fast=fast) for fast in (False, True))
    observations = seen(2)
    np.testing.assert_allclose(fast.act(observations).actions[""], plain.act(observations).actions[""], atol=2e-5)
    for policy in (plain, fast):
        policy._apply(torch.clone)  # as when they leave a GPU and come back
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.02)
    np.testing.assert_allclose(fast.act(observations).actions[""], plain.act(observations).actions[""], atol=2e-5)


def test_bfloat16_is_near_float32(folder: Path) -> None:
    exact, near = (policy_of(folder, precision=precision) for precision in ("fp32", "bf16"))
    assert near.model.action_out_proj.weight.dtype == torch.bfloat16
    observations = seen(3)
    wanted = exact.act(observations).actions[""]
    assert np.abs(near.act(observations).actions[""] - wanted).max() < 0.1
    near.prepare_to_learn()
    assert near.model.action_out_proj.weight.dtype == torch.float32
    assert np.abs(near.act(observations).actions[""] - wanted).max() < 0.1


def test_one_policy_explores_and_is_evaluated_without_a_copy_of_its_weights(folder: Path) -> None:
    explores = batched_of(folder, noise="flow_sde")
    evaluated = explores.for_evaluation()
    assert evaluated.policy is explores.policy
    wanted = batched_of(folder, deterministic=True).act(seen(2)).actions[""]  # no noise at all
    assert np.array_equal(evaluated.act(seen(2)).actions[""], wanted)
    assert not np.array_equal(explores.act(seen(2)).actions[""], wanted)


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}], ids=["weights", "adapters"])
def test_who_plays_takes_the_weights_of_who_learns_in_bf16(
    options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    told = {"model_path": str(folder), "state": ["position"], "noise": "flow_sde", **options}
    config = from_mapping(
        {
            "env": {"train": {"simulator": "standins:Walker", "total_num_envs": 1}},
            "actor": {"model": {"model_type": "pi0", "num_action_chunks": 4, "precision": "bf16", "options": told}},
            "runner": {"logger": {"live": False}},
        },
        "bf16",
    ).config
    seats = [Seat(role, 0, 1, "cpu", Path.cwd(), (), num_envs=1, most_envs=1) for role in ("rollout", "actor")]
    plays, learns = RolloutRole(config, seats[0], tmp_path), LearnerRole(config, seats[1], tmp_path)
    with closing(plays):
        learns.begin(plays.open(), None, None)
        version, weights = learns.weights()
        assert weights is not None
        plays.take(weights)
        report, *_ = plays.play(version, [], [EpisodeId("near", 1)])
    assert isinstance(report, Report)
    assert len(report.summaries) == 1


# -- probabilities and learning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flow_sde", "flow_sde_one", "flow_noise"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_probabilities_computed_again_are_those_of_acting(kind: str, precision: str, folder: Path) -> None:
    policy = policy_of(folder, noise=kind, critic="chunk_level", precision=precision)
    policy.prepare_to_learn()
    observations = seen(4)
    chunk = policy.act(observations)
    assert chunk.extras["log_probs"].shape == (4, 4, 2)
    found = policy.evaluate(observations, chunk.extras["chosen"])
    np.testing.assert_allclose(found.log_probs.detach().numpy(), chunk.extras["log_probs"], atol=1e-5)
    assert found.values is not None
    np.testing.assert_allclose(found.values.detach().numpy(), chunk.extras["values"], atol=1e-5)
    np.testing.assert_allclose(policy.values(observations).detach(), chunk.extras["values"], atol=1e-2)
    found.log_probs.sum().backward()
    for part_of in ("model.dit.layers.0", "model.vlm.language_model.layers.0", "model.vlm.vision_tower"):
        gradients = [p.grad for name, p in policy.model.named_parameters() if name.startswith(part_of)]
        assert gradients
        assert all(gradient is not None for gradient in gradients), part_of
        assert any(bool(gradient.any()) for gradient in gradients if gradient is not None), part_of
    left = [n for n, p in policy.named_parameters() if p.requires_grad and p.grad is None and "value" not in n]
    assert not left  # ranks would wait for the gradients of weights that nothing depends on


def test_probabilities_are_those_of_the_noise_that_was_drawn(folder: Path) -> None:
    policy = policy_of(folder, noise="flow_sde_one", clip_actions=False)
    observations = seen(3)
    chunk = policy.act(observations)
    times = flow.times_of(4)
    epsilon = noise.normal(0, observations, (4, 10, 32), "explore")
    drawn = (noise.uniform(0, observations, (), "step") * 4).astype(int)
    for row, step in enumerate(drawn):
        # log p = -½ ε² - log γ - ½ log 2π
        gamma = flow.flow_sde(times[step], times[step + 1], 0.5).gamma
        e = torch.from_numpy(epsilon[row, step, :4, :2])
        wanted = flow.log_prob(gamma * e, torch.zeros(()), gamma)
        np.testing.assert_allclose(chunk.extras["log_probs"][row], wanted.numpy(), atol=1e-3)


def test_noise_goes_only_into_numbers_that_the_simulator_is_given(folder: Path) -> None:
    """Two kinds of noise from the same start: what neither touches follows the same flow in the first step."""
    observations = seen(3)
    chains = {}
    for kind in ("flow_sde", "flow_noise"):
        policy = policy_of(folder, noise=kind, chunk=4)
        chosen = torch.as_tensor(policy.act(observations).extras["chosen"])
        chains[kind] = flow.unpacked(chosen, policy._shape)[0][:, 1]
    width, moved = 2, chains["flow_sde"] != chains["flow_noise"]
    assert moved[:, :4, :width].all()
    torch.testing.assert_close(chains["flow_sde"][:, 4:], chains["flow_noise"][:, 4:])
    torch.testing.assert_close(chains["flow_sde"][..., width:], chains["flow_noise"][..., width:])


def test_hardly_any_noise_gives_the_flows_own_actions(folder: Path) -> None:
    observations = seen(3)
    noisy = policy_of(folder, noise="flow_sde", noise_level=1e-5).act(observations).actions[""]
    plain = policy_of(folder).act(observations).actions[""]
    np.testing.assert_allclose(noisy, plain, atol=1e-4)
    louder = policy_of(folder, noise="flow_sde", noise_level=0.5).act(observations).actions[""]
    assert np.abs(louder - plain).max() > 0.05


def samples_of(policy: Pi0Policy, count: int = 6) -> Samples:
    observations = seen(count)
    chunk = policy.act(observations)
    advantages = np.random.default_rng(0).normal(size=count).astype(np.float32)
    return Samples(
        observations,
        chunk.extras["chosen"],
        chunk.extras["log_probs"],
        np.ones((count, 4), np.float32),
        advantages,
        returns=advantages + chunk.extras["values"],
        values=chunk.extras["values"],
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"lora_rank": 2, "gradient_checkpointing": True}, {"train_expert_only": True}, {"noise": "flow_noise"}],
    ids=["all weights", "adapters", "the expert", "the noise head"],
)
def test_a_step_of_ppo_lowers_the_loss(options: dict[str, Any], folder: Path) -> None:
    policy = policy_of(folder, **{"noise": "flow_sde", "critic": "chunk_level", **options})
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    learner = Learner(policy, PPO(update_epoch=1), OptimConfig(lr=3e-5), LearnerConfig(6))
    samples = samples_of(policy)
    first, second = learner.update(samples, 0), learner.update(samples, 1)
    assert first["actor/ratio"] == pytest.approx(1.0, abs=1e-4)
    assert second["actor/loss"] < first["actor/loss"]
    moved = {name for name, p in policy.named_parameters() if not torch.equal(before[name], p)}
    assert moved <= set(policy.trainable_state())
    if "lora_rank" in options:
        assert all(".lora_" in name or name.startswith("value.") for name in moved)
    if "train_expert_only" in options:
        assert not any(name.startswith("model.model.vlm.") for name in moved)


def test_imitation_follows_the_flow_to_what_was_shown(folder: Path) -> None:
    policy = policy_of(folder)
    observations = seen(8)
    actions = np.full((8, policy.imitation_horizon, 2), 0.5, np.float32)
    examples = Demonstrations(observations, actions, np.ones((8, policy.imitation_horizon), np.float32))
    before = np.abs(policy.act(observations).actions[""] - 0.5).mean()
    losses = list(clone(policy, examples, CloningConfig(steps=60, batch_size=8, lr=1e-2)))
    assert np.mean(losses[-10:]) < 0.75 * np.mean(losses[:5])
    assert np.abs(policy.act(observations).actions[""] - 0.5).mean() < 0.9 * before


def test_the_loss_of_imitation_is_that_of_transformers(folder: Path) -> None:
    policy = policy_of(folder, seed=3)
    observations, config = seen(4), policy.model.config
    actions = np.random.default_rng(0).normal(size=(4, 10, 2)).astype(np.float32)
    found = policy.imitation_loss(observations, policy.encode_actions(observations, actions), (7,))
    assert found.shape == (4, 10, 32)
    rows = list(noise.generators(3, observations, "imitate/7"))
    drawn = torch.from_numpy(np.stack([rng.standard_normal((10, 32), np.float32) for rng in rows]))
    times = np.array([rng.beta(config.time_sampling_beta_alpha, config.time_sampling_beta_beta) for rng in rows])
    inputs = policy._seeing.inputs(observations, torch.device("cpu"))
    images = torch.full((4, 32), config.vlm_config.image_token_id)
    theirs = policy.model(
        state=inputs.state,
        noise=drawn,
        timestep=torch.from_numpy(times * config.time_sampling_scale + config.time_sampling_offset).float(),
        input_ids=torch.cat([images, inputs.tokens], 1),
        pixel_values=inputs.images,
        pixel_attention_mask=inputs.image_mask,
        attention_mask=torch.cat([torch.ones_like(images), inputs.token_mask.long()], 1),
        actions=policy._seeing.from_simulator(actions, observations),
    )
    assert float(found.detach().mean()) == pytest.approx(float(theirs.loss.detach()), rel=1e-4)


def test_what_follows_the_end_of_an_episode_is_not_imitated(folder: Path) -> None:
    observations, mask = seen(4), np.ones((4, 10), np.float32)
    mask[:, 5:] = 0.0
    zeros = np.zeros((4, 10, 2), np.float32)
    learnt = {}
    for name, part in (("beyond", slice(5, None)), ("before", slice(5))):
        actions = zeros.copy()
        actions[:, part] = 0.5
        policy = policy_of(folder)
        losses = list(clone(policy, Demonstrations(observations, actions, mask), CloningConfig(steps=1, batch_size=4)))
        learnt[name] = losses[0]
    flat = list(clone(policy_of(folder), Demonstrations(observations, zeros, mask), CloningConfig(steps=1)))
    # What is not executed is still seen by the attention of what is: near, and not the same.
    assert abs(learnt["beyond"] - flat[0]) < 0.2 * abs(learnt["before"] - flat[0])


@pytest.mark.parametrize("kind", ["none", "flow_sde"])
def test_it_imitates_what_it_chose_without_log_probabilities(kind: str, folder: Path) -> None:
    """Weighted by advantages: what was good is done again, more than what was not."""
    policy = policy_of(folder, noise=kind, clip_actions=False)
    observations = seen(6)
    chunk = policy.act(observations)
    assert ("log_probs" in chunk.extras) == (kind == "flow_sde")
    ended = flow.unpacked(torch.as_tensor(chunk.extras["chosen"]), policy._shape)[0][:, -1]
    np.testing.assert_allclose(
        policy._seeing.to_simulator(ended[:, :4], observations), chunk.actions[""], atol=1e-5, err_msg="it ends in them"
    )
    learner = Learner(policy, RWFM(update_epoch=1, temperature=1.0), OptimConfig(lr=1e-3), LearnerConfig(6))
    weighed = np.array([2.0, -20.0, 2.0, -20.0, 2.0, -20.0], np.float32)
    samples = Samples(observations, chunk.extras["chosen"], None, np.ones((6, 4), np.float32), weighed)

    def losses() -> np.ndarray:
        with torch.no_grad():
            drawn = [policy.imitation_loss(observations, chunk.extras["chosen"], (i,)) for i in range(8)]
        return torch.stack(drawn)[..., :4, :].mean((0, 2, 3)).numpy()

    before = losses()
    metrics = [learner.update(samples, update) for update in range(20)]
    assert metrics[0].keys() == {f"actor/{n}" for n in ("policy_loss", "own_loss", "weight", "loss", "grad_norm", "lr")}
    gained = before - losses()
    assert gained[::2].mean() > 0, "it does again what was good"
    assert gained[::2].mean() > gained[1::2].mean(), "more than what was not"


@pytest.mark.parametrize("kind", ["flow_sde_one", "flow_noise"])
def test_noise_whose_chains_cannot_be_imitated_is_refused(kind: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match="noise: none"):
        Learner(policy_of(folder, noise=kind), RWFM())


def test_the_critic_does_not_pull_at_the_model(folder: Path) -> None:
    policy = policy_of(folder, noise="flow_sde", critic="chunk_level")
    observations = seen(2)
    found = policy.evaluate(observations, policy.act(observations).extras["chosen"])
    assert found.values is not None
    found.values.sum().backward()
    pulled = {name for name, p in policy.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert pulled
    assert all(name.startswith("value.") for name in pulled)


def test_a_policy_without_noise_is_not_reinforced(folder: Path) -> None:
    with pytest.raises(ConfigError, match="noise: flow_sde"):
        Learner(policy_of(folder, critic="chunk_level"), PPO())
