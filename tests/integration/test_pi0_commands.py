"""π0 in the commands: evaluated, served and trained, on tabletop with the tiny golden checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import REPOSITORY
from manyarms import EpisodeId, plugins
from manyarms.cli import eval as evaluation
from manyarms.learning.settings import load
from manyarms.learning.training import train
from manyarms.policies import Observations, make_policy
from manyarms.policies.remote import RemotePolicy
from manyarms.serving.server import PolicyServer, ServerConfig
from pi0_checkpoints import pi0_folder
from standins import Walker

pytestmark = pytest.mark.slow

CONFIG = """
runner:
  max_steps: 2
  val_check_interval: -1
  save_interval: -1
  logger: {{logger_backends: [], log_path: {runs}, experiment_name: tiny}}
algorithm: {{update_epoch: 1, episodes_per_step: 4, logprob_type: action_level}}
env:
  train:
    simulator: tabletop/reach_target
    total_num_envs: 2
    max_episode_steps: 8
    options: {{image_size: [56, 56], cameras: [front, wrist], arm_mode: delta_ee, shaped_rewards: true}}
  eval: {{episodes: 3}}
rollout: {{batch_size: 2}}
actor:
  global_batch_size: 8
  model:
    model_type: pi0
    num_action_chunks: 4
    options: {{model_path: {folder}, state: [joint_positions, gripper_open], noise: flow_sde, lora_rank: 2}}
  optim: {{lr: 1.0e-3}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pi0_folder(tmp_path_factory.mktemp("pi0") / "checkpoint", prefix="model.")


def test_a_trained_pi0_is_a_few_adapters_and_judged_alike_by_training_and_eval(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(CONFIG.format(runs=tmp_path, folder=folder))
    result = train(load(str(config), []))
    assert result.updates == 2
    assert result.metrics["actor/grad_norm"] > 0
    last = tmp_path / "tiny/checkpoints/global_step_2"
    weights = load_file(last / "model.safetensors")
    assert all(".lora_" in name or name.startswith("value.") for name in weights)
    assert json.loads((last / "policy.json").read_text())["options"]["model_path"] == str(folder)
    judged = evaluation.run(
        evaluation.EvalConfig(
            "tabletop/reach_target", policy=str(last), episodes=3, seed=1_000_000, num_envs=1, out=tmp_path / "out"
        )
    )
    wanted = [(r.seed, r.length, r.total_reward) for r in result.evaluations[-1][1]]
    assert [(r.seed, r.length, r.total_reward) for r in judged.results] == wanted


def test_results_do_not_depend_on_the_number_of_environments(folder: Path, tmp_path: Path) -> None:
    rewards = []
    for num_envs in (1, 3):
        config = evaluation.EvalConfig(
            "tabletop/push_button",
            policy="pi0",
            policy_options={
                "model_path": str(folder),
                "state": ["joint_positions"],
                "deterministic": True,
                "batch_size": 2,
            },
            options={"image_size": [56, 56], "cameras": ["front", "wrist"]},
            episodes=3,
            num_envs=num_envs,
            max_episode_steps=10,
            out=tmp_path / str(num_envs),
        )
        rewards.append([(r.seed, r.length, r.total_reward) for r in evaluation.run(config).results])
    assert rewards[0] == rewards[1]


def test_a_served_pi0_acts_as_a_local_one(folder: Path) -> None:
    spec = Walker().spec
    options = {"model_path": str(folder), "state": ["position"], "deterministic": True, "batch_size": 4}
    policy = make_policy("pi0", spec, options)
    rng = np.random.default_rng(0)
    fields = {name: np.zeros((3, *field.shape), field.dtype) for name, field in spec.layout().items()}
    fields["front_rgb"] = rng.integers(0, 255, (3, 4, 6, 3), np.uint8)
    observations = Observations(fields, ["go near"] * 3, [EpisodeId("near", i) for i in range(3)], np.zeros(3, int))
    with PolicyServer(policy, spec, ServerConfig(port=0)) as server:
        remote = RemotePolicy(spec, port=server.port)
        try:
            found = remote.act(observations)
        finally:
            remote.close()
    assert np.array_equal(found.actions[""], policy.act(observations).actions[""])


def test_the_page_has_the_figures_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))  # for what it imports from there
    page = REPOSITORY / "docs/benchmarks/pi0.md"
    found = json.loads(page.with_suffix(".json").read_text())
    assert plugins.load_file(str(REPOSITORY / "benchmarks/pi0.py")).markdown(found) == page.read_text()


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(REPOSITORY / "benchmarks/pi0.py"),
        "--tiny",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
    ]
    quick = ["--batches", "1", "3", "--rounds", "1", "--steps", "2"]
    done = subprocess.run([*command, *quick], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "pi0.json").read_text())
    assert set(found["results"]) == {"1", "3"}
    assert found["accuracy"]["manyarms"] < 1e-4
