"""The embodied recipes: every one is read and planned, and runs end to end with small models on what runs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import houses
import interpreters
from conftest import REPOSITORY, environment
from manyarms import cli, make_vec
from manyarms.cli import eval as evaluation
from manyarms.learning.settings import load
from oft import golden_with_tokenizer, made
from pi0_checkpoints import pi0_folder, statistics

pytestmark = pytest.mark.slow

EMBODIMENT = REPOSITORY / "examples/embodiment"
RECIPES = sorted((EMBODIMENT / "config").glob("*.yaml"))

#: As little as an update can be made of.
SMALL = (
    *("runner.max_steps=2", "runner.val_check_interval=-1", "env.eval.episodes=2", "actor.global_batch_size=16"),
    *(
        "actor.micro_batch_size=8",
        "algorithm.update_epoch=1",
        "env.train.max_episode_steps=8",
        "actor.model.precision=fp32",
    ),
)

#: Names that the document has, of training, rollouts and environments.
METRICS = (
    *("actor/loss", "actor/grad_norm", "actor/approx_kl", "actor/pg_clipfrac"),
    *("rollout/returns_mean", "rollout/advantages_mean", "env/episode_len", "env/success_once"),
)
OF_PPO = ("actor/value_loss", "actor/value_clip_ratio")

#: What RLinf's recipe for RLinf-OpenVLAOFT-Behavior, the checkpoint of the document, says of it.
OF_THE_CHECKPOINT = {"unnorm_key": "behavior_turn_on_radio", "num_action_chunks": 8, "action_dim": 23}


class Recipes:
    """Runs recipes in this process, which has imported what they need."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.chdir(folder)

    def train(self, recipe: str, *words: str, **variables: str) -> tuple[int, str]:
        """Return the exit status, and what was said."""
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)
        for path in reversed(variables.get("PYTHONPATH", "").split(os.pathsep)):
            self._monkeypatch.syspath_prepend(path)
        status = cli.run(["train", str(EMBODIMENT / f"config/{recipe}.yaml"), *words])
        said = self._capsys.readouterr()
        return status, said.out + said.err


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Recipes:
    return Recipes(tmp_path, monkeypatch, capsys)


def train(recipe: str, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe as users do."""
    command = ["bash", str(EMBODIMENT / "run_embodiment.sh"), recipe, *words]
    env = environment(**variables)
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=600, check=False)


def written(folder: Path) -> set[str]:
    """Return the names that TensorBoard's files hold."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = list(folder.rglob("events.out.tfevents.*"))
    assert files
    names: set[str] = set()
    for file in files:
        events = EventAccumulator(str(file.parent))
        events.Reload()
        names.update(events.Tags()["scalars"])
    return names


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_read_without_warnings(recipe: Path) -> None:
    found = load(
        str(recipe), ["actor.model.model_path=somewhere"] if "pi0" in recipe.stem or "vla" in recipe.stem else []
    )
    assert not found.warnings
    assert found.config.runner.logger.log_path == "logs"


def test_recipes_for_libero_are_as_published_checkpoints_were_trained() -> None:
    """Those of RLinf, of OFT's authors, and openpi's pi0_libero."""
    named = {path.stem: path for path in RECIPES if path.stem.startswith("libero")}
    found = {stem: load(str(path), ["actor.model.model_path=somewhere"]).config for stem, path in named.items()}
    assert all(one.train.options["image_size"] == one.eval.options["image_size"] == 256 for one in found.values())
    options = {stem: {**one.actor.model.of_checkpoint, **one.actor.model.options} for stem, one in found.items()}
    names = ("head", "num_images", "proprio", "crop_area", "stop_token")
    assert [options["libero_grpo_openvlaoft"][name] for name in names] == ["tokens", 1, False, 1.0, False]
    assert [options["libero_grpo_openvlaoft_l1"][name] for name in names] == ["l1", 2, True, 0.9, True]
    assert options["libero_ppo_pi0"]["relative"] == 6


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_prints_its_plan(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", str(recipe), "--dry-run", "actor.model.model_path=somewhere"]) == 0
    said = capsys.readouterr().out
    assert "an update" in said
    if "behavior" in recipe.stem or "libero_grpo" in recipe.stem:
        assert "rollout 0" in said
        assert "actor 1" in said


def test_settings_may_stand_before_and_after_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "reach_target_ppo", "runner.max_steps=33", "--dry-run", "algorithm.gamma=0.55"]) == 0
    said = capsys.readouterr().out
    assert "max_steps: 33" in said
    assert "gamma: 0.55" in said


def test_what_a_recipe_prints_is_kept(tmp_path: Path) -> None:
    done = train("behavior_ppo_openvlaoft", tmp_path, "--dry-run", "actor.model.model_path=somewhere")
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (tmp_path / "logs").glob("behavior_ppo_openvlaoft-*.log")
    assert log.read_text() == done.stdout
    assert "rollout 0" in done.stdout


def test_an_unknown_recipe_and_a_missing_checkpoint_are_said_in_words(tmp_path: Path) -> None:
    done = train("behaviour_ppo", tmp_path)
    assert done.returncode == 2
    assert "behavior_ppo_openvlaoft" in done.stderr
    done = train("tabletop_grpo_openvlaoft", tmp_path, *SMALL)
    assert done.returncode != 0
    assert "model_path" in done.stdout
    assert "Traceback" not in done.stdout


def on_the_stand_in(recipe: str, tmp_path: Path, *words: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return words and variables for a recipe for BEHAVIOR, with a small checkpoint like the document's."""
    folder = made(tmp_path / "oft", 23, dataset=OF_THE_CHECKPOINT["unnorm_key"])
    variables = houses.build(tmp_path, ("assembling_gift_baskets",))
    words = (
        *SMALL,
        f"actor.model.model_path={folder}",
        *("env.train.max_episode_steps=16", "env.train.options.image_size=[24,16]", "env.train.options.launch_pause=0"),
        # Sixteen conditions, of which closing a gripper fulfils or undoes one: random tokens earn more or less.
        *("env.train.simulator=behavior/assembling_gift_baskets", "actor.model.options.prompt_length=160"),
        *("algorithm.episodes_per_step=4", *(["algorithm.group_size=2"] if "grpo" in recipe else [])),
        *words,
    )
    return words, variables


@pytest.mark.parametrize("recipe", ["behavior_ppo_openvlaoft", "behavior_grpo_openvlaoft"])
def test_behavior_recipes_are_for_the_checkpoint_of_the_document(recipe: str) -> None:
    config = load(str(EMBODIMENT / f"config/{recipe}.yaml"), ["actor.model.model_path=somewhere"]).config
    assert {name: getattr(config.actor.model, name) for name in OF_THE_CHECKPOINT} == OF_THE_CHECKPOINT


def test_a_behavior_recipe_runs_on_the_stand_in(recipes: Recipes, tmp_path: Path) -> None:
    """PPO; GRPO runs as it is placed."""
    recipe = "behavior_ppo_openvlaoft"
    few = ["cluster.component_placement=null", "env.train.total_num_envs=2", "env.eval.total_num_envs=2"]
    words, variables = on_the_stand_in(recipe, tmp_path, *few)
    status, said = recipes.train(recipe, *words, **variables)
    assert status == 0, said
    run = tmp_path / "logs" / recipe
    assert {*METRICS, *OF_PPO} <= written(run)
    assert list((run / "video/train").rglob("*.mp4")), "each run has its own videos"
    assert not (tmp_path / "logs/video").exists()


@pytest.mark.xdist_group("ray")
def test_a_behavior_recipe_runs_as_it_is_placed(tmp_path: Path) -> None:
    """All roles on all devices, which here is a CPU slot."""
    recipe = "behavior_grpo_openvlaoft"
    words = ["cluster.cpu_slots=1", "env.train.total_num_envs=2", "runner.max_steps=1", "runner.val_check_interval=0"]
    words, variables = on_the_stand_in(recipe, tmp_path, *words)
    done = train(recipe, tmp_path, *words, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(METRICS) <= written(tmp_path / "logs" / recipe)


def test_the_libero_recipe_for_pi0_runs_on_libero(recipes: Recipes, tmp_path: Path) -> None:
    folder = pi0_folder(tmp_path / "pi0")
    words = [*SMALL, f"actor.model.model_path={folder}", "env.train.simulator=libero/libero_object/0"]
    words += ["env.train.total_num_envs=2", "env.train.options={image_size: 32}", "algorithm.episodes_per_step=2"]
    words += ["actor.model.options.prompt_length=80"]
    python = str(interpreters.libero() / "bin/python")
    status, said = recipes.train("libero_ppo_pi0", *words, LIBERO_PYTHON=python, MUJOCO_GL="osmesa")
    assert status == 0, said
    assert {*METRICS, *OF_PPO} <= written(tmp_path / "logs/libero_ppo_pi0")


@pytest.mark.parametrize("policy", ["openvla_oft", "pi0"])
def test_a_checkpoint_is_evaluated_on_libero_without_naming_its_fields(policy: str, tmp_path: Path) -> None:
    folder = tmp_path / policy
    if policy == "pi0":
        pi0_folder(folder)
        (folder / "norm_stats.json").write_text(json.dumps(statistics(state=8)))
        options = {"relative": 6, "prompt_length": 80}
    else:
        golden_with_tokenizer(folder)
        options = {"unnorm_key": "libero_spatial"}
    found = evaluation.run(
        evaluation.EvalConfig(
            "libero/libero_object/0",
            policy=policy,
            python=str(interpreters.libero()),
            policy_options={"model_path": str(folder), **options},
            options={"image_size": 32},
            episodes=1,
            num_envs=1,
            max_episode_steps=8,
            out=tmp_path / "out",
        )
    )
    assert [result.length for result in found.results] == [8]


def test_the_rlbench_recipe_runs_on_the_stand_in(recipes: Recipes, tmp_path: Path) -> None:
    tests = REPOSITORY / "tests"
    (tmp_path / "CoppeliaSim").mkdir()
    variables = {"PYTHONPATH": f"{tests}/rlbench_standin:{tests}", "COPPELIASIM_ROOT": str(tmp_path / "CoppeliaSim")}
    words = [
        *SMALL,
        "env.train.total_num_envs=2",
        "env.train.options.image_size=[24,24]",
        "algorithm.episodes_per_step=4",
    ]
    status, said = recipes.train("rlbench_ppo_pixel", *words, "actor.model.options.image_side=24", **variables)
    assert status == 0, said
    assert {*METRICS, *OF_PPO} <= written(tmp_path / "logs/rlbench_ppo_pixel")


def test_rlbench_carries_out_what_a_policy_of_the_recipe_may_draw(tmp_path: Path) -> None:
    """A policy that is refused learns nothing, and nothing but the movement of the arm would show it."""
    tests = REPOSITORY / "tests"
    recipe = load(str(REPOSITORY / "examples/embodiment/config/rlbench_ppo_pixel.yaml"), []).config.train
    options = {**recipe.options, "cameras": [], "display": None}
    variables = {"PYTHONPATH": f"{tests}/rlbench_standin:{tests}", "COPPELIASIM_ROOT": str(tmp_path)}
    with make_vec("rlbench/reach_target", 1, env=variables, max_chunk=32, **options) as envs:
        before = envs.reset(seed=0)[0]["joint_positions"].copy()
        envs.action_space.seed(0)
        chunk = envs.step_chunk(np.stack([envs.action_space.sample() for _ in range(32)], axis=1))
        assert "invalid_action" not in chunk.infos
        assert not np.allclose(chunk.observations["joint_positions"], before)


@pytest.mark.parametrize("recipe", ["tabletop_grpo_openvlaoft", "libero_grpo_openvlaoft", "libero_grpo_openvlaoft_l1"])
def test_openvla_oft_recipes_run_on_tabletop(recipe: str, recipes: Recipes, tmp_path: Path) -> None:
    """With rewards for every bit of progress: random weights never succeed, and groups all alike teach nothing."""
    folder = made(tmp_path / "oft", 7, **({"regression": True, "state": 8} if "l1" in recipe else {}))
    words = [*SMALL, f"actor.model.model_path={folder}", "env.train.total_num_envs=2", "algorithm.group_size=2"]
    words += ["algorithm.episodes_per_step=4", "actor.model.options.prompt_length=160"]
    words += ["env.train.options={image_size: 32, arm_mode: delta_ee, shaped_rewards: true}"]
    if "libero" in recipe:
        words += ["env.train.simulator=tabletop/push_button", "env.train.init_states=null"]
        words += ["actor.model.unnorm_key=kitchen", "cluster.component_placement=null"]
        words += ["actor.model.options.state=[gripper_pose,gripper_open]"] if "l1" in recipe else []
    status, said = recipes.train(recipe, *words)
    assert status == 0, said
    assert set(METRICS) <= written(tmp_path / "logs" / recipe)


def test_one_run_learns_in_two_simulators_at_once(recipes: Recipes, tmp_path: Path) -> None:
    words = [*SMALL, "env.train.total_num_envs=2", "env.train.options.image_size=32", "algorithm.episodes_per_step=4"]
    words += ["actor.model.options.image_side=32"]
    python = str(interpreters.libero() / "bin/python")
    status, said = recipes.train("two_simulators_ppo_pixel", *words, LIBERO_PYTHON=python, MUJOCO_GL="osmesa")
    assert status == 0, said
    names = written(tmp_path / "logs/two_simulators_ppo_pixel")
    assert {*METRICS, *OF_PPO, "env/success_once/push_button"} <= names
    assert any("alphabet_soup" in name for name in names)


def test_several_simulators_need_rows_and_names_of_their_own(recipes: Recipes) -> None:
    both = "[{simulator: tabletop/push_button}, {simulator: tabletop/push_button, options: {cameras: []}}]"
    words = [
        *SMALL,
        "env.train.simulator=null",
        f"env.train.simulators={both}",
        "actor.model.options.fields=[gripper_pose]",
    ]
    status, said = recipes.train("tabletop_ppo_mlp", *words, "env.train.total_num_envs=2")
    assert status == 2
    assert "several simulators have a task named 'push_button'" in said
    _, said = recipes.train("tabletop_ppo_mlp", *words, "env.train.total_num_envs=1")
    assert "1 environments cannot hold 2 simulators" in said
    _, said = recipes.train("tabletop_ppo_mlp", "env.train.simulator=null", "env.train.simulators=[{task: x}]")
    assert "one of simulators has task" in said


def test_the_quickest_recipe_runs_and_films(tmp_path: Path) -> None:
    words = [
        *SMALL,
        "algorithm.episodes_per_step=8",
        "env.train.options.cameras=[front]",
        "env.train.options.image_size=32",
    ]
    words += ["env.train.video_cfg={save_video: true, info_on_video: true}"]
    done = train("tabletop_ppo_mlp", tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "logs/tabletop_ppo_mlp/video/train").rglob("*.mp4"))
    assert (tmp_path / "logs/tabletop_ppo_mlp/report.html").is_file()
    # The document's command, which here looks and ends instead of serving.
    seen = subprocess.run(
        [str(Path(sys.executable).parent / "tensorboard"), "--logdir", "./logs", "--inspect"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert "actor/loss" in seen.stdout
