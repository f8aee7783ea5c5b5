"""eval, record and replay, as commands and as functions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace as changed
from pathlib import Path

import av
import numpy as np
import pytest

from manyarms import cli
from manyarms.cli import eval as evaluation
from manyarms.cli import record, replay
from manyarms.cli.eval import EvalConfig
from manyarms.cli.record import RecordConfig
from manyarms.cli.replay import ReplayConfig
from manyarms.errors import ConfigError, DiskError, UnknownName
from manyarms.reporting.recording import Recording
from manyarms.reporting.results import EpisodeResult, ResultFolder, wilson


def walking(tmp_path: Path, name: str, **changes: object) -> EvalConfig:
    settings = {"policy": "random", "policy_options": ("chunk=3",), "episodes": 6, "max_episode_steps": 30}
    options = ("goal=0.8", "cameras=[]")
    return EvalConfig("standins:Walker", out=tmp_path / name, **{**settings, "options": options, **changes})  # type: ignore[arg-type]


def results(folder: Path) -> str:
    return (folder / "results.json").read_text()


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (45, 50, 0.7864, 0.9565), (1, 2, 0.0945, 0.9055)],
)
def test_wilson_intervals_are_those_of_the_books(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_results_do_not_depend_on_environments_stages_or_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = evaluation.run(walking(tmp_path, "one", num_envs=1))
    assert one.complete
    assert len(one.results) == 12, "two tasks of six episodes"
    assert {result.task for result in one.results} == {"near", "far"}
    assert 0 < sum(result.success for result in one.results) < 12, "or the test shows nothing"
    evaluation.run(walking(tmp_path, "many", num_envs=5, pipeline_stage_num=3))
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in ("2", "0", "1"):
        monkeypatch.setenv("RANK", rank)
        found = evaluation.run(walking(tmp_path, "ranks", num_envs=2))
        assert found.complete == (rank == "1"), "the last rank puts it together"
    assert results(tmp_path / "one") == results(tmp_path / "many") == results(tmp_path / "ranks")


@pytest.mark.slow
def test_an_evaluation_killed_and_resumed_equals_one_that_was_not(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "manyarms", "eval", "tabletop", "--tasks", "reach_target,push_button"]
    command += ["--policy", "expert", "--episodes", "50", "--num-envs", "2", "--options", "arm_mode=delta_ee"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*command, "--out", str(whole)], check=True, timeout=600)
    process = subprocess.Popen([*command, "--out", str(broken)])
    log = broken / "episodes-0.jsonl"
    while not log.exists() or len(log.read_text().splitlines()) < 20:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with log.open("a") as file:
        file.write('{"position": 99, "task"')  # a line cut short by the kill
    done = len(log.read_text().splitlines()) - 1
    assert done < 100
    again = subprocess.run([*command, "--out", str(broken)], capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    subprocess.run([*command, "--out", str(broken), "--resume"], check=True, timeout=600)
    assert results(whole) == results(broken)
    assert json.loads(results(whole))["all"]["episodes"] == 100


def test_resuming_with_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    evaluation.run(walking(tmp_path, "a", episodes=1))
    with pytest.raises(ConfigError, match="differ: seed"):
        evaluation.run(walking(tmp_path, "a", episodes=1, seed=5, resume=True))
    assert evaluation.run(walking(tmp_path, "a", episodes=1, num_envs=2, resume=True)).complete, "speed may differ"


def test_options_that_an_earlier_version_wrote_as_words_are_the_same_options(tmp_path: Path) -> None:
    found = evaluation.run(walking(tmp_path, "x"))
    before, log = results(found.folder), found.folder / "episodes-0.jsonl"
    config = json.loads((found.folder / "config.json").read_text())
    config |= {"options": ["goal=0.8", "cameras=[]"], "policy_options": ["chunk=3"]}
    (found.folder / "config.json").write_text(json.dumps(config))
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:5]))
    assert evaluation.run(walking(tmp_path, "x", resume=True)).complete
    assert results(found.folder) == before
    (found.folder / "config.json").write_text(json.dumps(config | {"options": ["goal=0.9", "cameras=[]"]}))
    with pytest.raises(ConfigError, match="these differ: options"):
        evaluation.run(walking(tmp_path, "x", resume=True))


def test_a_misspelt_policy_leaves_no_folder_and_binds_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean random"):
        evaluation.run(walking(tmp_path, "x", policy="randm"))
    assert not (tmp_path / "x").exists()
    (tmp_path / "x").mkdir()
    with pytest.raises(ConfigError, match="needs a recording"):
        evaluation.run(walking(tmp_path, "x", policy="replay", policy_options=()))
    assert (tmp_path / "x").is_dir(), "it was there before"
    assert evaluation.run(walking(tmp_path, "x")).complete


def test_an_interrupted_evaluation_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add, came = ResultFolder.add, []

    def interrupted(self: ResultFolder, result: EpisodeResult) -> None:
        if len(came) == 2:
            raise KeyboardInterrupt
        came.append(result)
        add(self, result)

    with monkeypatch.context() as patch:
        patch.setattr(ResultFolder, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluation.run(walking(tmp_path, "x"))
    folder = tmp_path / "x"
    assert f"2 of 12 episodes are in {folder}; --out {folder} --resume goes on" in capsys.readouterr().err
    log = folder / "episodes-0.jsonl"
    before = log.read_text()
    assert evaluation.run(walking(tmp_path, "x", resume=True)).complete
    assert log.read_text().startswith(before)
    assert len(log.read_text().splitlines()) == 12, "what was finished is not played again"


def test_the_headline_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["eval", "tabletop/reach_target", "--policy", "expert", "--episodes", "3", "--out", str(tmp_path / "x")]
    assert cli.run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("100.0 % success (3 of 3 episodes, 95 % interval 43.9 to 100.0 %)")
    assert any("reach_target" in line for line in lines[1:])
    content = json.loads(results(tmp_path / "x"))
    assert content["success"] == 1.0
    assert [episode["seed"] for episode in content["episodes"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["eval", "tabletop", "--tasks", "open_drawr"], "open_drawer"),
        (["eval", "tabletop/open_drawer", "--tasks", "open_drawer"], "both"),
        (["eval", "tabletop", "--policy", "exprt"], "expert"),
        (["eval", "gym/CartPole-v1", "--policy", "expert"], "policy 'expert' cannot play gym/CartPole-v1"),
        (["eval", "tabletop", "--episodes", "0"], "at least one"),
        (["eval", "tabletop", "--resume"], "--out"),
        (["eval", "tabletop", "--policy-options", "chunk"], "key=value"),
        (["replay", "nowhere"], "not a recording"),
        (["eval", "tabletop", "--videos", "1", "--options", "cameras=[]"], "nothing to film"),
    ],
)
def test_wrong_arguments_get_an_answer_and_no_traceback(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exited:
        cli.main(arguments)
    assert exited.value.code == 2
    assert says in capsys.readouterr().err


def test_videos_keep_failures_first(tmp_path: Path) -> None:
    config = walking(tmp_path, "film", videos=2, options=("goal=0.8", "cameras=[front]"), video_camera="front_rgb")
    found = evaluation.run(config)
    won = {(result.task, result.seed): result.success for result in found.results}
    assert len(found.videos) == len(list((tmp_path / "film" / "videos").iterdir())) == 4
    for task in ("near", "far"):
        failures = sum(not success for (name, _), success in won.items() if name == task)
        names = [path.name for path in found.videos if path.name.startswith(task)]
        assert sum("failure" in name for name in names) == min(2, failures)
    first = found.videos[0]
    seed = int(first.stem.split("seed")[1].split("-")[0])
    length = next(r.length for r in found.results if (r.task, r.seed) == (first.name.split("-")[0], seed))
    with av.open(str(first)) as file:
        assert sum(1 for _ in file.decode(video=0)) == length + 1, "the first frame and one after every step"


def test_videos_that_cannot_be_written_are_told_though_others_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for ending in ("success", "failure"):
        (tmp_path / "film" / "videos" / f"near-seed1-{ending}.mp4" / "in the way").mkdir(parents=True)
    found = evaluation.run(walking(tmp_path, "film", videos=6, options=("goal=0.8", "cameras=[front]")))
    assert len(found.videos) == 11
    said = capsys.readouterr().err
    assert "1 video was not written" in said
    assert "near-seed1" in said


def recorded(tmp_path: Path, **changes: object) -> Recording:
    settings = {"episodes": 2, "num_envs": 2, "max_episode_steps": 15, "policy_options": ("chunk=4",)}
    return record.run(RecordConfig("standins:Walker", out=tmp_path / "tape", **{**settings, **changes}))  # type: ignore[arg-type]


def test_a_recording_plays_back_bit_for_bit(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    assert len(recording) == 4
    for episode in recording:
        assert len(episode.observations["position"]) == len(episode) + 1
        assert episode.actions[""].shape == (len(episode), 2)
        assert episode.observations["clock"].tolist() == list(range(len(episode) + 1))
        assert (episode.observations["front_rgb"][:, 0, 0, 0] == np.arange(len(episode) + 1)).all()
    assert replay.run(ReplayConfig(tmp_path / "tape", num_envs=3, trust_code=True)).same
    assert replay.run(ReplayConfig(tmp_path / "tape", episodes=(2,), trust_code=True)).same


def test_a_recording_can_be_played_as_a_policy_in_chunks(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    options = {"recording": str(tmp_path / "tape"), "chunk": 3}
    config = EvalConfig(
        "standins:Walker",
        policy="replay",
        policy_options=options,
        episodes=2,
        max_episode_steps=15,
        out=tmp_path / "again",
    )
    found = evaluation.run(config)
    assert [result.length for result in found.results] == [len(episode) for episode in recording]
    assert [result.total_reward for result in found.results] == [episode.rewards.sum() for episode in recording]


def test_a_recording_that_does_not_match_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recorded(tmp_path)
    path = tmp_path / "tape" / "episodes" / "000001.npz"
    with np.load(path) as file:
        arrays = dict(file.items())
    arrays["observation:position"][3, 0] += 1e-9
    np.savez_compressed(path, **arrays)
    assert cli.run(["replay", str(tmp_path / "tape"), "--trust-code"]) == 1
    out = capsys.readouterr().out
    assert "✗ episode 1: position after 3 steps is 1e-09 away" in out
    assert f"{len(recording) - 1} of {len(recording)} episodes came out the same" in out


def test_an_episode_that_is_lost_before_it_begins_is_recorded_and_replayed_all_the_same(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    tapes: list[Recording] = []
    for name, stumbles in (("plain", False), ("lost", True)):
        if stumbles:
            marker.touch()
        config = RecordConfig("standins:Stumbling", out=tmp_path / name, episodes=3, num_envs=1, max_episode_steps=9)
        tapes.append(record.run(changed(config, options=(f"marker={marker}",))))
    plain, lost = ([episode.observations["position"].tolist() for episode in tape] for tape in tapes)
    assert plain == lost
    marker.touch()
    assert replay.run(ReplayConfig(tmp_path / "lost", num_envs=1, trust_code=True)).same
    assert not marker.exists(), "it stumbled"


def test_recording_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    first = {episode.position: episode for episode in recorded(tmp_path)}
    (tmp_path / "tape" / "episodes" / "000002.npz").unlink()
    with pytest.raises(ConfigError, match="--resume"):
        recorded(tmp_path)
    again = {episode.position: episode for episode in recorded(tmp_path, resume=True)}
    assert again[2].observations["position"].tobytes() == first[2].observations["position"].tobytes()


def test_a_recording_is_begun_by_resume_but_not_mixed_with_another(tmp_path: Path) -> None:
    first = recorded(tmp_path, resume=True)
    with pytest.raises(ConfigError, match="begun with other settings\n  why: these differ: tasks or seeds"):
        recorded(tmp_path, resume=True, seed=7)
    with pytest.raises(ConfigError, match="begun with other settings\n  why: these differ: options"):
        recorded(tmp_path, resume=True, options=("goal=0.5",))
    assert len(recorded(tmp_path, resume=True)) == len(first)


def test_a_recording_that_cannot_be_placed_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "tape").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be made"):
        recorded(tmp_path)


def test_a_full_disk_ends_a_recording_in_words_and_leaves_nothing_half_written(small_disk: Path) -> None:
    with pytest.raises(DiskError, match="cannot be written"):
        record.run(RecordConfig("standins:Walker", out=small_disk / "tape", episodes=40, max_episode_steps=200))
    assert not [*(small_disk / "tape" / "episodes").glob(".*")]


def test_a_recording_whose_last_episode_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Nothing comes after it that would find the failed write."""
    (tmp_path / "tape" / "episodes" / "000003.npz" / "in the way").mkdir(parents=True)
    with pytest.raises(DiskError, match="cannot be written"):
        recorded(tmp_path, num_envs=1)
    assert sorted(path.stem for path in (tmp_path / "tape" / "episodes").glob("*.npz") if path.is_file()) == [
        "000000",
        "000001",
        "000002",
    ]


def test_a_full_disk_costs_videos_first_and_ends_an_evaluation_in_words(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", "tabletop/reach_target", "--policy", "expert", "--episodes", "30", "--videos", "30"]
    code = cli.run([*arguments, "--out", str(small_disk / "x"), "--options", "arm_mode=delta_ee", "cameras=[front]"])
    said = capsys.readouterr().err
    assert code == 2
    assert "No space left" in said
    assert "--resume" in said
    assert "Traceback" not in said
