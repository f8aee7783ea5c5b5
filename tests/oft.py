"""Small OpenVLA-OFT checkpoints for tests, and observations to show them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from conftest import REPOSITORY
from manyarms import EpisodeId
from manyarms.policies import Observations, make_policy
from manyarms.policies.openvla_oft.heads import L1Head, StateProjector
from manyarms.policies.openvla_oft.model import OpenVlaModel, config_from
from manyarms.policies.openvla_oft.policy import OpenVlaOftPolicy
from manyarms.policies.trainable import Batched
from manyarms.simulators.base import Field, Spec

GOLDEN = REPOSITORY / "tests" / "data" / "golden" / "openvla_oft_tiny"
STATE = {"state": ["pose", "open"], "unnorm_key": "libero_spatial"}
"""Options that go with it."""
TASKS = ("open the drawer", "put the red block on the plate", "Press the button")
SPEC = Spec(
    {
        "front_rgb": Field((48, 64, 3), "uint8", 0, 255, camera="front"),
        "wrist_rgb": Field((48, 64, 3), "uint8", 0, 255, camera="wrist"),
        "top_rgb": Field((48, 64, 3), "uint8", 0, 255, camera="top"),
        "pose": Field((7,)),
        "open": Field(()),
    },
    {"": Field((7,), "float32", -1.0, 1.0)},
)


def with_tokenizer(folder: Path) -> Path:
    """Put a tokenizer of single bytes into a folder."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 1, **{letter: 3 + i for i, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def golden_with_tokenizer(folder: Path) -> Path:
    """Copy the golden checkpoint, which has no tokenizer, to where it gets one."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in GOLDEN.iterdir():
        shutil.copyfile(file, folder / file.name)
    return with_tokenizer(folder)


def made(
    folder: Path, width: int, *, state: int = 0, regression: bool = False, dataset: str = "kitchen", **changes: Any
) -> Path:
    """Write a checkpoint with random weights for actions of `width` numbers; `changes` go into its config."""
    folder.mkdir(parents=True)
    content = json.loads((GOLDEN / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(content))
    torch.manual_seed(0)
    network = OpenVlaModel(config_from(content, "made"))
    for name, parameter in network.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    save_file(network.state_dict(), folder / "model.safetensors")
    hidden = content["text_config"]["hidden_size"]
    if regression:
        head = {k: v for k, v in L1Head(hidden, 1, width, 16, 0.0).state_dict().items() if k.startswith("model.")}
        torch.save(head, folder / "action_head--10_checkpoint.pt")
    if state:
        torch.save(StateProjector(state, hidden).state_dict(), folder / "proprio_projector--10_checkpoint.pt")
    numbers = {"q01": [-1.0] * width, "q99": [1.0] * width}
    statistics = {dataset: {"action": numbers, "proprio": {"q01": [-1.0] * state, "q99": [1.0] * state}}}
    (folder / "dataset_statistics.json").write_text(json.dumps(statistics))
    return with_tokenizer(folder)


def observed(count: int, seed: int = 0, texts: tuple[str, ...] = TASKS, spec: Spec = SPEC) -> Observations:
    """Return rows with images and states at random, told different things."""
    rng = np.random.default_rng(seed)
    fields = {}
    for name, field in spec.observations.items():
        shape = (count, *field.shape)
        fields[name] = rng.integers(0, 256, shape, np.uint8) if field.camera else rng.normal(size=shape) * 0.5
    told = [texts[i % len(texts)] for i in range(count)]
    return Observations(fields, told, [EpisodeId("t", i) for i in range(count)], np.arange(count) * 8)


def batched_of(folder: Path, spec: Spec = SPEC, **options: Any) -> Batched:
    policy = make_policy("openvla_oft", spec, {"model_path": str(folder), "prompt_length": 96, **options})
    assert isinstance(policy, Batched)
    return policy


def policy_of(folder: Path, spec: Spec = SPEC, **options: Any) -> OpenVlaOftPolicy:
    policy = batched_of(folder, spec, **options).policy
    assert isinstance(policy, OpenVlaOftPolicy)
    return policy
