"""Configs: what is read, what is refused, and in which words."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from conftest import REPOSITORY
from manyarms import cli
from manyarms.algorithms.grpo import GRPO
from manyarms.algorithms.ppo import PPO
from manyarms.errors import ConfigError, ManyarmsError, UnknownName
from manyarms.learning.config import TrainConfig
from manyarms.learning.plan import plan
from manyarms.learning.settings import load, recipes
from training import CONFIG, written


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_can_be_read_and_says_what_it_would_do(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", name, "--dry-run"]) == 0
    said = capsys.readouterr()
    assert not said.err, "a config of ours needs no warnings"
    text, _, plan = said.out.partition("plan\n")
    whole = yaml.safe_load(text)
    assert whole["runner"]["logger"]["experiment_name"] == name
    assert whole["algorithm"]["clip_ratio_low"] == 0.2, "defaults are shown"
    for word in ("environments", "an update", "evaluation", "folder"):
        assert word in plan


def test_recipes_are_named_where_people_look(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.run(["train", "--help"])
    said, page = " ".join(capsys.readouterr().out.replace("│", " ").split()), REPOSITORY / "docs" / "training.md"
    assert all(name in said and f"`{name}`" in page.read_text() for name in recipes())


def test_what_is_printed_can_be_given_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["train", "pixel_grpo", "--dry-run"])
    text = capsys.readouterr().out.partition("plan\n")[0]
    assert load(written(tmp_path, text)).config == load("pixel_grpo").config


def test_words_on_the_command_line_win_and_may_refer_to_others(tmp_path: Path) -> None:
    words = ["algorithm.gamma=0.5", "actor.seed=3", "env.train.seed=${actor.seed}", "env.train.tasks=[near, far]"]
    config = load(written(tmp_path), words).config
    assert isinstance(config.algorithm, PPO)
    assert (config.algorithm.gamma, config.actor.seed, config.train.seed) == (0.5, 3, 3)
    assert config.train.tasks == ("near", "far")
    assert config.runner.logger.experiment_name == "walk"
    assert config.train.options == {"goal": 1.2, "cameras": []}


def test_what_evaluation_leaves_out_is_as_in_training(tmp_path: Path) -> None:
    config = load(written(tmp_path), ["env.eval.options.goal=2.0", "env.train.max_episode_steps=9"]).config
    assert config.eval.options == {"goal": 2.0, "cameras": []}
    assert [each.simulator for each in config.eval.simulators] == ["standins:Walker"]
    assert config.eval.max_episode_steps == 9
    assert config.eval.seed != config.train.seed


def test_evaluation_may_be_in_other_simulators_than_training(tmp_path: Path) -> None:
    several = "env.eval.simulators=[{simulator: standins:Walker}, {simulator: standins:Herd, tasks: [a]}]"
    config = load(written(tmp_path), [several, "env.train.python=python3"]).config
    assert [each.simulator for each in config.train.simulators] == ["standins:Walker"]
    assert [(each.simulator, each.tasks, each.python) for each in config.eval.simulators] == [
        ("standins:Walker", (), None),
        ("standins:Herd", ("a",), None),
    ]
    several = ["env.train.simulator=null", "env.train.simulators=[{simulator: a:A}, {simulator: libero/goal}]"]
    config = load(written(tmp_path), several).config
    assert [each.simulator for each in config.eval.simulators] == ["a:A", "libero/goal"]
    assert config.eval.simulators[1].options == {"faithful": True}, "as policies are evaluated there"
    with pytest.raises(ConfigError, match="stands in place of simulator, tasks and python"):
        load(written(tmp_path), [*several, "env.eval.tasks=[a]"])
    with pytest.raises(ConfigError, match="both 'libero/goal' and tasks name tasks"):
        load(written(tmp_path), ["env.train.simulator=libero/goal", "env.train.tasks=[a]"])


@pytest.mark.parametrize(
    ("word", "kind", "says"),
    [
        ("algorithm.gama=0.9", UnknownName, "did you mean gamma"),
        ("runner.gamma=0.9", UnknownName, "algorithm.gamma?"),
        ("actor.optim.learning_rate=1", UnknownName, "there is no setting"),
        ("env.train.video_cfg.save_vide=true", UnknownName, "save_video"),
        ("algorithm.gamma=lots", ConfigError, "algorithm.gamma"),
        ("algorithm.gamma=1.5", ConfigError, "from 0 to 1"),
        ("actor.seed=${nowhere}", ConfigError, "nowhere"),
        ("algorithm", ConfigError, "key=value"),
        ("=3", ConfigError, "key=value"),
        ("algorithm={adv_type: grpo, group_size: 1}", ConfigError, "group_size must be at least 2"),
        ("algorithm={adv_type: rloo, loss_type: actor_critic}", ConfigError, "rloo has no critic"),
        ("algorithm.loss_type=actor", ConfigError, "gae needs a critic"),
        ("algorithm.adv_type=gpro", ConfigError, "did you mean grpo"),
        ("algorithm.adv_type=[grpo]", ConfigError, "choose from"),
        ("algorithm={adv_type: dapo, overlong_bufer: 3}", UnknownName, "did you mean overlong_buffer"),
        ("runner.task_type=reasoning", ConfigError, "embodied"),
        ("runner.max_epochs=3", ConfigError, "max_steps: -1"),
        ("runner.max_steps=0", ConfigError, "nothing would be learnt"),
        ("env.train.rollout_epoch=2", ConfigError, "episodes_per_step"),
        ("env.eval.seed=3", ConfigError, "held out"),
        ("env.train.simulator=null", ConfigError, "simulator is missing"),
        ("env.train.simulators=[tabletop]", ConfigError, "begin each with `- simulator:`"),
        ("actor.training_backend=megatron", ConfigError, "ddp or fsdp"),
        ("algorithm={adv_type: grpo, filter_rewards: true}", ConfigError, "filter_rewards"),
        ("algorithm={adv_type: grpo, rewards_lower_bound: 0.1}", ConfigError, "only work together"),
        ("algorithm.reward_type=action_level", ConfigError, "logprob_type"),
        ("algorithm.reward_type=token_level", ConfigError, "action_level"),
        ("env.train.options=[]", ConfigError, "env.train.options is of type dict"),
        ("runner.logger=[]", ConfigError, "runner.logger is a group of settings"),
        ("runner.logger.experiment_name=${runner.logger.experiment_name}", ConfigError, "Recursive"),
        ("actor.seed=${actor.seed}", ConfigError, "Recursive"),
        ("env.eval.simulator=${env}", ConfigError, "parent"),
        ("runner.logger.experiment_name=../../x", ConfigError, "leads out of log_path"),
        ("runner.logger.experiment_name=a/../../x", ConfigError, "leads out of log_path"),
        ("runner.logger.experiment_name=/tmp/x", ConfigError, "leads out of log_path"),
        ("runner.logger.experiment_name=.", ConfigError, "a folder's name"),
        ("runner.logger.experiment_name=a\0b", ConfigError, "cannot be written"),
        ('runner.logger.experiment_name="a\\0b"', ConfigError, "cannot be written"),
        ('runner.logger.experiment_name="\\e[2J"', ConfigError, "a folder's name"),
        (f"runner.logger.experiment_name={'x' * 300}", ConfigError, "255 bytes"),
        (f"runner.logger.log_path=/tmp/{'x' * 300}", ConfigError, "255 bytes"),
        (f"runner.logger.log_path={os.fsdecode(b'/tmp/' + bytes([255]))}", ConfigError, "cannot be written"),
        ('env.train.tasks=["\\ud800"]', ConfigError, "cannot be written"),
        (f"env.train.options.x={'[' * 5000}", ConfigError, "levels deep"),
        (f"{'a.' * 5000}a=1", ConfigError, "too deep"),
        (f"actor.seed={'9' * 5000}", ConfigError, "4300 digits"),
        ("actor.seed=-1", ConfigError, "at least 0"),
        ("actor.seed=!!int x", ConfigError, "names a type"),
        ("actor.model.options.log_std=.nan", ConfigError, "actor.model.options.log_std is nan"),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_what_cannot_be_is_refused_in_words(word: str, kind: type[ManyarmsError], says: str, tmp_path: Path) -> None:
    with pytest.raises(kind) as caught:
        load(written(tmp_path), [word])
    assert says in str(caught.value)


def test_settings_of_other_algorithms_are_dropped_and_told_where_they_were_chosen(tmp_path: Path) -> None:
    """RLinf's files, and every config.yaml that was written before, hold those of all algorithms."""
    words = ["algorithm.adv_type=grpo", "algorithm.group_size=4", "algorithm.loss_type=actor"]
    found = load(written(tmp_path), [*words, "algorithm.gamma=0.99", "algorithm.value_clip=null"])
    assert found.warnings == ()
    assert isinstance(found.config.algorithm, GRPO)
    found = load(written(tmp_path), [*words, "algorithm.gamma=0.5", "algorithm.value_clip=0.2"])
    assert sorted(found.warnings) == [f"algorithm.{key} has no effect with grpo" for key in ("gamma", "value_clip")]
    assert "gamma" not in found.text
    again = load(written(tmp_path, found.text))
    assert again.config == found.config
    assert load(written(tmp_path), ["algorithm.group_size=1"]).warnings == (), "no groups is what it has"
    assert load(written(tmp_path), ["algorithm.group_size=4"]).warnings == (
        "algorithm.group_size has no effect with gae",
    )
    found = load(written(tmp_path), ["algorithm.adv_type=rwfm", "algorithm.logprob_type=action_level"])
    assert found.warnings == ("algorithm.logprob_type has no effect with rwfm",), "it looks at no log-probabilities"
    assert load(written(tmp_path, found.text)).warnings == ()


class Plain(PPO):
    """An algorithm of one's own, for the test below."""


def test_a_config_may_name_an_algorithm_of_ones_own(tmp_path: Path) -> None:
    found = load(written(tmp_path), [f"algorithm.adv_type={__name__}:Plain", "algorithm.gamma=0.5"])
    assert type(found.config.algorithm) is Plain
    assert found.config.algorithm.gamma == 0.5
    assert f"adv_type: {__name__}:Plain" in found.text
    assert f"{__name__}:Plain" in dict(plan(found.config))["runs code from"].split(", ")


def test_a_value_of_another_type_is_told_the_type(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path), ["runner.max_steps=abc"])
    assert caught.value.do == "runner.max_steps is of type int", "a file of ours that only a checkout has is no help"
    with pytest.raises(ConfigError, match="runner is 3, but it is a group of settings"):
        load(written(tmp_path), ["runner=3"])


def floats(kind: type, prefix: str = "") -> Iterator[str]:
    """Yield the settings that are real numbers."""
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and is_dataclass(hint):
            yield from floats(hint, f"{prefix}{name}.")
        elif hint in (float, float | None):
            yield f"{prefix}{name}"


@pytest.mark.parametrize("key", [*floats(TrainConfig)])
def test_a_number_that_is_none_is_refused_where_it_stands(key: str, tmp_path: Path) -> None:
    for value in (".nan", ".inf", "-.inf"):
        with pytest.raises(ConfigError, match=f"{key} is -?(nan|inf)"):
            load(written(tmp_path), [f"{key}={value}"])


def test_a_simulators_own_numbers_are_up_to_it(tmp_path: Path) -> None:
    assert load(written(tmp_path), ["env.train.options.goal=.inf"]).config.train.options["goal"] == float("inf")


@pytest.mark.parametrize(
    "word",
    [
        "runner.logger.experiment_name=${runner.logger.experiment_name}",
        "runner.logger.experiment_name=../../x",
        "runner=[]",
        "actor.optim.lr=nan",
    ],
)
def test_what_is_refused_is_refused_in_a_dry_run_as_well(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["train", written(tmp_path), word, "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "ConfigError: " in said.err
    assert not said.out


def test_a_name_may_have_folders_in_it(tmp_path: Path) -> None:
    assert load(written(tmp_path), ["runner.logger.experiment_name=walks/first"]).config.runner.updates == 6


LAUGHS = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 10_000 + "]" * 10_000, "levels deep"),
        ("{a: " * 10_000 + "1" + "}" * 10_000, "levels deep"),
        ("- " * 10_000, "levels deep"),
        (f"a0: &a0 [x, x]\n{LAUGHS}", "values"),
        ("a: &a [*a]", "within itself"),
        (f"a: [{'1, ' * 20_000}]", "values"),
        (f"a: {'x' * 2_000_000}", "bytes"),
        ("a: !!python/object:os.system x", "names a type"),
        ("3", "a scalar"),
        ("base: 3", "base is 3"),
        ("base: [{a: 1}]", "base is"),
        ("runner: []", "runner is \\[\\], but it is a group"),
        ("env: {train: {options: []}}", "env.train.options"),
        ('cloning: {expert: "\\ud800"}', "cannot be written"),
    ],
    ids=lambda value: ascii(value)[:60],
)  # fmt: skip
def test_text_that_no_one_means_is_refused_in_words(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        load(written(tmp_path, text))


def test_bases_that_stand_on_each_other_again_and_again_are_refused(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i}.yaml").write_text(f"base: [{i + 1}.yaml, {i + 1}.yaml]\n")
    (tmp_path / "12.yaml").write_text(CONFIG)
    with pytest.raises(ConfigError, match="more than 64"):
        load(str(tmp_path / "0.yaml"))


# -- environment variables --------------------------------------------------------------------------------------------

SECRET = "hunter2-a-secret"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MANYARMS_SECRET", SECRET)
    return "${oc.env:MANYARMS_SECRET}"


def test_what_comes_from_the_environment_is_used_but_not_shown(
    secret: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"env.train.options.env={{TOKEN: '{secret}', AS_WELL: '${{env.train.options.env.TOKEN}}/x'}}"]
    words += [f"actor.model.options.fields=['{secret}']"]
    words += [f"cloning.expert={secret}", "cloning.episodes=1", f"runner.logger.log_path={secret}/runs"]
    words += [f"env.train.tasks=['{secret}']", f"actor.model.model_type={secret}"]
    config = load(written(tmp_path), words).config
    assert config.train.options["env"] == {"TOKEN": SECRET, "AS_WELL": f"{SECRET}/x"}
    assert config.runner.logger.log_path == f"{SECRET}/runs"
    assert config.actor.model.options["fields"] == [SECRET]
    assert pickle.loads(pickle.dumps(config)) == config
    assert cli.run(["train", written(tmp_path), *words, "--dry-run"]) == 0
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert f"log_path: {secret}/runs" in said.out
    text = said.out.partition("plan\n")[0]
    assert load(written(tmp_path, text)).config == config


def test_a_default_for_a_variable_that_is_not_set_is_shown(tmp_path: Path) -> None:
    found = load(written(tmp_path), ["env.train.python=${oc.env:MANYARMS_NOT_SET,/usr/bin/python3}"])
    assert "python: /usr/bin/python3" in found.text


@pytest.mark.parametrize("key", ["algorithm.adv_type", "runner.max_steps", "actor.optim"])
def test_what_is_refused_is_not_told_where_it_comes_from_the_environment(key: str, secret: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path), [f"{key}={secret}"])
    assert SECRET not in str(caught.value)
    assert "MANYARMS_SECRET" in str(caught.value)


@pytest.mark.parametrize("key", ["experiment_name", "project_name"])
def test_a_name_from_the_environment_is_refused(key: str, secret: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="let the shell fill it in") as caught:
        load(written(tmp_path), [f"runner.logger.{key}=a-{secret}"])
    assert SECRET not in str(caught.value)


def test_what_looks_like_an_interpolation_and_is_none_can_be_given_back(tmp_path: Path) -> None:
    found = load(written(tmp_path), ["env.train.options.x='\\${actor.seed}'", "env.train.options.y='1e5'"])
    assert found.config.train.options["x"] == "${actor.seed}"
    assert load(written(tmp_path, found.text)).config == found.config


def test_files_that_are_none(tmp_path: Path) -> None:
    for text, says in (("a: [", "no YAML"), ("- 1", "no settings"), ("a: 1", "there is no setting 'a'")):
        with pytest.raises(ManyarmsError, match=says):
            load(written(tmp_path, text))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path / "nothing.yaml"))
    with pytest.raises(UnknownName, match="did you mean reach_target_ppo"):
        load("reach_target_pp")


def test_settings_of_others_without_meaning_here_are_warned_of(tmp_path: Path) -> None:
    words = ["cluster.num_gpus_per_node=8", "env.train.auto_reset=true", "algorithm.loss_agg_func=token-mean"]
    words += ["actor.fsdp_config.strategy=fsdp2", "features.use_ript_vla_runner=true", "algo.rollouts_per_env=8"]
    found = load(written(tmp_path), words)
    assert len(found.warnings) == 6
    assert all(" has no effect here: " in warning for warning in found.warnings)
    assert found.config == load(written(tmp_path)).config


def test_the_keys_that_users_know_are_all_known(tmp_path: Path) -> None:
    """Those of the recipe for BEHAVIOR and of RLinf's configs: read or warned of, never an error."""
    known: dict[str, Any] = yaml.safe_load(CONFIG)
    known["cluster"] = {"num_nodes": 1, "component_placement": {"env,rollout,actor": "all"}}
    known["runner"] |= {"task_type": "embodied", "max_epochs": 6, "max_steps": -1, "only_eval": False}
    known["runner"]["logger"] = {
        "log_path": "../results",
        "project_name": "rlinf",
        "experiment_name": "test_behavior",
        "logger_backends": ["tensorboard", "wandb", "swanlab"],
    }
    known["rollout"] |= {"pipeline_stage_num": 2, "enable_offload": True, "group_name": "RolloutGroup"}
    known["algorithm"] |= {
        "normalize_advantages": True,
        "kl_penalty": "kl",
        "group_size": 1,
        "adv_type": "gae",
        "kl_beta": 0.0,
        "loss_type": "actor_critic",
        "reward_type": "chunk_level",
        "logprob_type": "token_level",
        "entropy_type": "token_level",
        "clip_ratio_high": 0.28,
        "clip_ratio_low": 0.2,
        "clip_ratio_c": 3.0,
        "value_clip": 0.2,
        "huber_delta": 10.0,
        "gae_lambda": 0.95,
        "entropy_bonus": 0.0,
        "update_epoch": 4,
    }
    video = {"save_video": True, "info_on_video": True, "video_base_dir": "${runner.logger.log_path}/video/train"}
    known["env"]["train"] |= {"rollout_epoch": 1, "ignore_terminations": False, "auto_reset": True, "video_cfg": video}
    known["actor"] |= {"micro_batch_size": 8, "seed": 42, "training_backend": "fsdp", "enable_offload": True}
    known["actor"]["model"] |= {"model_type": "mlp", "unnorm_key": "x", "add_value_head": True, "precision": "bf16"}
    known["actor"]["optim"] |= {"value_lr": 3e-3, "clip_grad": 1.0, "weight_decay": 0.0, "critic_warmup_steps": 0}
    found = load(written(tmp_path, yaml.safe_dump(known)))
    assert found.config.train.video_cfg.video_base_dir == "../results/video/train"
    assert found.config.runner.updates == 6
    warned = {warning.split(" ")[0] for warning in found.warnings}
    assert found.config.cluster.component_placement == {"env,rollout,actor": "all"}
    assert found.config.actor.model.of_checkpoint == {"unnorm_key": "x"}
    assert "actor.enable_offload" in warned


def test_a_config_stands_on_its_bases(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/world.yaml").write_text("env: {train: {simulator: tabletop/reach_target, total_num_envs: 4}}\n")
    (tmp_path / "parts/more.yaml").write_text("base: world.yaml\nenv: {train: {total_num_envs: 6}}\nactor: {seed: 3}\n")
    (tmp_path / "run.yaml").write_text("base: [parts/world.yaml, parts/more.yaml]\nactor: {seed: 5}\n")
    config = load(str(tmp_path / "run.yaml"), ["env.train.rows_per_worker=2"]).config
    assert config.label == "tabletop/reach_target"
    assert (config.train.total_num_envs, config.train.rows_per_worker, config.actor.seed) == (6, 2, 5)
    (tmp_path / "parts/world.yaml").write_text("base: more.yaml\n")
    with pytest.raises(ConfigError, match="round in a circle"):
        load(str(tmp_path / "run.yaml"))
