"""The RIPT-VLA runner: the commands of its document, and what its users' training scripts rely on."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

import interpreters
import oft
import pi0_checkpoints
from manyarms.errors import ConfigError
from manyarms.policies.base import ActionChunk, Observations
from pi0_checkpoints import pi0_folder

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/libero"
CONFIG = "pi0/ript/config/ript_vla_test.yaml"


def run(*words: str, timeout: float = 600, libero: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LIBERO_PYTHON": libero}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLES, env=env, timeout=timeout, check=False)


@pytest.fixture
def ript(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the runners as training scripts do."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return importlib.import_module("pi0.ript.env.pi0_libero_runner_ript_vla")


@pytest.fixture
def lockstep(ript: Any) -> Any:
    return importlib.import_module("pi0.ript.env.pi0_libero_runner").LIBEROEnvRunner


@pytest.fixture
def create_env_runner(ript: Any) -> Any:
    return importlib.import_module("integration_patch_ript_vla").create_env_runner


class Drawn:
    """Three actions, drawn from the episode's identity: the same whichever environment plays it."""

    chunk = 3
    cameras: tuple[str, ...] = ()

    def act(self, observations: Observations) -> ActionChunk:
        actions = np.stack([self._of(observations, i) for i in range(len(observations))])
        return ActionChunk.of(actions, log_probs=-np.abs(actions), chosen=actions / 2)

    def _of(self, observations: Observations, i: int) -> np.ndarray:
        key = [*observations.episodes[i].key, int(observations.steps[i])]
        return np.random.default_rng(key).uniform(-1, 1, (3, 7)).astype(np.float32)


def make(ript: Any, **changes: Any) -> Any:
    settings = {"policy": Drawn(), "benchmark_name": "tabletop", "rollouts_per_env": 5, "num_parallel_envs": 2}
    return ript.PI0LiberoRunner(**{**settings, "max_episode_length": 7, "cameras": [], **changes})


# -- the document's commands ------------------------------------------------------------------------------------------


def test_the_import_check_of_the_document() -> None:
    code = "from pi0.ript.env.pi0_libero_runner_ript_vla import PI0LiberoRunner; print('✅ Import成功')"
    done = run("-c", code)
    assert done.stdout == "✅ Import成功\n", done.stderr


def test_the_config_check_of_the_document() -> None:
    code = f"from omegaconf import OmegaConf; print(OmegaConf.load({CONFIG!r}).features.use_ript_vla_runner)"
    assert run("-c", code).stdout == "True\n"


@pytest.mark.slow
def test_the_integration_test_of_the_document_passes_without_libero() -> None:
    done = run("test_ript_vla_integration.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has no LIBERO" in done.stdout
    assert "5 of 5 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.soak
def test_the_integration_test_of_the_document_passes_on_libero() -> None:
    python = str(interpreters.libero() / "bin/python")
    done = run("test_ript_vla_integration.py", "task.options.image_size=32", timeout=600, libero=python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "libero_object, 2 environments" in done.stdout
    assert "environments served an inference: [2, 2, 2, 2, 2, 2]" in done.stdout
    assert "5 of 5 passed" in done.stdout


@pytest.mark.slow
def test_the_quick_test_of_the_document_trains_and_plays(tmp_path: Path) -> None:
    done = run("quick_single_gpu_test.py", "--config_path", CONFIG, "--log_path", str(tmp_path), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained: 2 updates" in done.stdout
    assert "PI0LiberoRunner: 4 rollouts of push_button" in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "ript/metrics.jsonl").read_text().splitlines()]
    assert any("rollout/rejected_groups" in line for line in lines)


@pytest.mark.slow
def test_the_quick_test_trains_a_pi0_checkpoint_and_plays_it(tmp_path: Path) -> None:
    folder = pi0_folder(tmp_path / "pi0")
    words = [f"policy_path={folder}", "policy_options.device=cpu", "features.dynamic_sampling.enabled=false"]
    words += [
        "algo.rloo_batch_size=2",
        "algo.data_batch_size=1",
        "algo.rollouts_per_env=2",
        "training.num_train_steps=1",
    ]
    words += ["task.max_episode_length=8", "task.options.image_size=56"]
    done = run("quick_single_gpu_test.py", "--config_path", CONFIG, "--log_path", str(tmp_path), *words, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained: 1 updates" in done.stdout
    assert "PI0LiberoRunner: 2 rollouts of push_button" in done.stdout


@pytest.mark.slow
def test_the_quick_test_trains_and_plays_on_libero(tmp_path: Path) -> None:
    words = ["cloning.episodes=2", "cloning.steps=20", "features.dynamic_sampling.enabled=false"]
    words += [
        "algo.rloo_batch_size=2",
        "algo.data_batch_size=1",
        "algo.rollouts_per_env=2",
        "training.num_train_steps=1",
    ]
    words += ["task.options.image_size=32", "--config_path", CONFIG, "--log_path", str(tmp_path)]
    python = str(interpreters.libero() / "bin/python")
    done = run("quick_single_gpu_test.py", *words, timeout=600, libero=python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained: 1 updates" in done.stdout
    assert "PI0LiberoRunner: 2 rollouts of pick_up_the_alphabet_soup" in done.stdout


def test_a_folder_named_libero_is_not_taken_for_the_package(
    ript: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libero").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIBERO_PYTHON", raising=False)
    assert "has no LIBERO" in importlib.import_module("pi0.ript.env.benchmarks").available("libero_object")


def test_a_missing_config_is_said_in_words() -> None:
    done = run("quick_single_gpu_test.py", "--config_path", "nowhere.yaml")
    assert done.returncode == 2
    assert "there is no config at nowhere.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_function_of_the_document_works_as_it_stands(ript: Any) -> None:
    """With attributes of the config, as in the document's "method 3"."""
    config = OmegaConf.create(
        {
            "features": {"use_ript_vla_runner": True},
            "task": {"benchmark_name": "tabletop", "num_parallel_envs": 2},
            "algo": {"rollouts_per_env": 2},
        }
    )
    assert getattr(config.features, "use_ript_vla_runner", False)
    runner = ript.PI0LiberoRunner(
        policy=Drawn(),
        benchmark_name=config.task.benchmark_name,
        rollouts_per_env=config.algo.rollouts_per_env,
        num_parallel_envs=config.task.num_parallel_envs,
        rank=0,
    )
    assert runner.env_names[0] == "close_drawer"


# -- what the flags choose --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "kind", "processes"),
    [
        ({"use_ript_vla_runner": True, "enable_parallel_envs": True}, "PI0LiberoRunner", 4),
        ({"enable_true_parallel_envs": True}, "LIBEROEnvRunner", 4),
        ({"enable_parallel_envs": True}, "LIBEROEnvRunner", 4),
        ({}, "LIBEROEnvRunner", 1),
    ],
)
def test_flags_choose_the_runner(create_env_runner: Any, flags: dict[str, bool], kind: str, processes: int) -> None:
    config = {"features": flags, "task": {"benchmark_name": "tabletop", "num_parallel_envs": 4}}
    for form in (config, OmegaConf.create(config)):
        runner = create_env_runner(form, Drawn())
        assert type(runner).__name__ == kind
        assert runner.num_parallel_envs == processes


# -- playing ----------------------------------------------------------------------------------------------------------


def test_environments_are_processes_and_one_inference_serves_those_that_wait(ript: Any) -> None:
    runner = make(ript, num_parallel_envs=3, rollouts_per_env=3)
    envs, task_id, count = runner.create_env("push_button")
    with envs:
        assert count == len(set(envs.worker_pids)) == 3
        assert os.getpid() not in envs.worker_pids
        assert task_id == runner.env_names.index("push_button")
        played = list(runner.run_policy_in_env("push_button", created_env=(envs, task_id, count)))
        assert not envs.closed, "environments that the caller made are the caller's to close"
    assert runner.batches == [3, 3, 3]
    seen = [episode["observations"][0]["task_low_dim_state"].tobytes() for _, _, episode in played]
    assert len(set(seen)) == 3, "each environment has a scene of its own"


def test_lock_step_and_asynchronous_play_the_same_episodes(ript: Any, lockstep: Any) -> None:
    both = []
    for kind in (ript.PI0LiberoRunner, lockstep):
        runner = kind(Drawn(), "tabletop", 5, 2, 7, cameras=[])
        both.append(list(runner.run_policy_in_env("push_button")))
    for (success, reward, ours), (their_success, their_reward, theirs) in zip(*both, strict=True):
        assert (success, reward) == (their_success, their_reward)
        assert np.array_equal(np.stack(ours["actions"]), np.stack(theirs["actions"]))
        assert np.array_equal(
            np.stack([o["gripper_pose"] for o in ours["observations"]]),
            np.stack([o["gripper_pose"] for o in theirs["observations"]]),
        )


def test_an_episode_says_what_was_seen_before_each_choice_and_which_actions_were_taken(ript: Any) -> None:
    _, _, episode = next(iter(make(ript).run_policy_in_env("push_button")))
    assert [mask.tolist() for mask in episode["mask"]] == [[True] * 3, [True] * 3, [True, False, False]]
    assert sum(episode["valid"]) == 3, "RIPT-VLA counts decisions by it"
    assert [actions.shape for actions in episode["actions"]] == [(3, 7)] * 3
    assert np.allclose(episode["log_prob"][0], -np.abs(episode["actions"][0]), atol=1e-5), "[K, A], as it sums itself"
    assert np.allclose(episode["actions_normalized"][1], episode["actions"][1] / 2)
    assert len(set(episode["task_description"])) == 1
    poses = [observation["gripper_pose"] for observation in episode["observations"]]
    assert not np.array_equal(poses[0], poses[1]), "the first is from before the first action"


def test_starts_go_round_and_a_group_shares_its_start(ript: Any) -> None:
    hashes = [
        episode["init_hash"] for *_, episode in make(ript).run_policy_in_env("push_button", all_init_states=[3, 8])
    ]
    assert hashes[0] == hashes[2] == hashes[4] != hashes[1] == hashes[3]
    first, second = [
        np.stack(episode["actions"])
        for *_, episode in make(ript, rollouts_per_env=2).run_policy_in_env("push_button", all_init_states=[3])
    ]
    assert not np.array_equal(first, second), "rollouts of one start differ in their noise"
    runner = make(ript)
    anywhere = [e["init_hash"] for _ in range(2) for *_, e in runner.run_policy_in_env("push_button", random_init=True)]
    assert len(set(anywhere)) == 10, "a second call begins elsewhere"


def test_a_saved_state_is_a_start(ript: Any) -> None:
    runner = make(ript, rollouts_per_env=1)
    created = runner.create_env("push_button")
    with created[0] as envs:
        envs.reset(seed=77)
        pose = envs.observations["task_low_dim_state"][0].copy()
        state = envs.save_state([0])[0]["state"]
        _, _, episode = next(
            iter(runner.run_policy_in_env("push_button", all_init_states=[state], created_env=created))
        )
    assert np.array_equal(episode["observations"][0]["task_low_dim_state"], pose)


def test_pictures_come_with_render(ript: Any) -> None:
    runner = make(ript, rollouts_per_env=1, cameras=["front", "wrist"], image_size=24)
    _, _, episode = next(iter(runner.run_policy_in_env("push_button", render=True)))
    assert len(episode["render"]) == 4
    assert episode["render"][0].shape == (24, 24, 3)
    assert episode["render"][0].any()


def test_ranks_share_the_tasks_and_run_reports_success_rates(ript: Any) -> None:
    names = ["push_button", "reach_target", "open_drawer"]
    shares = [make(ript, task_names_to_use=names, rank=rank, world_size=2).local_env_names for rank in range(2)]
    assert shares == [["push_button", "open_drawer"], ["reach_target"]]
    found = make(ript, task_names_to_use=["push_button"], policy="expert", max_episode_length=None).run()
    assert found["rollout"]["overall_success_rate"] == 1.0
    assert found["rollout"]["rollout_count"] == 5
    assert found["rollout_success_rate"] == {"push_button": 1.0}


def test_what_ript_vlas_rollout_generator_asks_for_is_there(ript: Any) -> None:
    """As its generator does with use_val_init: one of the fixed states, tiled; and a task's place in its suite."""
    runner = make(ript, task_names_to_use=["push_button"], rollouts_per_env=3)
    created = runner.create_env(runner.env_names_to_run[0])
    envs, task_id, _ = created
    with envs:
        assert runner.env_names[task_id] == "push_button"
        states = runner.benchmark.get_task_init_states(task_id)
        tiled = np.tile(states[4], (3, 1))
        played = list(runner.run_policy_in_env("push_button", Drawn(), tiled, created_env=created))
        assert len({episode["init_hash"] for *_, episode in played}) == 1
        mixed = list(runner.run_policy_in_env("push_button", Drawn(), states[[1, 2, 3]], created_env=created))
        assert len({episode["init_hash"] for *_, episode in mixed}) == 3
    with pytest.raises(ConfigError, match="has tasks 0 to"):
        runner.benchmark.get_task_init_states(99)


def test_run_takes_what_ript_vlas_trainer_gives_it(ript: Any, capsys: pytest.CaptureFixture[str]) -> None:
    films: list[tuple[int, str, int]] = []
    runner = make(ript, task_names_to_use=["push_button"], cameras=["front", "wrist"], image_size=24)
    found = runner.run(
        Drawn(),
        n_video=2,
        do_tqdm=True,
        save_video_fn=lambda frames, name, number: films.append((len(frames), name, number)),
        run_env_names=["push_button"],
    )
    assert found["rollout"]["rollout_count"] == 5
    assert films == [(4, "push_button", 0), (4, "push_button", 1)]
    assert "task 1/1: push_button" in capsys.readouterr().out
    created = runner.create_env("push_button")
    with created[0]:
        again = runner.run(Drawn(), created_envs=[created])
    assert again["rollout_success_rate"] == found["rollout_success_rate"]


@pytest.mark.slow
def test_libero_begins_anywhere_and_is_judged_faithfully(ript: Any) -> None:
    python = str(interpreters.libero())
    runner = ript.PI0LiberoRunner(
        Drawn(), "libero_object", 2, 2, max_episode_length=3, python=python, cameras=["agentview"], image_size=32
    )
    assert runner.benchmark.evaluation_options() == {"faithful": True}
    task = runner.env_names[3]
    first, second = (list(runner.run_policy_in_env(task, random_init=True)) for _ in range(2))
    began = [episode["observations"][0]["object-state"].tobytes() for *_, episode in [*first, *second]]
    assert len(set(began)) == 4, "drawn, not taken from the fixed ones"


class Lerobot:
    """A policy with LeRobot's method, that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def predict_action_chunk(self, batch: dict[str, Any]) -> Any:
        import torch

        self.asked.append(batch)
        return torch.full((len(batch["task"]), 4, 32), 0.5)


def test_a_policy_that_predicts_chunks_is_spoken_to_in_lerobots_names(ript: Any, tmp_path: Path) -> None:
    statistics = {
        "state": {"mean": [1.0] * 8, "std": [2.0] * 8, "q01": [0.0] * 8, "q99": [1.0] * 8},
        "actions": {"mean": [0.1] * 7, "std": [0.2] * 7, "q01": [0.0] * 7, "q99": [1.0] * 7},
    }
    (tmp_path / "norm_stats.json").write_text(json.dumps({"norm_stats": statistics}))
    policy = Lerobot()
    runner = make(
        ript,
        policy=policy,
        norm_stats_path=str(tmp_path / "norm_stats.json"),
        cameras=["front", "wrist"],
        image_size=24,
    )
    _, _, episode = next(iter(runner.run_policy_in_env("push_button")))
    batch = policy.asked[0]
    assert batch["observation.images.image"].shape == (2, 3, 24, 24)
    assert 0.0 <= batch["observation.images.image2"].min() <= batch["observation.images.image2"].max() <= 1.0
    seen = episode["observations"][0]
    assert np.array_equal(seen["full_image"], seen["front_rgb"])
    assert np.array_equal(seen["wrist_image"], seen["wrist_rgb"])
    expected = (np.append(seen["gripper_pose"], seen["gripper_open"]) - 1.0) / (2.0 + 1e-6)
    assert np.allclose(batch["observation.state"][0].numpy(), expected, atol=1e-5)
    assert np.allclose(episode["actions"][0], 0.5 * (0.2 + 1e-6) + 0.1)
    assert episode["actions_normalized"][0].shape == (4, 32)


def checkpoint(kind: str, folder: Path) -> dict[str, Any]:
    """Return the options of a policy with a tiny checkpoint, that explores."""
    if kind == "pi0":
        made = {"model_path": str(pi0_checkpoints.pi0_folder(folder)), "chunk": 4, "noise": "flow_sde"}
        return {**made, "state": ["joint_positions", "gripper_open"]}
    made = {"model_path": str(oft.golden_with_tokenizer(folder)), "unnorm_key": "libero_spatial", "sample": True}
    return {**made, "state": ["gripper_pose", "gripper_open"]}


@pytest.mark.parametrize(("kind", "chunk"), [("pi0", 4), ("openvla_oft", 8)])
def test_checkpoints_play_by_the_name_of_their_policy(ript: Any, tmp_path: Path, kind: str, chunk: int) -> None:
    options = {**checkpoint(kind, tmp_path / kind), "device": "cpu", "batch_size": 2, "deterministic": True}
    options |= {"prompt_length": 96}
    world = {"cameras": ["front", "wrist"], "image_size": 32, "arm_mode": "delta_ee"}
    runner = make(ript, policy=kind, policy_options=options, rollouts_per_env=3, max_episode_length=10, **world)
    played = list(runner.run_policy_in_env("reach_target", all_init_states=[3]))
    assert len(played) == 3
    assert max(runner.batches) == 2, "one inference serves both environments"
    for *_, episode in played:
        assert all(actions.shape == (chunk, 7) for actions in episode["actions"])
        assert sum(int(mask.sum()) for mask in episode["mask"]) == 10
        assert all(np.isfinite(log_prob).all() for log_prob in episode["log_prob"])
        assert any(log_prob.any() for log_prob in episode["log_prob"])
    first, second = (np.stack(episode["actions"]) for *_, episode in played[:2])
    assert not np.array_equal(first, second), "rollouts of one start differ in their noise"


def test_what_cannot_work_is_refused_in_words(ript: Any, tmp_path: Path) -> None:
    missing = str(tmp_path / "norm_stats.json")
    without = make(ript, policy=Lerobot(), norm_stats_path=missing, cameras=["front", "wrist"])
    with pytest.raises(ConfigError, match=f"no normalisation statistics at {missing}"):
        next(iter(without.run_policy_in_env("push_button")))
    for name in ("pi0", "expert"):
        lost = make(ript, policy=name, policy_options={"model_path": "x"}, norm_stats_path=missing)
        with pytest.raises(ConfigError, match=f"no normalisation statistics at {missing}"):
            next(iter(lost.run_policy_in_env("push_button")))
    Path(missing).write_text("{}")
    with pytest.raises(ConfigError, match="'expert' has its own statistics"):
        next(iter(make(ript, policy="expert", norm_stats_path=missing).run_policy_in_env("push_button")))
    with pytest.raises(ConfigError, match="push_button"):
        make(ript).create_env("push_buton")
    with pytest.raises(ConfigError, match="object is no policy"):
        next(iter(make(ript, policy=object()).run_policy_in_env("push_button")))
    with pytest.raises(ConfigError, match="all_init_states is empty"):
        next(iter(make(ript).run_policy_in_env("push_button", all_init_states=[])))
    with pytest.raises(ConfigError, match="rank is 2 of 2"):
        make(ript, rank=2, world_size=2)


def test_debug_mode_says_what_each_inference_served(ript: Any, capsys: pytest.CaptureFixture[str]) -> None:
    list(make(ript, config={"test": {"debug_mode": True}}, rollouts_per_env=2).run_policy_in_env("push_button"))
    printed = capsys.readouterr().out
    assert "inference 1: 2 environments" in printed
    assert "rollout 1: " in printed
