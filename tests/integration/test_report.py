"""The report of a training run, from folders in every state a run may leave behind."""

from __future__ import annotations

import base64
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from manyarms.errors import ConfigError
from manyarms.reporting import report
from manyarms.reporting.charts import Scale, labels, number, smoothed, thinned
from manyarms.reporting.report import write_report
from manyarms.reporting.results import wilson
from manyarms.reporting.runs import Run, newest_videos, seconds_by_stage

VOID = {"meta", "br", "wbr", "img", "link", "input", "hr"}
HOSTILE = "</td><script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;"


class Page(HTMLParser):
    """A parsed page that insists on every tag being closed where it should be."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.source = path.read_text(encoding="ascii")
        self.feed(self.source)
        self.close()
        assert self._open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.words.append(data)

    def all(self, tag: str, kind: str = "") -> list[dict[str, str]]:
        return [found for name, found in self.tags if name == tag and kind in found.get("class", "").split(" ")[:1]]

    def curves(self) -> dict[str, list[list[float]]]:
        """Return the points that the pointer finds, by the label of their chart and their name."""
        labels = [found["aria-label"].partition(": ")[0] for found in self.all("div", "chart")]
        plots = [json.loads(found["data-facts"]) for found in self.all("div", "plot")]
        return {
            f"{label}: {name}": points
            for label, plot in zip(labels, plots, strict=True)
            for name, _, points, *_ in plot["curves"]
        }


def score(successes: int, episodes: int = 50) -> dict[str, Any]:
    interval = wilson(successes, episodes)
    return {"successes": successes, "episodes": episodes, "interval": interval, "mean_length": 60.0}


def metrics(step: int) -> dict[str, Any]:
    line = {"step": step, "seconds": 10.0 * step, "actor/loss": 1.0 / step, "critic/loss": 2.0, "rollout/rewards": 0.5}
    line |= {"env/success_once": min(1.0, step / 100), "env/num_trajectories": 20.0}
    line |= {"time/rollout": 2.0, "time/env": 4.0, "time/actor": 3.0}
    return line | {"throughput/env_steps_per_s": 512.0, "throughput/env_steps_total": 1500.0 * step}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_run(folder: Path, updates: int = 100) -> Path:
    write_lines(folder / "metrics.jsonl", [metrics(step) for step in range(1, updates + 1)])
    evaluations = [
        {"step": 0, "tasks": {"open_drawer": score(2), "stack_blocks": score(0)}},
        {"step": updates, "tasks": {"open_drawer": score(48), "stack_blocks": score(30)}},
    ]
    write_lines(folder / "evaluations.jsonl", evaluations)
    (folder / "config.yaml").write_text("algorithm:\n  gamma: 0.99\n")
    (folder / "run.json").write_text(json.dumps({"policy": "small", "command": "manyarms train", "tasks": ["a", "b"]}))
    return folder


# -- content ----------------------------------------------------------------------------------------------------------


def test_the_report_tells_the_run(tmp_path: Path) -> None:
    page = Page(write_report(make_run(tmp_path / "drawers")))
    text = page.text.replace("\u202f", " ")
    assert "Success in evaluation 2 % → 78 %" in text
    low, high = wilson(78, 100)
    assert f"78 of 100 episodes, 95 % interval {100 * low:.0f}–{100 * high:.0f} %" in text
    assert "at first 2 of 100" in text
    for words in ("Environment steps 150 k", "Wall time 16 min 40 s", "Updates 100", "Steps a second 512"):
        assert words in text
    assert "open_ drawer 4 % 1–13 %, 2/50 96 % 87–99 %, 48/50 +92 60 → 60" in text
    assert "all tasks 2 %" in text
    assert "gamma: 0.99" in text
    assert "manyarms train" in text
    curves = page.curves()
    assert curves["success over updates: evaluation"] == [[0, 0.02], [100, 0.78]]
    assert curves["success over updates: training"][49] == [50, 0.5]
    assert curves["actor/loss: loss"][1] == [2, 0.5]
    (whiskers,) = page.all("path", "whisker")
    assert whiskers["d"].count("M") == 2


def test_the_mean_length_of_all_tasks_is_that_of_all_episodes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "drawers")
    short, long = {**score(1, 10), "mean_length": 20.0}, {**score(1, 90), "mean_length": 100.0}
    write_lines(folder / "evaluations.jsonl", [{"step": 100, "tasks": {"open_drawer": short, "stack_blocks": long}}])
    text = Page(write_report(folder)).text.replace("\u202f", " ")
    assert re.search(r"all tasks 2 % [^,]*, 2/100 92 ", text), "(10 × 20 + 90 × 100) / 100"


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "drawers")
    (folder / "config.yaml").write_text("url: https://example.org/data  # told, not loaded\n")
    page = Page(write_report(folder))
    for tag, found in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base")
        for name in ("src", "href", "srcset", "poster", "data", "style"):
            assert "//" not in found.get(name, "")
    (style,) = re.findall(r"<style>(.*?)</style>", page.source, re.DOTALL)
    assert "@import" not in style
    assert "url(" not in style
    (script,) = re.findall(r"<script>(.*?)</script>", page.source, re.DOTALL)
    assert not re.search(r"https?:|fetch|XMLHttp|import\(", script)


def test_hostile_names_are_only_words(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "<b>run & more")
    write_lines(folder / "metrics.jsonl", [{"step": 1, "seconds": 1.0, f"actor/{HOSTILE}": 1.0, f"{HOSTILE}/x": 1.0}])
    tasks = {"step": 1, "tasks": {HOSTILE: score(3), "plain": score(1)}}
    write_lines(folder / "evaluations.jsonl", [tasks])
    (folder / "config.yaml").write_text(HOSTILE)
    (folder / "run.json").write_text(json.dumps({"policy": HOSTILE, HOSTILE: [HOSTILE], "command": HOSTILE}))
    film = folder / "video" / "a\"><img src=x>'&.mp4"
    film.parent.mkdir()
    film.write_bytes(b"film")
    page = Page(write_report(folder))
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == 1
    assert "img" not in names
    assert not [found for _, found in page.tags if any(name.startswith("on") for name in found)]
    whole = HOSTILE.replace("/", "/ ")  # where a name may be broken
    assert whole in page.text
    assert page.text.count(HOSTILE) >= 4, "configuration, command, and the facts by name and value"
    assert "<b>run & more" in page.text
    assert f"actor/{HOSTILE}: {HOSTILE}" in page.curves()


def test_the_time_adds_up(tmp_path: Path) -> None:
    run = Run.of(make_run(tmp_path / "run"))
    stages = {name: sum(values.values()) for name, values in seconds_by_stage(run).items()}
    assert stages == {
        "simulators": pytest.approx(400.0),
        "policy": pytest.approx(200.0),
        "learning": pytest.approx(300.0),
        "other": pytest.approx(100.0),
    }
    page = Page(write_report(run.folder))
    shares = {name: points for name, points in page.curves().items() if name.startswith("share of the time")}
    assert [sum(points[7][1] for points in shares.values())] == pytest.approx([1.0], abs=1e-4)
    widths = [float(found["width"].removesuffix("%")) for tag, found in page.tags if tag == "rect"]
    assert sum(widths) == pytest.approx(100.0, abs=0.1)


# -- runs in any state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["metrics.jsonl", "evaluations.jsonl", "config.yaml", "run.json"])
def test_any_piece_may_be_missing(missing: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / missing).unlink()
    page = Page(write_report(folder))
    assert ("Success by task" in page.text) == (missing != "evaluations.jsonl")
    assert ("Where the time went" in page.text) == (missing != "metrics.jsonl")
    assert ("Configuration" in page.text) == (missing != "config.yaml")


def test_without_evaluations_training_is_the_headline(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "evaluations.jsonl").unlink()
    text = Page(write_report(folder)).text.replace("\u202f", " ")
    assert "Success in training 6 % → 96 %" in text, "means of the first and last ten updates"
    low, high = wilson(191, 200)
    assert f"191 of 200 episodes, 95 % interval {100 * low:.0f}–{100 * high:.0f} %" in text


def test_a_run_of_one_update(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_lines(folder / "metrics.jsonl", [metrics(7)])
    page = Page(write_report(folder))
    assert page.curves()["actor/loss: loss"] == [[7, 0.14286]]
    assert page.all("path", "dot"), "a point alone must be seen"
    assert "→" not in page.text


def test_what_is_not_finite_is_a_gap(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lines = [{"step": step, "seconds": 1.0 * step, "actor/loss": 1.0, "actor/gone": None} for step in range(1, 10)]
    lines[3]["actor/loss"] = None
    lines[5]["actor/loss"] = math.nan  # as others may write it
    write_lines(folder / "metrics.jsonl", lines)
    page = Page(write_report(folder))
    assert [step for step, _ in page.curves()["actor/loss: loss"]] == [1, 2, 3, 5, 7, 8, 9]
    assert "actor/gone: gone" not in page.curves(), "there is nothing to draw"
    (line,) = page.all("path", "line")
    assert line["d"].count("M") == 3
    assert not [found for tag, found in page.tags if tag == "path" and "nan" in found["d"]]


def test_torn_lines_and_broken_facts_are_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", updates=20)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"step": 5000, "actor/loss": 3')
    (folder / "run.json").write_text('{"policy": ')
    page = Page(write_report(folder))
    assert page.curves()["actor/loss: loss"][-1][0] == 20


def test_an_evaluation_that_was_repeated_counts_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with (folder / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps({"step": 100, "tasks": {"open_drawer": score(50), "stack_blocks": score(50)}}) + "\n")
        file.write(json.dumps({"step": 120, "tasks": {}}) + "\n")
    assert "100 of 100 episodes" in Page(write_report(folder)).text


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no training run"):
        write_report(tmp_path)


# -- many points ------------------------------------------------------------------------------------------------------


def test_ten_thousand_updates_are_thinned_and_keep_their_extremes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lines = [
        {"step": n, "seconds": 1.0 * n, "actor/loss": math.sin(n), "env/success_once": 0.5} for n in range(1, 10_001)
    ]
    lines[6543]["actor/loss"] = 99.0
    lines[7654]["actor/loss"] = -99.0
    write_lines(folder / "metrics.jsonl", lines)
    path = write_report(folder)
    points = Page(path).curves()["actor/loss: loss"]
    assert len(points) <= 4 * 150
    assert [6544, 99] in points
    assert [7655, -99] in points
    assert path.stat().st_size < 300_000


def test_thinning_keeps_order_ends_and_gaps() -> None:
    points = [(float(n), math.nan if 400 <= n < 600 else float(n % 7)) for n in range(1000)]
    kept = thinned(points, 20)
    assert len(kept) <= 80
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    assert any(math.isnan(value) for _, value in kept), "the gap stays one"
    assert thinned(points[:80], 20) == points[:80], "few points are left alone"


def test_smoothing_leaves_a_constant_and_gaps_alone() -> None:
    points = [(float(n), 3.0 if n != 50 else math.nan) for n in range(200)]
    found = smoothed(points)
    assert [value for step, value in found if step != 50] == pytest.approx([3.0] * 199)
    assert math.isnan(found[50][1])


@pytest.mark.parametrize(
    "values",
    [(0.0, 1.0), (3e-5, 9e-5), (-7.0, -1.0), (5.0, 5.0), (0.0, 0.0), (-1e6, 3e6), (99.99, 100.0), (1e-12, 1.0)],
)
def test_ticks_are_few_and_inside(values: tuple[float, float]) -> None:
    scale = Scale.of(values)
    assert scale.low <= min(values)
    assert scale.high >= max(values)
    assert scale.low < scale.high
    assert 2 <= len(scale.ticks) <= 6
    assert all(-1e-6 <= scale(tick) <= 1 + 1e-6 for tick in scale.ticks)
    assert len(set(labels(scale.ticks))) == len(scale.ticks), "ticks can be told apart"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.12341, "0.1234"),
        (1234.5, "1234"),
        (12345.0, "12.35k"),
        (2.5e6, "2.5M"),
        (-3e-5, "−3e−5"),
        (math.nan, "–"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value).replace("\u202f", "") == text


# -- videos -----------------------------------------------------------------------------------------------------------


def test_videos_are_embedded_newest_evaluation_first_as_long_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "run")
    films = ["video/train/9999/a.mp4", "video/eval-9/b.mp4", "video/eval-100/c.mp4", "videos/eval-50/d #1.mp4"]
    for film in films:
        (folder / film).parent.mkdir(parents=True, exist_ok=True)
        (folder / film).write_bytes(film.encode() * 10)
    (folder / "video/eval-100/empty.mp4").touch()
    order = [path.relative_to(folder).as_posix() for path in newest_videos(folder) if path.stat().st_size]
    assert order == [films[2], films[3], films[1], films[0]]
    monkeypatch.setattr(report, "_VIDEO_BYTES", 10 * (len(films[2]) + len(films[1])))
    page = Page(write_report(folder))
    sources = [found["src"].removeprefix("data:video/mp4;base64,").partition("#")[0] for found in page.all("video")]
    assert [base64.b64decode(source).decode() for source in sources] == [films[2] * 10, films[1] * 10]
    assert [found["href"] for found in page.all("a")] == ["videos/eval-50/d%20%231.mp4", "video/train/9999/a.mp4"]
