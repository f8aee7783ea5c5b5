"""Metrics of training runs: on disk, and in the trackers people use, read back from what those wrote."""

from __future__ import annotations

import builtins
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from manyarms.errors import ConfigError, DiskError
from manyarms.reporting.trackers import Trackers, drop_after, open_trackers, read_metrics
from manyarms.reporting.video import VideoWriter


@pytest.fixture(autouse=True)
def nobody_logged_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the keys and settings of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "SWANLAB_"))]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / ".netrc"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def log_steps(trackers: Trackers, steps: range, scale: float = 1.0) -> None:
    for step in steps:
        trackers.log({"actor/loss": scale * step, "env/success_once": 0.25}, step)


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["actor/loss"] for line in read_metrics(folder)}


# -- lines on disk ----------------------------------------------------------------------------------------------------


def test_every_step_is_a_line_that_is_on_disk_at_once(tmp_path: Path) -> None:
    trackers = open_trackers(tmp_path / "run", backends=())
    trackers.log({"actor/loss": 0.5, "env/return": math.nan, "env/episode_len": math.inf}, step=1)
    (line,) = (tmp_path / "run/metrics.jsonl").read_text().splitlines()  # not closed yet
    found = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found.pop("seconds") >= 0.0
    assert found == {"step": 1, "actor/loss": 0.5, "env/return": None, "env/episode_len": None}
    trackers.close()


def test_a_resumed_run_replaces_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    with open_trackers(tmp_path, backends=()) as trackers:
        log_steps(trackers, range(1, 6))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lines[2]["seconds"] = 1000.0
    torn = '{"step": 6, "actor/lo'
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]

    with open_trackers(tmp_path, backends=(), from_step=3) as trackers:
        assert losses(tmp_path) == {1: 1.0, 2: 2.0, 3: 3.0}
        log_steps(trackers, range(4, 6), scale=10.0)
    assert losses(tmp_path) == {1: 1.0, 2: 2.0, 3: 3.0, 4: 40.0, 5: 50.0}
    assert read_metrics(tmp_path)[3]["seconds"] >= 1000.0, "the clock goes on where it was"
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"], "no temporary file is left"


def test_a_last_line_without_its_newline_is_not_glued_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "seconds": 2.0, "actor/loss": 1.0}')
    with open_trackers(tmp_path, backends=(), from_step=1) as trackers:
        log_steps(trackers, range(2, 3))
    assert losses(tmp_path) == {1: 1.0, 2: 2.0}


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from manyarms.reporting.trackers import open_trackers\n"
        "trackers = open_trackers(pathlib.Path(sys.argv[1]))\n"
        "for step in range(1, 8): trackers.log({'actor/loss': step}, step)\n"
        "print('logged', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "logged\n"
        run.send_signal(signal.SIGKILL)
    assert list(losses(tmp_path)) == [1, 2, 3, 4, 5, 6, 7]
    with open_trackers(tmp_path, from_step=4) as trackers:
        log_steps(trackers, range(5, 7), scale=100.0)
    expected = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 500.0, 6: 600.0}
    assert losses(tmp_path) == expected
    assert tensorboard_scalars(tmp_path)["actor/loss"] == expected


def test_lines_of_other_files_are_cut_off_alike(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    path.write_text('{"step": 0, "tasks": {}}\n{"step": 50, "tasks": {}}\n{"step": 100')
    drop_after(path, 0)
    assert path.read_text() == '{"step": 0, "tasks": {}}\n'
    drop_after(tmp_path / "missing.jsonl", 0)
    assert not (tmp_path / "missing.jsonl").exists()


def test_no_metrics_are_no_lines(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "nowhere") == []


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_an_unknown_backend_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean tensorboard"):
        open_trackers(tmp_path / "run", backends=["tensorbord"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "swanlab"])
def test_a_missing_package_is_told_with_its_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def importing(module: str, *args: Any, **options: Any) -> Any:
        if module.partition(".")[0] == name:
            raise ImportError(f"No module named {name!r}")
        return real(module, *args, **options)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ConfigError, match=rf"manyarms\[{name}\]") as caught:
        open_trackers(tmp_path, backends=[name])
    assert "logger_backends=[]" in str(caught.value)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="cannot be written"):
        open_trackers(tmp_path / "file/run")


def test_a_tracker_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    def fail(*_: object) -> None:
        raise RuntimeError("the server said no")

    with open_trackers(tmp_path) as trackers:
        log_steps(trackers, range(1, 2))
        monkeypatch.setattr(EventFileWriter, "add_event", fail)
        log_steps(trackers, range(2, 4))
        monkeypatch.undo()
        log_steps(trackers, range(4, 5))
    assert capsys.readouterr().err.count("tensorboard failed and is left out from here on (the server said no)") == 1
    assert list(losses(tmp_path)) == [1, 2, 3, 4]
    assert list(tensorboard_scalars(tmp_path)["actor/loss"]) == [1]


# -- TensorBoard ------------------------------------------------------------------------------------------------------


def tensorboard_events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def tensorboard_scalars(folder: Path) -> dict[str, dict[int, float]]:
    events = tensorboard_events(folder)
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_tensorboard_is_the_default_and_goes_on(tmp_path: Path) -> None:
    with open_trackers(tmp_path, config={"algorithm": {"gamma": 0.99}}) as trackers:
        log_steps(trackers, range(1, 5))
        trackers.log({"actor/loss": math.nan}, step=5)
        trackers.video("eval/open_drawer", tmp_path / "video/a.mp4", step=5)
    found = tensorboard_scalars(tmp_path)
    assert found["actor/loss"] == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}, "what is not finite is left out"
    assert found["env/success_once"][4] == 0.25
    texts = {
        tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for events in [tensorboard_events(tmp_path)]
        for tag in events.Tags()["tensors"]
    }
    assert '"gamma": 0.99' in texts["config"]
    assert texts["eval/open_drawer"].endswith("video/a.mp4")

    with open_trackers(tmp_path, from_step=2) as trackers:
        log_steps(trackers, range(4, 5), scale=10.0)
    assert tensorboard_scalars(tmp_path)["actor/loss"] == {1: 1.0, 2: 2.0, 4: 40.0}, "the old third step is hidden"


def test_videos_of_an_update_are_shown_with_its_metrics(tmp_path: Path) -> None:
    for film in ("eval/global_step_4/open_drawer-seed1-success", "train/global_step_3/open_drawer-seed9-failure"):
        (tmp_path / "video" / film).parent.mkdir(parents=True)
        small_video(tmp_path / "video" / f"{film}.mp4")
    with open_trackers(tmp_path) as trackers:
        log_steps(trackers, range(3, 5))
    events = tensorboard_events(tmp_path)
    shown = {tag: events.Tensors(tag)[0].step for tag in events.Tags()["tensors"]}
    assert shown == {"eval/open_drawer-seed1-success": 4, "train/open_drawer-seed9-failure": 3}


# -- W&B and SwanLab, offline -----------------------------------------------------------------------------------------


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, which both write."""
    data, at, parts = path.read_bytes(), 7, b""
    while at < len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def wandb_records(folder: Path, kind: str) -> list[Any]:
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # waits for the process that writes
    (path,) = (path for path in folder.glob("wandb/offline-run-*/*.wandb") if not path.parent.is_symlink())
    parsed = [wandb_internal_pb2.Record.FromString(record) for record in records(path)]  # type: ignore[attr-defined]
    return [getattr(record, kind) for record in parsed if record.WhichOneof("record_type") == kind]


def swanlab_records(folder: Path, kind: str) -> list[Any]:
    from swanlab.proto.swanlab.record.v1 import record_pb2

    (path,) = folder.glob("swanlab/run-*/*.swanlab")
    parsed = [record_pb2.Record.FromString(record) for record in records(path)]
    return [getattr(record, kind) for record in parsed if record.WhichOneof("record_type") == kind]


def small_video(path: Path) -> Path:
    import numpy as np

    with VideoWriter(path) as writer:
        for value in range(4):
            writer.add(np.full((32, 32, 3), 60 * value, np.uint8))
    return path


def test_wandb_without_a_key_writes_offline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "drawers"
    with open_trackers(folder, backends=["wandb"], project_name="arms", config={"seed": 7}) as trackers:
        log_steps(trackers, range(1, 4))
        trackers.log({"actor/loss": math.inf, "env/return": 2.5}, step=4)
        trackers.video("eval/open_drawer", small_video(tmp_path / "a.mp4"), step=4)
    assert "wandb works offline: there is no API key" in capfd.readouterr().err
    (run, *_) = wandb_records(folder, "run")
    assert (run.project, run.display_name) == ("arms", "drawers")
    assert {update.key: update.value_json for update in run.config.update}["seed"] == "7"
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in history.item}
        for history in wandb_records(folder, "history")
    ]
    assert {row["_step"]: row["actor/loss"] for row in rows[:3]} == {1: 1.0, 2: 2.0, 3: 3.0}
    assert rows[3]["env/return"] == 2.5
    assert "actor/loss" not in rows[3]
    assert rows[3]["eval/open_drawer/_type"] == "video-file"
    assert len(list(folder.glob("wandb/offline-run-*/files/media/videos/eval/*.mp4"))) == 1


def test_wandb_is_offline_when_told_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with open_trackers(tmp_path, backends=["wandb"], experiment_name="drawers", from_step=2) as trackers:
        log_steps(trackers, range(3, 4))
    assert capfd.readouterr().err == ""
    (run, *_) = wandb_records(tmp_path, "run")
    assert (run.display_name, run.run_group) == ("drawers from 2", "drawers")
    assert len(wandb_records(tmp_path, "history")) == 1


def test_swanlab_without_a_key_writes_offline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open_trackers(tmp_path, backends=["swanlab"], experiment_name="drawers", config={"seed": 7}) as trackers:
        log_steps(trackers, range(1, 4))
        trackers.log({"actor/loss": math.nan, "env/return": 2.5}, step=4)
        trackers.video("eval/open_drawer", tmp_path / "a.mp4", step=4)
    assert "swanlab works offline: there is no API key" in capfd.readouterr().err
    (start,) = swanlab_records(tmp_path, "start")
    assert (start.project, start.name) == ("manyarms", "drawers")
    scalars = [(scalar.key, scalar.step, scalar.value.number) for scalar in swanlab_records(tmp_path, "scalar")]
    assert [row[1:] for row in scalars if row[0] == "actor/loss"] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert ("env/return", 4, 2.5) in scalars
    assert [finish.error for finish in swanlab_records(tmp_path, "finish")] == [""]
    assert len(list(tmp_path.glob("swanlab/run-*/media/**/*.txt"))) == 1, "the path of the video"


def test_a_run_that_fails_is_told_as_such(tmp_path: Path) -> None:
    def train() -> None:
        with open_trackers(tmp_path, backends=["wandb", "swanlab"]) as trackers:
            log_steps(trackers, range(1, 2))
            raise RuntimeError("the loss is gone")

    with pytest.raises(RuntimeError, match="the loss is gone"):
        train()
    assert [record.exit_code for record in wandb_records(tmp_path, "exit")] == [1]
    assert [record.error for record in swanlab_records(tmp_path, "finish")] == ["the run ended with an error"]


def point_at(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a service a key, and an address."""
    variables = {"wandb": ("WANDB_API_KEY", "WANDB_BASE_URL"), "swanlab": ("SWANLAB_API_KEY", "SWANLAB_API_HOST")}
    for variable, value in zip(variables[name], ("0" * 40, url), strict=True):
        monkeypatch.setenv(variable, value)


def offline_records(name: str, folder: Path) -> list[Any]:
    return wandb_records(folder, "history") if name == "wandb" else swanlab_records(folder, "scalar")


@contextmanager
def server(status: int) -> Iterator[str]:
    """Run a server that answers everything alike; give its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        do_POST = do_GET  # noqa: N815 (as the base class has it)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 (as the base class has it)

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@contextmanager
def nobody() -> Iterator[str]:
    """Give an address that refuses connections."""
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
@pytest.mark.parametrize("trouble", ["nobody", "error"])
def test_without_a_network_there_is_neither_waiting_nor_asking(
    name: str, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with nobody() if trouble == "nobody" else server(503) as url:
        point_at(name, url, monkeypatch)
        with open_trackers(tmp_path, backends=[name]) as trackers:
            log_steps(trackers, range(1, 2))
    assert f"{name} works offline: {url} cannot be reached" in capfd.readouterr().err
    assert offline_records(name, tmp_path)


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_key_that_is_refused_is_said_and_done_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with server(401) as url:
        point_at(name, url, monkeypatch)
        with open_trackers(tmp_path, backends=[name]) as trackers:
            log_steps(trackers, range(1, 2))
        assert f"{name} works offline: " in capfd.readouterr().err
        assert offline_records(name, tmp_path)
