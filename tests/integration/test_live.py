"""Runs that can be watched: what rows are doing, what they see, and that looking on changes nothing."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import manyarms
from manyarms import EpisodeId, VectorEnv
from manyarms.cli import eval as evaluation
from manyarms.cli.eval import EvalConfig
from manyarms.errors import WorkerError
from manyarms.learning.settings import load
from manyarms.learning.training import train
from manyarms.policies import ActionChunk, Observations, make_policy
from manyarms.reporting.live import LiveView
from manyarms.rollout import Runner
from manyarms.vector import RowState
from painters import COLOURS
from placement import PLACED
from rollouts import Swaying, fingerprint
from training import assert_same_run, ended, in_folder, started, written

EPISODES = [EpisodeId(("near", "far")[i % 2], 100 + i) for i in range(8)]


def until(condition: Callable[[], Any], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def document(folder: Path, name: str = "rank-0") -> dict[str, Any]:
    try:
        return json.loads((folder / "live" / f"{name}.json").read_text())
    except FileNotFoundError:
        return {"rows": [], "sheet": None, "closed": False}


def states(envs: VectorEnv) -> list[str]:
    return [state.state for state in envs.row_states()]


def actions(rows: int, length: int = 3) -> np.ndarray:
    return np.zeros((rows, length, 2), np.float32)


# -- what rows are doing ----------------------------------------------------------------------------------------------


def test_rows_tell_what_they_are_doing(tmp_path: Path) -> None:
    options = {"gates": str(tmp_path), "max_episode_steps": 5}
    with manyarms.make_vec("painters:Gated", 2, **options) as envs:
        assert states(envs) == ["idle", "idle"]
        envs.begin([1], EpisodeId("far", 7))
        assert states(envs) == ["idle", "resetting"]
        (tmp_path / "reset").touch()
        until(lambda: states(envs) == ["idle", "idle"])  # nobody has received it yet
        envs.recv()
        envs.send([1], actions(1))
        assert states(envs) == ["idle", "stepping"]
        (tmp_path / "step").touch()
        envs.recv()
        pids = envs.worker_pids
        assert envs.row_states() == [
            RowState(0, 0, pids[0], None, "idle", None, 0, 0, 0, None),
            RowState(1, 1, pids[1], "far", "idle", 7, 3, 0, 0, None),
        ]
        envs.send([1], actions(1))
        until(lambda: states(envs)[1] == "ended")
        envs.recv()
        last = envs.row_states()[1]
        assert (last.state, last.episode_steps, last.episodes) == ("ended", 5, 1)
        envs.begin([1], EpisodeId("near", 8))
        envs.recv()
        last = envs.row_states()[1]
        assert (last.task, last.state, last.seed, last.episode_steps, last.episodes) == ("near", "idle", 8, 0, 1)


def test_a_killed_worker_is_seen_to_restart_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "reset").touch()
    with manyarms.make_vec("painters:Gated", 2, gates=str(tmp_path)) as envs:
        envs.begin([0, 1], [EpisodeId("near", 5), EpisodeId("near", 6)])
        envs.recv(min_rows=2)
        envs.send([1], actions(1))
        killed = envs.worker_pids[1]
        os.kill(killed, signal.SIGKILL)
        assert envs.recv().aborted.tolist() == [True]
        well, lost = envs.row_states()
        assert (well.state, well.restarts, well.failure) == ("idle", 0, None)
        assert (lost.state, lost.restarts, lost.pid) == ("restarting", 1, None)
        assert lost.failure is not None
        assert "seed 6) was killed by SIGKILL" in lost.failure
        assert "\n" not in lost.failure
        envs.begin([1], EpisodeId("near", 6))
        envs.recv()
        back = envs.row_states()[1]
        assert (back.state, back.restarts, back.episodes) == ("idle", 1, 0)
        assert back.pid not in (None, killed)


def test_a_worker_that_is_given_up_is_said_to_be() -> None:
    with manyarms.make_vec("standins:Misbehaving", 2, max_restarts=0) as envs:
        envs.begin([0, 1], EpisodeId())
        envs.recv(min_rows=2)
        envs.send([1], np.full((1, 1, 1), 3, np.float32))  # exit
        with pytest.raises(WorkerError):
            envs.recv()
        assert states(envs) == ["idle", "given up"]


def test_rows_that_step_together_tell_their_own_steps() -> None:
    with manyarms.make_vec("standins:Herd", 3, rows_per_worker=3, longest=4) as envs:
        envs.begin(range(3), [EpisodeId(seed=i) for i in range(3)])
        envs.recv(min_rows=3)
        envs.send(range(3), np.zeros((3, 9, 1), np.float32))
        chunk = envs.recv(min_rows=3)
        found = envs.row_states()
        assert [state.episode_steps for state in found] == chunk.num_steps.tolist()
        assert len(set(chunk.num_steps.tolist())) > 1, "or the test shows nothing"
        assert [state.state for state in found] == ["ended"] * 3


def test_steps_are_known_for_users_of_gymnasium_too() -> None:
    with manyarms.make_vec("standins:SlowCameras", 2, rows_per_worker=2, goal=1e9) as envs:
        envs.reset(seed=3)
        for _ in range(4):
            envs.step(np.zeros((2, 2), np.float32))
        found = envs.row_states()
        assert [(state.episode_steps, state.seed, state.state) for state in found] == [(4, 3, "idle"), (4, 4, "idle")]


# -- what can be watched ----------------------------------------------------------------------------------------------


def tile_means(folder: Path, sheet: dict[str, Any], count: int) -> list[np.ndarray]:
    """Return the mean colour of each of the first places of a sheet."""
    with av.open(str(folder / "live" / sheet["file"])) as container:
        picture = next(container.decode(video=0)).to_ndarray(format="rgb24")
    height, width, columns = sheet["height"], sheet["width"], sheet["columns"]
    corners = [(place // columns * height, place % columns * width) for place in range(count)]
    return [picture[top + 8 : top + height - 8, left + 8 : left + width - 8].mean((0, 1)) for top, left in corners]


def test_the_sheet_shows_every_row_at_the_place_that_is_told(tmp_path: Path) -> None:
    with manyarms.make_vec("painters:Painter", 5, rows_per_worker=5) as envs:
        envs.reset(seed=0)
        with LiveView(envs, tmp_path, "rank-0"):
            until(lambda: document(tmp_path)["sheet"])
            found = document(tmp_path)
    assert [row["frame"] for row in found["rows"]] == [0, 1, 2, 3, 4]
    assert (found["version"], found["name"], found["pid"]) == (1, "rank-0", os.getpid())
    assert found["simulator"] == "painters:Painter"
    assert not found["closed"]
    sheet = found["sheet"]
    assert sheet["file"] == "rank-0.jpg"
    assert sheet["width"] == sheet["height"] == 64, "half of what the camera gives"
    for seen, colour in zip(tile_means(tmp_path, sheet, 5), COLOURS, strict=True):
        assert seen == pytest.approx(colour, abs=6)
    assert sorted(path.name for path in (tmp_path / "live").iterdir()) == ["rank-0.jpg", "rank-0.json"]


class Seeing(Swaying):
    """Notes which fields it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def act(self, observations: Observations) -> ActionChunk:
        self.seen.update(observations.fields)
        return super().act(observations)


def played(folder: Path | None, *, watched: bool = False) -> tuple[list[Any], list[int], set[str]]:
    """Play with a policy that looks through no camera; return the episodes, renders a row, and what it was shown."""
    policy = Seeing()
    with manyarms.make_vec("painters:Painter", 3, max_episode_steps=25, goal=1.0) as envs:
        runner = Runner(envs, policy)
        if folder is None:
            return fingerprint(list(runner.play(EPISODES))), list(envs.get_attr("renders")), policy.seen
        if watched:
            (folder / "live").mkdir()
            (folder / "live" / "watched").touch()
        with LiveView(envs, folder, "rank-0"):
            until(lambda: document(folder)["rows"])  # whoever watches has asked for frames by now
            found = fingerprint(list(runner.play(EPISODES)))
        return found, list(envs.get_attr("renders")), policy.seen


def test_rows_are_rendered_only_for_those_who_watch_and_nothing_else_changes(tmp_path: Path) -> None:
    (tmp_path / "unwatched").mkdir()
    (tmp_path / "watched").mkdir()
    alone, unwatched = played(None), played(tmp_path / "unwatched")
    watched = played(tmp_path / "watched", watched=True)
    assert alone == unwatched
    assert alone[1] == [0, 0, 0], "it was not rendered"
    assert min(watched[1]) >= 1, "it was rendered"
    assert watched[0] == alone[0]
    assert watched[2] == alone[2]
    assert "front_rgb" not in alone[2]
    assert document(tmp_path / "unwatched")["sheet"] is None
    last = document(tmp_path / "watched")
    assert [row["frame"] for row in last["rows"]] == [0, 1, 2]
    seen = tile_means(tmp_path / "watched", last["sheet"], 3)
    nearest = [min(np.abs(tile - colour).max() for colour in COLOURS) for tile in seen]
    assert max(nearest) < 6, "tiles have colours that rows had"


def test_a_row_is_rendered_once_for_a_glance() -> None:
    with manyarms.make_vec("painters:Painter", 2, goal=1e9) as envs:
        envs.begin([0, 1], EpisodeId("near", 1), cameras=())
        envs.recv(min_rows=2)
        envs.glance(["front"])
        for _ in range(3):
            envs.send([0], actions(1), cameras=())
            envs.recv()
        assert envs.get_attr("renders") == (1, 0), "row 1 was sent nothing"
        envs.glance(())
        envs.send([1], actions(1), cameras=())
        envs.recv()
        assert envs.get_attr("renders") == (1, 0), "nobody looks any more"


class Prying(threading.Thread):
    """Asks for states and frames all the time."""

    def __init__(self, envs: VectorEnv) -> None:
        super().__init__(daemon=True)
        self.envs, self.stop, self.seen = envs, threading.Event(), set[str]()

    def run(self) -> None:
        while not self.stop.wait(0.001):
            self.envs.glance(["front"])
            self.seen.update(states(self.envs))


@pytest.mark.parametrize("simulator", ["painters:Painter", "tabletop/reach_target"])
def test_prying_all_the_time_while_a_worker_dies_changes_nothing(simulator: str) -> None:
    task = None if "/" in simulator else "near"
    episodes = [EpisodeId(task, i) for i in range(6)]
    # A worker that is up again in no time might never be seen to be restarting.
    options: dict[str, Any] = {} if "/" in simulator else {"built_in": 0.5}
    with manyarms.make_vec(simulator, 2, max_episode_steps=40, action_bounds="clip", **options) as envs:
        runner = Runner(envs, make_policy("random", envs.simulator_spec, {"chunk": 4}))
        assert runner.cameras == ()
        alone = fingerprint(list(runner.play(episodes)))
        prying = Prying(envs)
        prying.start()
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        found = list(runner.play(episodes))
        prying.stop.set()
        prying.join()
        assert fingerprint(found) == alone
        assert "restarting" in prying.seen
        assert envs.observations["front_rgb"].any(axis=(1, 2, 3)).all(), "it was rendered, or the test shows nothing"


def test_who_stopped_watching_long_ago_is_not_rendered_for(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "watched").touch()
    os.utime(tmp_path / "live" / "watched", (time.time() - 60, time.time() - 60))
    with manyarms.make_vec("painters:Painter", 2) as envs, LiveView(envs, tmp_path, "rank-0"):
        until(lambda: document(tmp_path)["rows"])
        list(Runner(envs, Swaying()).play(EPISODES))
        assert envs.get_attr("renders") == (0, 0)


def test_the_last_state_is_written_even_when_the_run_fails(tmp_path: Path) -> None:
    with manyarms.make_vec("standins:Walker", 2, cameras=()) as envs:
        envs.reset(seed=4)
        envs.step_chunk(actions(2, 5))
        with pytest.raises(ZeroDivisionError), LiveView(envs, tmp_path, "rank-0"):
            raise ZeroDivisionError
        last = document(tmp_path)
        assert last["closed"]
        assert [row["episode_steps"] for row in last["rows"]] == [5, 5]
        time.sleep(1.2)
        assert document(tmp_path) == last, "nobody writes any more"


def test_an_environment_that_is_closed_meanwhile_can_be_looked_at(tmp_path: Path) -> None:
    with LiveView(manyarms.make_vec("painters:Painter", 2), tmp_path, "rank-0") as view:
        envs = view._envs
        envs.reset(seed=0)
        until(lambda: document(tmp_path)["rows"])
        envs.close()
    last = document(tmp_path)
    assert last["closed"]
    assert [row["frame"] for row in last["rows"]] == [0, 1]


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "live").write_text("a file where a folder should be")
    with manyarms.make_vec("standins:Walker", 2, max_episode_steps=25) as envs:
        with caplog.at_level(logging.WARNING, "manyarms"), LiveView(envs, tmp_path, "rank-0") as view:
            found = fingerprint(list(Runner(envs, Swaying()).play(EPISODES)))
            until(lambda: not view._thread.is_alive())
        assert found == fingerprint(list(Runner(envs, Swaying()).play(EPISODES)))
    assert len([line for line in caplog.messages if "cannot be watched" in line]) == 1


def test_a_full_disk_ends_the_view_and_not_the_run(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    with manyarms.make_vec("standins:Walker", 2, max_episode_steps=25) as envs, LiveView(envs, small_disk, "rank-0"):
        until(lambda: document(small_disk)["rows"])
        with pytest.raises(OSError, match="No space"):
            (small_disk / "big").write_bytes(bytes(1 << 20))
        until(lambda: any("cannot be watched" in line for line in caplog.messages))
        assert len(list(Runner(envs, Swaying()).play(EPISODES))) == len(EPISODES)
        assert not list((small_disk / "live").glob(".*")), "nothing half written is left"


# -- in runs ----------------------------------------------------------------------------------------------------------


def test_training_leaves_what_can_be_watched_and_is_the_same_without(tmp_path: Path) -> None:
    text = written(tmp_path)
    folder = train(load(text, in_folder(tmp_path, "seen"))).folder
    for name, rows in (("rank-0", 4), ("rank-0-eval", 4)):
        last = document(folder, name)
        assert last["closed"]
        assert last["name"] == name
        assert len(last["rows"]) == rows
        assert sum(row["episodes"] for row in last["rows"]) > 0
        assert {row["task"] for row in last["rows"]} <= {"near", "far"}
    unseen = train(load(text, [*in_folder(tmp_path, "unseen"), "runner.logger.live=false"])).folder
    assert not (unseen / "live").exists()
    assert_same_run(folder, unseen)
    (folder / "live" / "rank-7.json").write_text("{}")
    train(load(text, in_folder(tmp_path, "seen")), resume=True)
    assert sorted(path.name for path in (folder / "live").iterdir()) == ["rank-0.json"], "what was there is forgotten"


@pytest.mark.slow
def test_every_rank_writes_its_own(tmp_path: Path) -> None:
    words = [written(tmp_path), *in_folder(tmp_path), "runner.max_steps=1"]
    ended(started(words, ranks=2))
    names = {path.stem for path in (tmp_path / "walk" / "live").glob("*.json")}
    assert names == {"rank-0", "rank-1", "rank-0-eval", "rank-1-eval"}
    assert all(document(tmp_path / "walk", name)["closed"] for name in names)


@pytest.mark.slow
def test_every_rollout_process_of_a_placed_run_writes_its_own(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    layout = [f"{PLACED}env=0", f"{PLACED}rollout=0-1", f"{PLACED}actor=2", "cluster.address=local"]
    said = ended(started([written(tmp_path), *in_folder(tmp_path), *layout, "runner.max_steps=1"]), seconds=200)
    names = {path.stem for path in (tmp_path / "walk" / "live").glob("*.json")}
    assert names == {"rollout-0", "rollout-1", "rollout-0-eval", "rollout-1-eval"}, said[-2000:]
    assert [document(tmp_path / "walk", name)["closed"] for name in sorted(names)] == [True] * 4


def test_evaluation_leaves_what_can_be_watched_and_goes_on_with_or_without(tmp_path: Path) -> None:
    def config(name: str, **changes: Any) -> EvalConfig:
        options = {"goal": 0.8, "cameras": []}
        return EvalConfig(
            "standins:Walker", out=tmp_path / name, episodes=3, max_episode_steps=20, options=options, **changes
        )

    seen = evaluation.run(config("seen"))
    last = document(seen.folder, "eval-0")
    assert last["closed"]
    assert sum(row["episodes"] for row in last["rows"]) == 6, "two tasks of three"
    unseen = evaluation.run(config("unseen", live=False))
    assert not (unseen.folder / "live").exists()
    assert seen.results == unseen.results
    assert evaluation.run(config("seen", live=False, resume=True)).complete
    assert not list((seen.folder / "live").iterdir()), "what an earlier run left would be taken for this one's"
