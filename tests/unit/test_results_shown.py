"""Results as people read them: the same words in a terminal, a repr and a notebook; plots that stand alone."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

import manyarms
from manyarms.cli.bench import BenchResult
from manyarms.cli.check import CheckResult
from manyarms.cli.demo import DemoConfig, DemoResult
from manyarms.cli.doctor import DoctorResult
from manyarms.cli.eval import EvalResult
from manyarms.cli.policy import InspectResult
from manyarms.cli.replay import ReplayResult
from manyarms.cli.train import TrainPlan
from manyarms.errors import ConfigError, UnknownName
from manyarms.learning.loop import TrainResult
from manyarms.reporting import console
from manyarms.reporting.charts import PERCENT, Bar, Bars, Curve, Lines, Plot
from manyarms.reporting.console import Shown, Table
from manyarms.reporting.progress import TrainingBoard
from manyarms.reporting.results import EpisodeResult, wilson
from manyarms.reporting.video import Video
from manyarms.simulators.about import absent, fault, ok

HOSTILE = "<script>alert('x')</script> & \"quotes\""
SVG = "{http://www.w3.org/2000/svg}"


def episode(position: int, success: bool, task: str = "reach") -> EpisodeResult:
    return EpisodeResult(position, task, position, success, float(success), 10 + position, "reach it")


def bench_result(**changes: Any) -> BenchResult:
    settings = {"simulator": HOSTILE, "num_envs": 4, "action_chunk": 8}
    measured = {"env_steps": 1000, "seconds": 0.5, "env_steps_per_second": 2000.0, "cpu_us_per_env_step": 12.5}
    latency = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "mean": 1.2}
    others: dict[str, Any] = {"start_seconds": 0.3, "worker_memory_mb": 20.0, "episodes": 7, **changes}
    return BenchResult(config=settings, latency_ms=latency, **measured, **others)


def profile() -> dict[str, Any]:
    parts = {"build": 0.1, "env_call": 0.9, "exec": 0.6, "sim": 0.4, "obs": 0.2, "vid": 0.0, "other": 0.05, "ipc": 0.25}
    return {"calls": 3, "mean_ms": parts, "workers_ms": {"sim": {"p50": 0.3, "p90": 0.4, "p99": 0.5}}}


EVALUATED = [episode(0, True), episode(1, False, HOSTILE), episode(2, True), episode(3, True, HOSTILE)]

RESULTS: dict[str, tuple[Shown, str]] = {
    "bench": (bench_result(profile=profile()), f"{HOSTILE}: 2,000 env-steps/s (4 environments, chunks of 8)"),
    "check": (CheckResult(HOSTILE, ("a", "b"), {"b": "it\ndrifts"}), f"{HOSTILE}: 1 of 2 checks hold"),
    "demo": (
        DemoResult(DemoConfig(), {"theirs": 100.0, "ours": 2000.0}, 3, 9, Path("a.mp4"), (0.1, 0.9), Path("r.html")),
        "CartPole-v1, 8 environments: 20 times Gymnasium's speed",
    ),
    "doctor": (
        DoctorResult((ok("Python", "3.11"), absent("GPU", "none"), fault("EGL", HOSTILE, "apt install it"))),
        "1 well, 1 optional and absent, 1 to mend",
    ),
    "eval": (
        EvalResult(EVALUATED, True, Path("out"), [Path("a.mp4")], f"expert on {HOSTILE}"),
        "75.0 % success (3 of 4 episodes, 95 % interval 30.1 to 95.4 %)",
    ),
    "policy": (
        InspectResult("pi0", [("weights", HOSTILE)], ["2 missing: a, b"], ["get it again"], Path("weights")),
        "policy: pi0, but it would not load as it is",
    ),
    "replay": (
        ReplayResult(Path("tape"), (0, 1, 2), {1: HOSTILE}),
        "2 of 3 episodes came out the same, bit for bit",
    ),
    "train": (
        TrainResult(
            Path("run"), 5, {}, [(0, [episode(0, False)]), (5, [episode(0, True)])], "all made", Path("r.html")
        ),
        "100.0 % success after 5 updates (1 of 1 held-out episodes, 95 % interval 20.7 to 100.0 %), 0.0 % at the start",
    ),
    "training that judged nothing": (
        TrainResult(Path("run"), 5, {}, [], "SIGINT asked for the end", Path("r.html")),
        "5 updates; SIGINT asked for the end",
    ),
    "plan": (
        TrainPlan("runner: {}\n", [("updates", "80")], Table([("env", "0")], ("process", "node"), "where")),
        "plan",
    ),
}

shown = pytest.mark.parametrize(("result", "headline"), RESULTS.values(), ids=RESULTS)


@shown
def test_the_headline_comes_first_and_the_terminal_says_the_same(
    result: Shown, headline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repr(result).splitlines()[0] == headline
    result.show()
    assert capsys.readouterr().out == f"{result}\n"


@shown
def test_html_says_what_the_text_says_in_the_notebook_s_own_colours(result: Shown, headline: str) -> None:
    html = result._repr_html_()
    tree = ElementTree.fromstring(html)  # every tag is closed, every word escaped
    assert not list(tree.iter("script"))
    words = " ".join(tree.itertext()).split()
    told = result.told()
    for part in (headline, *told.notes, *(cell for table in told.tables for row in table.rows for cell in row)):
        assert set(part.split()) <= set(words)
    assert "color:" not in html, "or it is not readable on both white and black"


def test_what_went_wrong_is_told_with_what_to_do() -> None:
    assert "✗ EGL: apt install it" in repr(RESULTS["doctor"][0])
    assert f"✗ episode 1: {HOSTILE}" in repr(RESULTS["replay"][0])
    assert "problem: 2 missing: a, b\ndo: get it again" in repr(RESULTS["policy"][0])
    assert repr(bench_result(interrupted=True)).endswith("interrupted: these are the results so far")


def texts(plot: Plot) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(plot._repr_svg_()).iter(f"{SVG}text")]


def test_success_is_drawn_with_its_interval() -> None:
    result = EvalResult(EVALUATED, True, Path("out"), [])
    drawn = texts(result.plot())
    assert {"reach", HOSTILE[:33] + "…", "2 / 2", "1 / 2", "100\u202f%"} <= set(drawn)
    spans = [path.attrib for path in ElementTree.fromstring(result.plot()._repr_svg_()).iter(f"{SVG}path")]
    ends = [re.findall(r"\d+", path["d"]) for path in spans if path["class"].startswith("span")]
    assert [(int(low), int(high)) for low, _, high in ends] == [
        tuple(round(1000 * end) for end in wilson(won, 2)) for won in (2, 1)
    ]


def test_the_time_of_a_call_is_drawn_by_its_parts() -> None:
    assert "where it goes" not in texts(bench_result().plot())
    drawn = texts(bench_result(profile=profile()).plot())
    assert {"p50", "1.000 ms", "where it goes", "simulation", "0.400 ms", "hand-over"} <= set(drawn)
    assert "video" not in drawn, "it took no time"


def test_bars_are_as_long_as_their_values() -> None:
    plot = Plot("speeds", [Bars("speed", [Bar("a", 1.0, "1"), Bar("b", 4.0, "4"), Bar("c", math.nan, "–")])])
    drawn = ElementTree.fromstring(plot._repr_svg_()).iter(f"{SVG}rect")
    one, four, nothing = (float(bar.attrib["width"]) for bar in drawn)
    assert four == pytest.approx(4 * one, rel=0.01)
    assert nothing == 0.0


@pytest.mark.parametrize("points", [[], [(0.0, math.nan)], [(3.0, 0.5)], [(0.0, 1.0), (1.0, math.nan), (2.0, 3.0)]])
def test_curves_of_any_kind_are_drawn(points: list[tuple[float, float]]) -> None:
    panels = [Lines("success", [Curve("training", points), Curve(HOSTILE, points, dots=True)], up=PERCENT)]
    assert {"success", "training", HOSTILE} <= set(texts(Plot("curves", [*panels, Lines("return", [])])))


def test_a_saved_plot_is_a_file_of_its_own(tmp_path: Path) -> None:
    plot = Plot(HOSTILE, [Bars("speed", [Bar("a", 1.0, "1")])])
    path = plot.save(tmp_path / "new" / "plot.svg")
    assert ElementTree.parse(path).getroot().attrib["aria-label"] == HOSTILE
    assert "prefers-color-scheme" in path.read_text(), "it brings its own colours"
    assert "prefers-color-scheme" not in plot._repr_html_(), "a notebook has a theme of its own"
    with pytest.raises(ConfigError, match=r"plot\.svg"):
        plot.save("plot.png")


def test_long_videos_do_not_go_into_a_notebook(tmp_path: Path) -> None:
    short, long = tmp_path / "short.mp4", tmp_path / "long.mp4"
    short.write_bytes(b"\0" * 1000)
    with long.open("wb") as file:
        file.truncate(9 << 20)
    assert "data:video/mp4;base64,AAAA" in Video(short)._repr_html_()
    assert "data:" not in Video(long)._repr_html_()
    assert "long.mp4" in Video(long)._repr_html_()
    with pytest.raises(ConfigError, match="videos=1"):
        EvalResult([], True, tmp_path, []).video()


# -- the functions ----------------------------------------------------------------------------------------------------


def test_no_function_has_the_name_of_a_module() -> None:
    """`import manyarms.doctor` would put the module in its place."""
    assert not [name for name in dir(manyarms) if importlib.util.find_spec(f"manyarms.{name}")]


def test_type_checkers_see_what_there_is() -> None:
    stub = ast.parse(Path(manyarms.__file__).with_suffix(".pyi").read_text())
    imported = {name.name for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert imported | {"__version__"} == set(manyarms.__all__) == set(dir(manyarms))
    assert all(hasattr(manyarms, name) for name in manyarms.__all__)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda call: call("x", num_env=3), "bench takes no argument 'num_env'\n  do:  did you mean num_envs?"),
        (lambda call: call("x", simulator="y"), "bench got simulator twice"),
        (lambda call: call(num_envs=3), "bench needs simulator"),
        (lambda call: call("x", steps=0), "steps is 0"),
        (lambda call: call("x", options={"goal": object()}), "goal cannot be"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(call: Any, message: str) -> None:
    with pytest.raises((UnknownName, ConfigError)) as refused:
        call(manyarms.bench)
    assert str(refused.value).startswith(message)


def test_settings_of_a_run_are_checked_before_it_starts() -> None:
    misspelt: dict[str, Any] = {"runner.max_step": 5}
    with pytest.raises(UnknownName, match="max_steps"):
        manyarms.train("reach_target_ppo", **misspelt)
    plan = manyarms.train(
        "reach_target_ppo", overrides=["runner.max_steps=7"], runner={"save_interval": 3}, dry_run=True
    )
    assert ("checkpoints", "every 3 updates") in plan.rows
    assert "max_steps: 7" in plan.config


def test_settings_of_a_run_may_be_numpys() -> None:
    options = {"image_size": np.array([8, 6]), "cameras": ("front",)}
    values: dict[str, Any] = {"env.train.seed": np.int64(3), "env.train.options": options}
    plan = manyarms.train("reach_target_ppo", dry_run=True, **values)
    given = yaml.safe_load(plan.config)["env"]["train"]
    assert (given["seed"], given["options"]["image_size"], given["options"]["cameras"]) == (3, [8, 6], ["front"])


@pytest.mark.parametrize("name", sorted(set(manyarms.__all__) - {"__version__"}))
def test_every_name_tells_what_it_is(name: str) -> None:
    assert getattr(manyarms, name).__doc__


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({"actor/approx_kl": 0.0125, "actor/pg_clipfrac": 0.5}, "KL 0.0125, clipped 0.50"),
        ({"actor/loss": 0.25, "actor/own_loss": 0.125}, "loss 0.2500"),
    ],
    ids=["ratios", "an own loss"],
)
def test_the_table_of_a_run_shows_what_its_algorithm_measures(
    measured: dict[str, float], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = ("env/return", "env/episode_len", "throughput/env_steps_total", "throughput/env_steps_per_s")
    with TrainingBoard(3) as board:
        board.updated(1, {**dict.fromkeys(names, 1.0), **measured})
    assert says in re.sub(r"\x1b\[[0-9;?]*\w", "", capsys.readouterr().err)


def test_brackets_are_shown_in_a_terminal_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console.table("needs [red]", [("mlp", "manyarms[torch]")], ("name", "needs"))
    drawn = capsys.readouterr().out
    assert "│" in drawn, "or it was not drawn for a terminal"
    assert "manyarms[torch]" in drawn
    assert "needs [red]" in drawn
