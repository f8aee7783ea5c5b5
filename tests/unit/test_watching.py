"""What `manyarms watch` answers: only what is the run's, to whoever may ask, as far as the run has come."""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

import watched
from manyarms.cli.watch import WatchConfig
from manyarms.cli.watch import run as watch
from manyarms.errors import ConfigError
from manyarms.reporting import report
from manyarms.reporting import site as server
from manyarms.reporting import watched as watched_run
from manyarms.reporting.charts import PAGE
from manyarms.reporting.site import Watcher
from manyarms.reporting.watched import WatchedRun


class Client:
    """Asks a server for paths as they are written, without tidying them up."""

    def __init__(self, watcher: Watcher) -> None:
        self.port = int(watcher.url.rsplit(":", 1)[1].strip("/"))

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def status(self, path: str, **headers: str) -> int:
        return self.get(path, **headers)[0].status

    def state(self, since: str = "") -> dict[str, Any]:
        return json.loads(self.get(f"/state?since={since}")[1])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = watched.training(tmp_path / "runs" / "drawers")
    watched.write_live(folder, watched.rows(4))
    (folder / "video" / "eval").mkdir(parents=True)
    (folder / "video" / "eval" / "first.mp4").write_bytes(bytes(range(100)))
    (folder / "report.html").write_text("<!doctype html><title>r</title>")
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    return folder


@pytest.fixture
def client(run: Path) -> Iterator[Client]:
    with Watcher(run, port=0) as watcher:
        yield Client(watcher)


# -- what may be seen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/live/../../../secret.jpg", "/live/..%2f..%2f..%2fsecret.jpg", "/video/../../../secret.mp4"),
        *("/video/%2e%2e/%2e%2e/%2e%2e/secret.mp4", "//secret.mp4", "/video//etc/passwd", "/video/%00.mp4"),
        *("/config.yaml", "/run.json", "/live/rank-0.json", "/checkpoints/global_step_0/model.safetensors"),
        *("/page/../server.py", "/server.py", "/runs/drawers/", "/video/" + 400 * "x" + ".mp4", "/live/\\..\\x.jpg"),
    ],
)
def test_nothing_but_the_runs_pictures_is_served(client: Client, path: str) -> None:
    answer, data = client.get(path)
    assert answer.status == 404
    assert b"secret" not in data


def test_links_that_lead_out_of_the_run_are_refused(client: Client, run: Path, tmp_path: Path) -> None:
    (run / "video" / "out.mp4").symlink_to(tmp_path / "secret.mp4")
    (run / "live" / "out.jpg").symlink_to(tmp_path / "secret.jpg")
    (run / "videos").symlink_to(tmp_path)
    (run / "video" / "circle.mp4").symlink_to("circle.mp4")
    (run / "video" / "inside.mp4").symlink_to(run / "video" / "eval" / "first.mp4")
    paths = ("/video/out.mp4", "/live/out.jpg", "/videos/secret.mp4", "/video/circle.mp4", "/video/inside.mp4")
    assert [client.status(path) for path in paths] == [404, 404, 404, 404, 200]


def test_a_folder_of_runs_does_not_lead_out_of_itself(run: Path, tmp_path: Path) -> None:
    watched.training(tmp_path / "elsewhere")
    (run.parent / "link").symlink_to(tmp_path / "elsewhere")
    with Watcher(run.parent, port=0) as watcher:
        client = Client(watcher)
        assert [found["name"] for found in json.loads(client.get("/list")[1])["runs"]] == ["drawers"]
        assert client.status("/runs/drawers/") == 200
        assert client.status("/runs/drawers/page.css") == 200
        assert client.get("/runs/drawers")[0].headers["Location"] == "/runs/drawers/"
        for path in ("/runs/link/", "/runs/../elsewhere/", "/runs/%2e%2e/elsewhere/state", "/runs/none/", "/runs//"):
            assert client.status(path) == 404, path


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost:8888", 200), ("127.0.0.1", 200), ("[::1]:6007", 200), ("LOCALHOST", 200)),
        *(("evil.example", 403), ("evil.example:6007", 403), ("localhost.evil.example", 403), ("10.0.0.1", 403)),
        ("", 403),
    ],
)
def test_only_names_of_this_machine_are_answered(client: Client, host: str, status: int) -> None:
    assert client.status("/state", Host=host) == status


def test_who_is_bound_to_the_world_knows_addresses_and_its_own_name(run: Path) -> None:
    with Watcher(run, host="0.0.0.0", port=0) as watcher:
        client = Client(watcher)
        assert client.status("/", Host="192.168.1.5:6007") == 200
        assert client.status("/", Host=socket.gethostname()) == 200
        assert client.status("/", Host="evil.example") == 403


def test_the_page_answers_to_the_names_it_is_given(run: Path) -> None:
    with Watcher(run, port=0, allowed_hosts=["Lab.Example"]) as watcher:
        client = Client(watcher)
        assert client.status("/", Host="lab.example:6007") == 200
        answer, body = client.get("/", Host="evil.example")
        assert answer.status == 403
        assert b"--allowed-hosts evil.example" in body
    with Watcher(run, port=0, allowed_hosts=["*"]) as watcher:
        assert Client(watcher).status("/", Host="evil.example") == 200


def test_pages_may_load_only_from_here(client: Client) -> None:
    for path in ("/", "/run.js", "/page.css", "/state", "/live/rank-0.jpg", "/nothing"):
        policy = client.get(path)[0].headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy
    assert "sandbox" in client.get("/report.html")[0].headers["Content-Security-Policy"]


def test_files_are_sent_again_only_when_they_have_changed(client: Client, run: Path) -> None:
    tag = client.get("/live/rank-0.jpg")[0].headers["ETag"]
    assert client.status("/live/rank-0.jpg", If_None_Match=tag) == 304
    watched.write_live(run, watched.rows(8))
    assert client.status("/live/rank-0.jpg", If_None_Match=tag) == 200
    assert client.get("/state")[0].headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("asked", "status", "sent"),
    [
        *(("bytes=10-19", 206, bytes(range(10, 20))), ("bytes=90-", 206, bytes(range(90, 100)))),
        *(("bytes=-5", 206, bytes(range(95, 100))), ("bytes=50-1000", 206, bytes(range(50, 100)))),
        *(("bytes=100-", 416, b""), ("lines=1-2", 200, bytes(range(100)))),
        (f"bytes={5000 * chr(57)}-", 200, bytes(range(100))),
    ],
)
def test_players_get_the_part_of_a_video_they_ask_for(client: Client, asked: str, status: int, sent: bytes) -> None:
    answer, data = client.get("/video/eval/first.mp4", Range=asked)
    assert (answer.status, data) == (status, sent)


def test_long_answers_are_packed_for_who_unpacks_them(client: Client) -> None:
    answer, data = client.get("/state", Accept_Encoding="gzip")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(data))["name"] == "drawers"
    assert client.get("/state", method="HEAD")[1] == b""


# -- how far the run has come -----------------------------------------------------------------------------------------


def curve(answer: dict[str, Any], name: str = "return", part: str = "small") -> dict[int, float]:
    """Return the points of a curve that was drawn anew, by step."""
    charts = re.findall('data-facts="(.*?)"', answer["parts"].get(part, ""))
    curves = {found[0]: found[2] for chart in charts for found in json.loads(html.unescape(chart))["curves"]}
    return dict(curves.get(name, ()))


def steps(answer: dict[str, Any]) -> list[int]:
    return list(curve(answer))


def words(drawn: str) -> list[str]:
    """Return what is written in the cells of a drawn table."""
    return [html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall("<td.*?</td>", drawn)]


def test_what_is_drawn_comes_once(client: Client, run: Path) -> None:
    first = client.state()
    assert steps(first) == [1, 2, 3, 4, 5]
    assert client.state(first["position"])["parts"] == {}
    watched.append_line(run / "metrics.jsonl", watched.line(6))
    second = client.state(first["position"])
    assert steps(second) == [1, 2, 3, 4, 5, 6]
    assert "tasks-rows" not in second["parts"], "there was no other evaluation"
    assert client.state(second["position"])["parts"] == {}
    for nonsense in ("x", "-", "12345678-3", f"{first['position']}0", f"{first['position']}{5000 * '9'}", "a" * 5000):
        assert steps(client.state(nonsense)) == [1, 2, 3, 4, 5, 6]


def test_what_has_not_changed_is_not_drawn_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = WatchedRun(run)
    before = found.state()
    for name in ("line_chart", "small_chart", "share_bar"):
        monkeypatch.setattr(watched_run, name, lambda *_, **__: pytest.fail("it was drawn again"))
    assert found.state()["parts"] == before["parts"]
    assert found.state(before["position"])["parts"] == {}


def test_a_line_waits_until_it_is_whole(client: Client, run: Path) -> None:
    position = client.state()["position"]
    text = json.dumps(watched.line(6))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(text[:40])
        file.flush()
        answer = client.state(position)
        assert answer["parts"] == {}
        file.write(text[40:] + "\n")
        file.flush()
    assert steps(client.state(answer["position"])) == [1, 2, 3, 4, 5, 6]


def test_what_cannot_be_read_does_not_hide_the_rest(client: Client, run: Path) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(
            b'{"step": 6, "env/ret\n\xff\xfe\n[1]\n{"step": "7"}\n{"step": 8, "env/return": NaN, "seconds": Infinity}\n'
        )
    (run / "live" / "rank-1.json").write_text('{"rows": [')
    (run / "live" / "rank-2.json").write_text(
        '{"rows": [3, {"row": 0, "task": ["x"], "state": 5}], "sheet": {"file": "../x"}}'
    )
    (run / "config.yaml").write_text("runner: [")
    (run / "evaluations.jsonl").write_text('{"step": 3, "tasks": 5}\n')
    state = client.state()
    assert (steps(state), state["done"]) == ([1, 2, 3, 4, 5], 8), "a value that is no number is a gap"
    names = {process["name"]: process for process in state["processes"]}
    assert sorted(names) == ["rank-0", "rank-2"]
    assert names["rank-2"]["sheet"] is None
    assert [row["task"] for row in names["rank-2"]["rows"]] == [None]


def test_a_live_file_that_is_torn_for_a_moment_stays_as_it_was(client: Client, run: Path) -> None:
    before = client.state()["processes"]
    (run / "live" / "rank-0.json").write_text('{"version": 1, "ro')
    after = client.state()["processes"]
    assert [process["rows"] for process in after] == [process["rows"] for process in before]


def test_a_resumed_run_is_told_anew(client: Client, run: Path) -> None:
    answer = client.state()
    for kept in ([1, 2, 3], []):
        watched.write_lines(run / "kept.jsonl", [watched.line(step) for step in kept])
        (run / "kept.jsonl").replace(run / "metrics.jsonl")
        answer = client.state(answer["position"])
        assert (steps(answer), answer["done"]) == (kept, kept[-1] if kept else 0)
    assert answer["parts"]["small"] == "", "of the earlier life nothing is left"


def test_a_training_run_is_told_in_full(client: Client, run: Path) -> None:
    state = client.state()
    assert (state["phase"], state["done"], state["total"]) == ("running", 5, 120)
    assert state["left"] == pytest.approx(9.0 * 115)
    assert list(curve(state, "evaluation", "success")) == [0, 5]
    assert state["success"]["low"] < state["success"]["rate"] < state["success"]["high"]
    stages = re.findall("</i>(.*?)<b>", state["parts"]["stages"])
    assert stages == ["simulators", "policy", "learning", "other"]
    assert [video["path"] for video in state["videos"]] == ["video/eval/first.mp4"]
    watched.finish(run)
    state = client.state()
    assert (state["phase"], state["because"], state["left"]) == ("finished", "all updates were made", None)
    watched.finish(run, "whatever words there are", "failed")
    assert client.state()["phase"] == "failed"
    watched.finish(run, "it failed, one might say", "interrupted")
    assert client.state()["phase"] == "finished", "words decide nothing"


@pytest.mark.parametrize(
    ("because", "phase"), [("it failed: WorkerDied", "failed"), ("SIGINT asked for the end", "finished")]
)
def test_a_run_of_an_earlier_version_has_words_only(client: Client, run: Path, because: str, phase: str) -> None:
    watched.finish(run, because, status=None)
    assert client.state()["phase"] == phase


def test_the_time_that_a_limit_leaves_counts_from_the_first_update_of_a_session(client: Client, run: Path) -> None:
    (run / "config.yaml").write_text("runner:\n  max_steps: 1000000\n  max_seconds: 600\n")
    watched.append_line(run / "metrics.jsonl", {**watched.line(6), "seconds": 2000.0, "session_seconds": 45.0})
    assert client.state()["left"] == pytest.approx(555.0), "earlier sessions and the first evaluation do not count"
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "from_step": 6}))
    assert client.state()["left"] == pytest.approx(600.0), "a session that has just begun has all of it"
    watched.append_line(run / "metrics.jsonl", {**watched.line(7), "seconds": 2090.0, "session_seconds": 70.0})
    assert client.state()["left"] == pytest.approx(530.0)


def test_a_run_that_is_resumed_is_starting_again(client: Client, run: Path) -> None:
    watched.finish(run)
    assert client.state()["phase"] == "finished"
    facts = json.loads((run / "run.json").read_text())
    kept = {name: value for name, value in facts.items() if name not in ("finished", "finished_because", "status")}
    (run / "run.json").write_text(json.dumps({**kept, "resuming": True}))
    assert (client.state()["phase"], client.state()["done"]) == ("starting", 5)


def test_a_success_is_told_with_the_update_that_was_judged(client: Client, run: Path) -> None:
    watched.append_line(run / "metrics.jsonl", watched.line(6))
    state = client.state()
    assert (state["success"]["step"], state["done"]) == (5, 6)
    (run / "evaluations.jsonl").unlink()
    assert client.state()["success"]["step"] == 6, "then it is that of the last update's own episodes"


def test_a_run_that_has_not_been_heard_of_is_silent(run: Path) -> None:
    for path in (*run.iterdir(), *(run / "live").iterdir()):
        os.utime(path, (1.8e9, 1.8e9) if path.is_dir() else (1e9, 1e9))
    found = WatchedRun(run)
    assert found.state()["phase"] == "silent"
    assert found.state()["silent"] > 1e6
    watched.write_live(run, watched.rows(4))
    assert found.state()["phase"] == "running"


def test_who_looks_is_seen_by_the_run(client: Client, run: Path) -> None:
    client.get("/state?looking=0")
    assert not (run / "live" / "watched").exists()
    client.state()
    assert (run / "live" / "watched").exists()


def test_a_run_that_is_over_is_left_as_it_is(run: Path) -> None:
    watched.finish(run)
    before = sorted(run.rglob("*"))
    WatchedRun(run).state()
    assert sorted(run.rglob("*")) == before


def test_failures_are_told_newest_first_and_by_worker(run: Path) -> None:
    found = WatchedRun(run)
    assert found.state()["failures"] == []
    failed = watched.rows(8, restarts=1, failure="WorkerDied: worker 0 was killed by SIGKILL")[:4] + watched.rows(8)[4:]
    watched.write_live(run, failed)
    (only,) = found.state()["failures"]
    assert (only["rows"], only["failure"], only["process"]) == ([0, 1, 2, 3], failed[0]["failure"], "rank-0")
    assert only["when"] is not None
    watched.write_live(run, [*failed[:5], {**failed[5], "failure": "SimulatorError: boom"}, *failed[6:]])
    assert [told["rows"] for told in found.state()["failures"]] == [[5], [0, 1, 2, 3]]
    watched.write_live(run, [{**row, "restarts": 2} if row["row"] < 4 else row for row in failed])
    assert [told["rows"] for told in found.state()["failures"]] == [[0, 1, 2, 3], [5], [0, 1, 2, 3]]


def test_an_evaluation_is_counted_by_task(tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"simulator": "tabletop", "tasks": "a, b", "episodes": 3}))
    lines = [{"position": i, "task": "ab"[i % 2], "success": i < 3, "length": 10} for i in range(4)]
    watched.write_lines(folder / "episodes-0.jsonl", lines[:2])
    watched.write_lines(folder / "episodes-1.jsonl", lines[2:])
    found = WatchedRun(folder)
    state = found.state()
    assert (state["kind"], state["done"], state["total"], state["phase"]) == ("evaluation", 4, 6, "running")
    cells = words(state["parts"]["tasks-rows"])
    assert [(cells[i], cells[i + 3]) for i in (0, 6)] == [("a", "2 / 2"), ("b", "1 / 2")]
    watched.append_line(folder / "episodes-0.jsonl", {"position": 4, "task": "a", "success": True, "length": 7})
    (folder / "results.json").write_text("{}")
    state = found.state()
    assert (state["done"], state["phase"], state["because"]) == (5, "finished", "all episodes are in")


# -- what is asked for at the door ------------------------------------------------------------------------------------


def test_what_is_no_run_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "config.json").write_text("{}")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="there is no folder") as missing:
        Watcher(tmp_path / "none")
    assert "runs/<name>" in str(missing.value)
    with pytest.raises(ConfigError, match="is a file"):
        Watcher(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"holds no run\n.*metrics\.jsonl.*episodes-0\.jsonl"):
        Watcher(tmp_path / "photos")


def test_a_port_that_is_taken_is_said_when_it_was_asked_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Watcher(run, port=0) as first:
        taken = Client(first).port
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{taken}"):
            Watcher(run, port=taken)
        monkeypatch.setattr(server, "PORT", taken)
        with Watcher(run) as second:
            assert Client(second).port != taken
            assert Client(second).status("/") == 200
    with pytest.raises(ConfigError, match="from 0 to 65535"):
        watch(WatchConfig(run, port=70000))


def test_the_page_has_the_colours_of_the_report() -> None:
    ours = (PAGE / "page.css").read_text()
    theirs = report.page("", "")
    for i in range(7):
        for name in (f"--c{i}: #", "--paper: #", "--ink: #"):
            assert [part[:6] for part in ours.split(name)[1:]] == [part[:6] for part in theirs.split(name)[1:]]
