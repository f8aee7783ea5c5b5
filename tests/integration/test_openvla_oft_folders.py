"""Folders of OpenVLA-OFT: what is in them, and which are refused, with the reason."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import golden_kind
from manyarms.errors import ConfigError
from manyarms.policies.checkpoints import inspect
from manyarms.policies.openvla_oft.folder import OftFolder
from manyarms.simulators.base import Field
from oft import GOLDEN, SPEC, STATE, golden_with_tokenizer, observed, policy_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden folder with a tokenizer."""
    return golden_with_tokenizer(tmp_path_factory.mktemp("golden") / "oft")


def _truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def _damaged(folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[20:60] = b"\xff" * 40
    weights.write_bytes(content)


def _not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["projector.fc2.weight"][3, 4] = float("nan")
    save_file(weights, folder / "model.safetensors")


def _without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors")

    return change


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        text = content["text_config"] | changes.pop("text_config", {})
        (folder / "config.json").write_text(json.dumps(content | changes | {"text_config": text}))

    return change


def _removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _garbage(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(b"nothing")

    return change


class _Harmful:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("harm",)


def _poisoned(folder: Path) -> None:
    torch.save({"module.fc1.weight": _Harmful()}, folder / "proprio_projector--1_checkpoint.pt")


def _other_head(folder: Path) -> None:
    path = folder / "action_head--1_checkpoint.pt"
    content = torch.load(path, weights_only=True)
    torch.save({name: tensor for name, tensor in content.items() if "blocks.1" not in name}, path)


def _head_of_one_number(folder: Path) -> None:
    path = folder / "action_head--1_checkpoint.pt"
    content = torch.load(path, weights_only=True)
    content["model.fc2.bias"] = torch.tensor(0.0)
    torch.save(content, path)


def _head_that_is_not_finite(folder: Path) -> None:
    path = folder / "action_head--1_checkpoint.pt"
    content = torch.load(path, weights_only=True)
    torch.save({name: torch.full_like(tensor, torch.nan) for name, tensor in content.items()}, path)


def _head_of_parts_that_are_lost(folder: Path) -> None:
    path = folder / "action_head--1_checkpoint.pt"
    with zipfile.ZipFile(path) as whole:
        members = {name: whole.read(name) for name in whole.namelist() if name.endswith(("data.pkl", "version"))}
    with zipfile.ZipFile(path, "w") as torn:
        for name, data in members.items():
            torn.writestr(name, data.replace(b"storage", b"st0rage"))


def _one_quantile_for_all(folder: Path) -> None:
    statistics = json.loads((folder / "dataset_statistics.json").read_text())
    statistics["libero_spatial_no_noops"]["action"]["q99"] = 1.0
    (folder / "dataset_statistics.json").write_text(json.dumps(statistics))


def _head_of_diffusion(folder: Path) -> None:
    torch.save({"noise_predictor.fc1.weight": torch.zeros(2, 2)}, folder / "action_head--1_checkpoint.pt")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_truncated, r"model.safetensors is truncated.*it should have"),
        (_damaged, r"model.safetensors is corrupted.*header"),
        (_not_finite, r"corrupted.*projector.fc2.weight is not finite"),
        (_without("projector.fc3.bias"), r"1 missing: projector.fc3.bias"),
        (_config(text_config={"num_hidden_layers": 1}), r"9 unexpected: language_model.model.layers.1"),
        (_config(text_config={"hidden_size": 32}), r"of another shape: language_model.lm_head.weight \[32064, 16\]"),
        (_config(model_type="pi0"), r"model of type 'pi0', not of OpenVLA"),
        (
            _config(timm_model_ids=["tinytest_dino", "tinytest_siglib"]),
            r"tinytest_siglib.*did you mean tinytest_siglip",
        ),
        (_config(text_config={"model_type": "phi"}), r"only Llama"),
        (_removed("model.safetensors"), r"holds no model.safetensors"),
        (_removed("tokenizer.json"), r"no tokenizer.*nothing is downloaded"),
        (_removed("dataset_statistics.json"), r"no .*dataset_statistics.json"),
        (_garbage("action_head--1_checkpoint.pt"), r"action_head--1_checkpoint.pt cannot be read"),
        (_poisoned, r"proprio_projector--1_checkpoint.pt cannot be read"),
        (_other_head, r"missing: model.mlp_resnet_blocks.1"),
        (_head_of_one_number, r"action_head--1_checkpoint.pt is another head"),
        (_head_that_is_not_finite, r"action_head--1_checkpoint.pt is corrupted.*not all of it is finite"),
        (_head_of_parts_that_are_lost, r"action_head--1_checkpoint.pt cannot be read"),
        (_one_quantile_for_all, r"'action' has single numbers or arrays of unlike shapes"),
        (_head_of_diffusion, r"action_head--1_checkpoint.pt is another head.*noise_predictor"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(
    golden: Path, tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    folder = tmp_path / "harmed"
    shutil.copytree(golden, folder)
    harm(folder)
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        policy_of(folder, **STATE)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"unnorm_key": "bridge"}, r"no statistics for 'bridge'.*libero_spatial_no_noops"),
        ({"state": ["pose"]}, r"state has 8 numbers, these have 7: pose 7"),
        ({"images": ["side_rgb"]}, r"side_rgb.*shows front_rgb, wrist_rgb, top_rgb"),
        ({"action_dim": 8}, r"action_dim is for actions of 8 numbers, the simulator takes 7"),
        ({"heads": "l1"}, r"no option 'heads'.*head"),
        ({"head": "l2"}, r"choose from auto, l1, tokens"),
        ({"model_path": "/nowhere"}, r"no folder /nowhere"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(golden: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        policy_of(golden, **{**STATE, **options})


def test_of_several_heads_the_one_that_was_trained_longest_is_taken(golden: Path, tmp_path: Path) -> None:
    folder = tmp_path / "heads"
    shutil.copytree(golden, folder)
    first = torch.load(folder / "action_head--1_checkpoint.pt", weights_only=True)
    for step in (9, 10):
        torch.save(
            {name: tensor + step for name, tensor in first.items()}, folder / f"action_head--{step}_checkpoint.pt"
        )
    head = OftFolder(folder).action_head()
    assert head is not None
    name = next(iter(first))
    torch.testing.assert_close(head[name.removeprefix("module.")], first[name].float() + 10)


def test_another_width_than_the_simulators_is_refused(golden: Path) -> None:
    spec = replace(SPEC, actions={"": Field((8,), "float32", -1.0, 1.0)})
    with pytest.raises(ConfigError, match=r"for 7 numbers, an action here has 8"):
        policy_of(golden, spec, **STATE)


def test_shards_are_read_as_one_and_a_lost_one_is_named(golden: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    shutil.copytree(golden, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, inside in parts.items():
        save_file({name: weights[name] for name in inside}, folder / file)
    places = {name: file for file, inside in parts.items() for name in inside}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    found = OftFolder(folder).network(torch.float32, torch.device("cpu")).state_dict()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match="model-00002-of-00002"):
        OftFolder(folder)


def test_a_golden_folder_that_nothing_would_check_is_an_error(tmp_path: Path) -> None:
    assert golden_kind(GOLDEN) == "openvla"
    for content, says in (
        (None, "is no golden folder"),
        ('{"model_type": "bert"}', "is of 'bert'; known: pi0, openvla"),
    ):
        if content:
            (tmp_path / "config.json").write_text(content)
            (tmp_path / "oracle.npz").touch()
        with pytest.raises(pytest.UsageError, match=says):
            golden_kind(tmp_path)


def test_statistics_inside_the_config_will_do(golden: Path, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    shutil.copytree(golden, folder)
    statistics = folder / "dataset_statistics.json"
    config = json.loads((folder / "config.json").read_text()) | {"norm_stats": json.loads(statistics.read_text())}
    (folder / "config.json").write_text(json.dumps(config))
    statistics.unlink()
    found = policy_of(folder, **STATE).act(observed(2)).actions[""]
    np.testing.assert_array_equal(found, policy_of(golden, **STATE).act(observed(2)).actions[""])
    assert not inspect(folder).problems
    with pytest.raises(ConfigError, match=r"config\.json has no statistics for 'bridge'"):
        policy_of(folder, **{**STATE, "unnorm_key": "bridge"})


def test_liberos_own_fields_need_no_option_state(golden: Path) -> None:
    sizes = {"robot0_joint_pos": 7, "robot0_eef_pos": 3, "robot0_gripper_qpos": 2, "object-state": 70, "state": 8}
    cameras = {name: field for name, field in SPEC.observations.items() if field.camera}
    numbers = {name: Field((size,)) for name, size in sizes.items()}
    policy = policy_of(golden, replace(SPEC, observations={**cameras, **numbers}))
    assert policy.reads == ("front_rgb", "wrist_rgb", "state")
    numbers["state"] = Field((9,))
    with pytest.raises(ConfigError, match="state has 8 numbers, these have 91"):
        policy_of(golden, replace(SPEC, observations={**cameras, **numbers}))


def test_inspection_tells_what_a_folder_is_and_what_is_wrong_with_it(golden: Path, tmp_path: Path) -> None:
    found = inspect(golden)
    facts = dict(found.facts)
    assert found.kind == "openvla_oft"
    assert not found.problems
    assert "tinytest_dino + tinytest_siglip" in facts["network"]
    assert facts["head"] == "l1, 7 numbers"
    assert facts["proprioception"] == "8 numbers"
    assert facts["statistics"] == "libero_spatial_no_noops (7 numbers)"
    assert "GB in bf16" in facts["memory, acting"]
    assert "--policy openvla_oft" in found.advice[0]
    folder = tmp_path / "harmed"
    shutil.copytree(golden, folder)
    for harm in (_without("projector.fc3.bias"), _removed("tokenizer.json"), _removed("dataset_statistics.json")):
        harm(folder)
    found = inspect(folder)
    assert [
        part for part in ("projector.fc3.bias", "tokenizer", "dataset_statistics.json") if part in str(found.problems)
    ]
    assert len(found.problems) == len(found.advice) == 3
