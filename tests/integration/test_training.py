"""`manyarms train` from its config to its report, and what of it survives signals and deaths."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import manyarms
import standins
from manyarms import cli
from manyarms.cli import eval as evaluation
from manyarms.cli.eval import EvalConfig
from manyarms.errors import ConfigError, DiskError, LearningError, ManyarmsError
from manyarms.learning.folder import RunFolder
from manyarms.learning.settings import load
from manyarms.learning.training import TrainResult, train
from manyarms.reporting.runs import StopReason
from manyarms.reporting.watched import WatchedRun
from training import CONFIG, assert_same_run, curve, ended, in_folder, lines, started, wait_for, weights, written


def run(tmp_path: Path, *words: str, name: str = "walk", resume: bool = False) -> TrainResult:
    return train(load(written(tmp_path), [*in_folder(tmp_path, name), *words]), resume=resume)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    return run(tmp_path_factory.mktemp("undisturbed")).folder


def test_a_run_leaves_all_that_is_promised(undisturbed: Path) -> None:
    logged = lines(undisturbed)
    assert [line["step"] for line in logged] == list(range(7))
    document_003 = {
        *("actor/loss", "actor/value_loss", "actor/grad_norm", "actor/approx_kl", "actor/pg_clipfrac"),
        *("actor/value_clip_ratio", "rollout/returns_mean", "rollout/advantages_mean"),
        *("env/episode_len", "env/success_once"),
    }
    ours = {"throughput/env_steps_per_s", "throughput/overlap", "time/env", "time/rollout", "time/actor", "actor/lr"}
    assert document_003 | ours <= set(logged[1])
    assert all(np.isfinite(value) for line in logged for value in line.values())
    assert [step for step in range(7) if "eval/success_once" in logged[step]] == [0, 3, 6]
    assert 0.0 <= logged[3]["throughput/overlap"] <= 1.0
    names = {path.name for path in undisturbed.iterdir()}
    assert {"config.yaml", "run.json", "metrics.jsonl", "evaluations.jsonl", "report.html", "checkpoints"} <= names
    steps = sorted(path.name for path in (undisturbed / "checkpoints").iterdir())
    assert steps == [f"global_step_{n}" for n in (0, 2, 4, 6)]
    facts = json.loads((undisturbed / "run.json").read_text())
    assert (facts["status"], facts["finished_because"]) == ("completed", "all updates were made")
    assert load(str(undisturbed / "config.yaml")).config.runner.updates == 6, "the config in it is one"


@pytest.mark.parametrize("step", [3, 6])
def test_eval_of_a_checkpoint_gives_the_number_that_training_had(undisturbed: Path, tmp_path: Path, step: int) -> None:
    if step == 3:
        found = run(tmp_path, "runner.max_steps=6", "runner.save_interval=3")
        undisturbed = found.folder
    checkpoint = undisturbed / "checkpoints" / f"global_step_{step}"
    alone = evaluation.run(
        EvalConfig(
            "standins:Walker",
            policy=str(checkpoint),
            episodes=5,
            seed=1_000_000,
            num_envs=3,
            out=tmp_path / "alone",
            trust_code=True,
        )
    )
    line = lines(undisturbed)[step]
    assert len(alone.results) == line["eval/num_trajectories"]
    assert np.mean([result.success for result in alone.results]) == line["eval/success_once"]
    assert np.mean([result.total_reward for result in alone.results]) == pytest.approx(line["eval/return"], rel=1e-12)


def test_a_folder_with_a_run_in_it_is_not_written_over(undisturbed: Path, tmp_path: Path) -> None:
    words = in_folder(undisturbed.parent)
    before = (undisturbed / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="--resume"):
        train(load(written(tmp_path), words))
    result = train(load(written(tmp_path), words), resume=True)
    assert result.updates == 6, "there was nothing left to do"
    assert (undisturbed / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_as_if_nothing_had_been(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [written(tmp_path), *in_folder(tmp_path)]
    process = started(arguments)
    wait_for(process, lambda: len(lines(tmp_path / "walk")) >= 4)
    process.kill()
    ended(process)
    assert len(lines(tmp_path / "walk")) < 7, "or the test shows nothing"
    assert cli.run(["train", *arguments, "--resume"]) == 0
    assert "going on from" in capsys.readouterr().err
    assert_same_run(tmp_path / "walk", undisturbed)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_nothing(undisturbed: Path, tmp_path: Path) -> None:
    process = started([written(tmp_path), *in_folder(tmp_path)])
    killed = []
    for update in (2, 4):
        wait_for(process, lambda: len(lines(tmp_path / "walk")) >= update)  # noqa: B023
        workers = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "workers" in " ".join(child.cmdline()) and not child.children()
        ]
        newest = max(workers, key=lambda child: child.pid)
        newest.kill()
        killed.append(newest.pid)
    said = ended(process)
    assert process.returncode == 0, said
    assert len(set(killed)) == 2
    assert_same_run(tmp_path / "walk", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_ends_a_run_with_a_checkpoint(number: signal.Signals, undisturbed: Path, tmp_path: Path) -> None:
    # No checkpoint but those of signals.
    arguments = [written(tmp_path), *in_folder(tmp_path), "runner.save_interval=-1"]
    process = started(arguments)
    wait_for(process, lambda: len(lines(tmp_path / "walk")) >= 3)
    process.send_signal(number)
    said = ended(process)
    assert process.returncode == 130, said
    assert f"{number.name} asked for the end" in said
    assert json.loads((tmp_path / "walk" / "run.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "walk" / "report.html").exists()
    done = len(lines(tmp_path / "walk")) - 1
    assert 2 <= done < 6
    assert (tmp_path / "walk" / "checkpoints" / f"global_step_{done}").is_dir(), "nothing that was learnt is lost"
    run(tmp_path, "runner.save_interval=-1", resume=True)
    assert_same_run(tmp_path / "walk", undisturbed)


@pytest.mark.slow
def test_a_checkpoint_can_be_asked_for(tmp_path: Path) -> None:
    process = started([written(tmp_path), *in_folder(tmp_path), "runner.save_interval=-1"])
    wait_for(process, lambda: len(lines(tmp_path / "walk")) >= 3)
    process.send_signal(signal.SIGUSR1)
    ended(process)
    assert process.returncode == 0
    steps = {path.name for path in (tmp_path / "walk" / "checkpoints").iterdir()}
    assert len(steps) == 3, "the first, the last and the one asked for"


def test_an_early_end_has_nothing_to_keep(tmp_path: Path) -> None:
    process = started([written(tmp_path), *in_folder(tmp_path), "cloning.episodes=4", "cloning.expert=random"])
    wait_for(process, lambda: b"workers" in _command_lines(process.pid))
    process.send_signal(signal.SIGINT)
    said = ended(process)
    assert process.returncode == 130, said
    assert "Traceback" not in said


def _command_lines(pid: int) -> bytes:
    return " ".join(" ".join(child.cmdline()) for child in psutil.Process(pid).children(recursive=True)).encode()


def test_a_run_that_is_prolonged_keeps_the_evaluation_it_ended_with(tmp_path: Path) -> None:
    judged = run(tmp_path, "runner.max_steps=3").folder / "evaluations.jsonl"
    before = judged.read_text()
    run(tmp_path, "runner.max_steps=4", resume=True)
    assert judged.read_text().startswith(before)
    assert [json.loads(line)["step"] for line in judged.read_text().splitlines()] == [0, 3, 4]


def test_the_newest_checkpoints_are_kept_and_the_first_that_others_are_held_to(tmp_path: Path) -> None:
    found = run(tmp_path, "runner.keep_checkpoints=1", "runner.save_interval=1", "runner.max_steps=3")
    assert sorted(path.name for path in (found.folder / "checkpoints").iterdir()) == ["global_step_0", "global_step_3"]


# -- several ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["actor.training_backend=ddp", "actor.micro_batch_size=3"],
        pytest.param(
            ["actor.training_backend=fsdp", "actor.model.options.separate_critic=true"], marks=pytest.mark.soak
        ),
        [
            *(
                "algorithm.adv_type=grpo",
                "algorithm.loss_type=actor",
                "algorithm.group_size=2",
                "algorithm.kl_beta=0.1",
            ),
            *("algorithm.filter_rewards=true", "algorithm.rewards_lower_bound=-100", "actor.training_backend=fsdp"),
        ],
        ["algorithm.adv_type=rwfm", "actor.micro_batch_size=3"],
        pytest.param(["algorithm.adv_type=rwfm", "actor.training_backend=fsdp"], marks=pytest.mark.soak),
    ],
    ids=["ddp", "fsdp", "groups", "own loss", "own loss, fsdp"],
)
def test_ranks_learn_what_one_would(words: list[str], tmp_path: Path) -> None:
    words = [*words, "runner.max_steps=3"]
    run(tmp_path, *words, name="alone")
    process = started([written(tmp_path), *in_folder(tmp_path, "ranks"), *words], ranks=2)
    said = ended(process)
    assert process.returncode == 0, said
    alone, ranks = curve(tmp_path / "alone"), curve(tmp_path / "ranks")
    assert [set(line) for line in ranks] == [set(line) for line in alone]
    for ours, theirs in zip(ranks, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-4)
    assert ranks[1]["env/return"] == pytest.approx(alone[1]["env/return"], rel=1e-12), "the same episodes"
    one, two = weights(tmp_path / "alone", 3), weights(tmp_path / "ranks", 3)
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=2e-2, atol=2e-4, err_msg=name)


@pytest.mark.slow
def test_ranks_differ_from_one_by_rounding_and_from_themselves_not_at_all(tmp_path: Path) -> None:
    """Gradients are added in another order on two ranks than on one: 7e-8 here, the same as with micro-batches."""
    words = ["runner.val_check_interval=0"]
    run(tmp_path, *words, name="alone")
    for name in ("ranks", "again"):
        process = started([written(tmp_path), *in_folder(tmp_path, name), *words], ranks=2)
        said = ended(process)
        assert process.returncode == 0, said
    alone, ranks, again = (weights(tmp_path / name) for name in ("alone", "ranks", "again"))
    assert max(np.abs(ranks[name] - alone[name]).max() for name in alone) < 1e-6
    assert all(again[name].tobytes() == ranks[name].tobytes() for name in alone)
    assert curve(tmp_path / "again") == curve(tmp_path / "ranks")
    first, theirs = curve(tmp_path / "alone")[0], curve(tmp_path / "ranks")[0]
    assert first["env/return"] == theirs["env/return"], "the same weights play the same episodes"
    assert theirs == pytest.approx(first, rel=1e-4, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fsdp", pytest.param("ddp", marks=pytest.mark.soak)])
def test_a_rank_that_is_killed_takes_nothing_along(backend: str, tmp_path: Path) -> None:
    """In shards, which are more to put together again than copies."""
    words = [f"actor.training_backend={backend}", "--resume"]
    process = started([written(tmp_path), *in_folder(tmp_path, "whole"), *words], ranks=2)
    said = ended(process)
    assert process.returncode == 0, said
    process = started([written(tmp_path), *in_folder(tmp_path, "torn"), *words], ranks=2, restarts=1)
    wait_for(process, lambda: len(lines(tmp_path / "torn")) >= 4)
    rank = next(
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if child.environ().get("RANK") == "1" and child.parent() == psutil.Process(process.pid)
    )
    rank.kill()
    said = ended(process)
    assert process.returncode == 0, said
    assert "going on from" in said
    assert_same_run(tmp_path / "torn", tmp_path / "whole")


def test_there_must_be_enough_to_do_for_every_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun"):
        run(tmp_path)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="no number"):
        run(tmp_path)


# -- other ways to begin and to end -----------------------------------------------------------------------------------


def test_training_begins_with_given_weights_and_can_only_be_judged(undisturbed: Path, tmp_path: Path) -> None:
    checkpoint = undisturbed / "checkpoints" / "global_step_6"
    found = run(tmp_path, f"runner.ckpt_path={checkpoint}", "runner.only_eval=true", "runner.val_check_interval=0")
    assert found.updates == 0
    assert lines(found.folder)[0]["eval/return"] == lines(undisturbed)[6]["eval/return"]
    assert not (found.folder / "checkpoints").exists()
    best = shutil.copytree(undisturbed / "checkpoints" / "global_step_4", tmp_path / "best")
    again = run(tmp_path, f"runner.resume_dir={best}", name="branch")
    assert curve(again.folder) == curve(undisturbed)[5:]
    with pytest.raises(ConfigError, match="no checkpoint"):
        run(tmp_path, f"runner.resume_dir={tmp_path}", name="nowhere")


def test_a_policy_that_imitates_first_is_judged_before_it_explores(tmp_path: Path) -> None:
    words = ["cloning.episodes=6", "cloning.expert=standins:keen", "cloning.steps=150", "cloning.log_std=-2.0"]
    found = run(tmp_path, *words, "runner.max_steps=0", "env.eval.episodes=10")
    assert found.updates == 0
    start = lines(found.folder)[0]["eval/success_once"]
    blank = run(tmp_path, "runner.only_eval=true", "env.eval.episodes=10", name="blank")
    assert start == 1.0
    assert lines(blank.folder)[0]["eval/success_once"] < 0.5
    spread = weights(found.folder, 0)["head.log_std"]
    assert (spread == -2.0).all()


def test_a_reference_is_the_policy_that_training_began_with(tmp_path: Path) -> None:
    words = ["algorithm.adv_type=rloo", "algorithm.loss_type=actor", "algorithm.group_size=2", "runner.max_steps=4"]
    words.append("runner.val_check_interval=0")
    away = {}
    for beta in (1e-6, 10.0):
        found = run(tmp_path, *words, f"algorithm.kl_beta={beta}", name=f"beta {beta}")
        away[beta] = lines(found.folder)[-1]["actor/kl_loss"]
    assert 0.0 <= away[10.0] < 0.5 * away[1e-6], "it is held back"
    again = run(tmp_path, *words, "algorithm.kl_beta=10.0", "runner.max_steps=4", name="again")
    (again.folder / "checkpoints" / "global_step_4").rename(tmp_path / "gone")
    again = run(tmp_path, *words, "algorithm.kl_beta=10.0", name="again", resume=True)
    assert curve(again.folder) == curve(found.folder), "a resume holds to the first weights, not to those it found"
    (again.folder / "checkpoints" / "global_step_0").rename(tmp_path / "lost")
    with pytest.raises(ConfigError, match="first weights"):
        run(tmp_path, *words, "algorithm.kl_beta=10.0", name="again", resume=True)


def test_films_of_training_and_of_evaluation(tmp_path: Path) -> None:
    words = [
        *("env.train.options.cameras=[front]", "env.train.video_cfg.save_video=true", "env.train.video_cfg.videos=1"),
        *("env.eval.video_cfg.save_video=true", "env.eval.video_cfg.info_on_video=true", "runner.max_steps=2"),
    ]
    found = run(tmp_path, *words, "runner.logger.logger_backends=[standins:VideoTracker]")
    assert {(0, "eval"), (1, "train"), (2, "eval"), (2, "train")} == standins.VIDEOS, "trackers are given them"
    films = sorted(path.relative_to(found.folder).as_posix() for path in found.folder.glob("video/**/*.mp4"))
    assert {film.rsplit("/", 1)[0] for film in films} == {
        *("video/train/global_step_1", "video/train/global_step_2"),
        *("video/eval/global_step_0", "video/eval/global_step_2"),
    }
    assert "data:video/mp4" in (found.folder / "report.html").read_text()
    plain = run(tmp_path, "runner.max_steps=2", name="plain")
    assert torch.equal(*(torch.from_numpy(weights(f.folder, 2)["head.mean.weight"]) for f in (found, plain)))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["actor.model.model_type=random"], "cannot be trained"),
        (["actor.model.action_dim=7"], "has 2 numbers"),
        (["actor.model.options.hiden=3"], "hidden"),
        (["actor.model.add_value_head=false"], "estimates values"),
        (["actor.optim.critic_warmup_steps=3", "algorithm.adv_type=grpo", "algorithm.loss_type=actor",
          "algorithm.group_size=2"], "would do nothing"),
        (["algorithm.episodes_per_step=6", "algorithm.adv_type=grpo", "algorithm.loss_type=actor",
          "algorithm.group_size=4"], "no multiple"),
        (["env.train.video_cfg.save_video=true"], "nothing to film"),
        (["runner.logger.logger_backends=[tensorbord]"], "tensorboard"),
        (["cloning.episodes=2", "cloning.expert=random", "actor.model.options.head=tokens", "cloning.log_std=-1",
          "cloning.steps=1", "env.train.options.goal=0.1"], "only the gaussian head"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(words: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, *words)
    assert says in str(caught.value)


def test_a_full_disk_ends_training_in_words(small_disk: Path, tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="cannot be written") as caught:
        train(load(written(tmp_path), [*in_folder(small_disk), "actor.model.options.hidden=128"]))
    assert "--resume" in str(caught.value)


@pytest.mark.parametrize("reason", StopReason)
def test_the_exit_code_follows_the_reason_and_not_its_words(
    reason: StopReason, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = TrainResult(tmp_path, 3, {}, [], "somebody asked for the end", None, reason)
    monkeypatch.setattr("manyarms.placement.training.train", lambda *_, **__: result)
    assert cli.run(["train", written(tmp_path)]) == (130 if reason is StopReason.INTERRUPTED else 0)


def test_why_a_run_ended_is_on_record(tmp_path: Path) -> None:
    short = ("runner.val_check_interval=0", "runner.save_interval=-1", "runner.logger.live=false")
    assert run(tmp_path, *short, "runner.max_seconds=0.001", name="late").stop_reason is StopReason.TIME_LIMIT
    assert run(tmp_path, "runner.only_eval=true", name="judged").stop_reason is StopReason.EVALUATED
    with pytest.raises(LearningError):
        run(tmp_path, *short, "actor.optim.lr=1e30", "actor.optim.clip_grad=1e30", name="lost")
    facts = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("late", "judged", "lost")]
    assert [one["status"] for one in facts] == ["time_limit", "evaluated", "failed"]


def test_the_command_says_what_came_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["train", written(tmp_path), *in_folder(tmp_path), "runner.max_steps=2"])
    said = capsys.readouterr()
    assert code == 0
    assert "success after 2 updates" in said.out.splitlines()[0]
    assert "report.html" in said.out
    assert "update 2/2: success" in said.err
    assert "left" in said.err


def test_the_mean_level_of_bf16_is_learnable(tmp_path: Path) -> None:
    found = run(tmp_path, "actor.model.precision=bf16", "runner.max_steps=3")
    full = run(tmp_path, "runner.max_steps=3", name="full")
    assert all(np.isfinite(value) for line in lines(found.folder) for value in line.values())
    for ours, theirs in zip(lines(found.folder)[1:2], lines(full.folder)[1:2], strict=True):
        assert ours["env/return"] == pytest.approx(theirs["env/return"], rel=0.05)
    assert weights(found.folder, 3)["head.mean.weight"].dtype == np.float32


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "walk"
    folder.mkdir()
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process trains in"):
            train(load(written(tmp_path), in_folder(tmp_path)))
    assert (folder / ".lock").exists()
    found = train(load(written(tmp_path), [*in_folder(tmp_path), "runner.max_steps=1"]))
    assert found.updates == 1
    assert not (folder / ".lock").exists()


def test_a_start_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ManyarmsError, match="could not be built"):
        train(load(written(tmp_path), [*in_folder(tmp_path), "env.train.simulator=tabletop/nowhere"]))
    assert not (tmp_path / "walk").exists()


def test_a_run_that_is_interrupted_before_it_begins_leaves_nothing_to_watch(tmp_path: Path) -> None:
    folder = RunFolder(load(written(tmp_path), in_folder(tmp_path)))
    with folder.claimed():
        (folder.path / "live").mkdir()
        (folder.path / "live" / "rank-0.json").write_text("{}")
    assert not folder.path.exists()


def test_a_run_is_no_longer_finished_once_it_is_claimed_again(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "walk")
    settings = load(written(tmp_path), in_folder(tmp_path))
    folder, watched = RunFolder(settings), WatchedRun(tmp_path / "walk")
    before = (folder.path / "run.json").read_text()
    assert watched.state()["phase"] == "finished"
    with folder.claimed():
        assert watched.state()["phase"] == "starting"
    assert (folder.path / "run.json").read_text() == before, "a resume that never began has changed nothing"
    with folder.claimed():
        folder.begin(settings, ["one"], 6)
        assert watched.state()["phase"] == "running"
        folder.end(StopReason.COMPLETED, "it was enough")
    assert watched.state()["because"] == "it was enough"


def test_every_session_counts_its_own_time(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "walk")
    run(tmp_path, "runner.max_steps=8", resume=True)
    logged = lines(tmp_path / "walk")
    assert "session_seconds" not in logged[0], "what comes before the first update does not count"
    clocks = [line["session_seconds"] for line in logged[1:]]
    assert clocks[:6] == sorted(clocks[:6])
    assert all(0 <= line["session_seconds"] <= line["seconds"] for line in logged[1:])
    assert logged[7]["session_seconds"] < logged[7]["seconds"] - logged[6]["seconds"] + 0.01


def test_reward_hooks_of_a_config_add_to_what_is_learnt_from_and_not_to_evaluations(tmp_path: Path) -> None:
    words = ["runner.max_steps=1", "runner.val_check_interval=-1", "runner.save_interval=-1"]
    for name, more in (("plain", []), ("shaped", ["env.train.rewards=[standins:right_of_the_middle]"])):
        assert train(load(written(tmp_path), [*words, *more, *in_folder(tmp_path, name)])).updates == 1
    plain, shaped = (lines(tmp_path / name) for name in ("plain", "shaped"))
    assert shaped[1]["env/return"] > plain[1]["env/return"] + 50.0
    assert shaped[0]["eval/return"] == plain[0]["eval/return"], "others are judged by the simulator's own reward"


@pytest.mark.parametrize("varied", [False, True])
def test_a_config_may_vary_the_words_that_tasks_are_told_in(varied: bool, tmp_path: Path) -> None:
    told = str(varied).lower()
    text = CONFIG.replace("standins:Walker", "tabletop/push_button").replace("goal: 1.2", "arm_mode: delta_ee")
    words = ["actor.model.options.fields=[gripper_pose]", "env.train.max_episode_steps=4", "runner.max_steps=1"]
    words += [f"env.train.vary_descriptions={told}", f"env.eval.vary_descriptions={told}", *in_folder(tmp_path)]
    standins.TEXTS.clear()
    found = train(load(written(tmp_path, text), [*words, "env.train.rewards=[standins:note_texts]"]))
    evaluated = [result.text for _, results in found.evaluations for result in results]
    for texts in (standins.TEXTS, evaluated):
        assert texts
        assert all(text.startswith("push the ") for text in texts) is not varied, "the first that the task has"


def process_state() -> dict[str, Any]:
    """Return what a library may change for everybody in its process."""
    return {
        "threads": torch.get_num_threads(),
        "torch's generator": torch.get_rng_state().tolist(),
        "numpy's generator": str(np.random.get_state()),
        "random's generator": random.getstate(),
        "gradients": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "precision": torch.get_float32_matmul_precision(),
        "variables": dict(os.environ),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "folder": os.getcwd(),
        "path": list(sys.path),
        "warnings": list(warnings.filters),
    }


@pytest.mark.parametrize("fails", [False, True], ids=["to the end", "to an error"])
def test_training_leaves_the_process_of_its_caller_as_it_was(fails: bool, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    words = [*in_folder(tmp_path), "runner.max_steps=1", "algorithm.kl_beta=0.1"]
    words += ["actor.model.options.hiden=3"] if fails else []
    torch.set_num_threads(3)
    try:
        before = process_state()
        if fails:
            with pytest.raises(ConfigError, match="hidden"):
                manyarms.train(written(tmp_path), overrides=words)
        else:
            manyarms.train(written(tmp_path), overrides=words)
        assert process_state() == before
    finally:
        torch.set_num_threads(threads)
