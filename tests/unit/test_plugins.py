"""Names become code in one place, and only names that users give may be import strings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from manyarms import plugins
from manyarms.errors import ConfigError, UnknownName
from manyarms.reporting.trackers import open_trackers

#: What is imported tells on itself.
CODE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nclass Thing:\n    pass\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a plug-in with a thing in every group; an entry point is metadata on the path."""
    (tmp_path / "toolbox.py").write_text(CODE)
    info = tmp_path / "toolbox-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toolbox\nVersion: 1.0\n")
    groups = (
        f"[manyarms.{group}]\nhammer = toolbox:Thing\nbroken = not_there:Thing\nbox = toolbox\n"
        for group in plugins.GROUPS
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("group", plugins.GROUPS)
def test_a_name_is_that_of_a_plug_in_or_an_import_string(group: str, installed: Path) -> None:
    assert plugins.resolve(group, "hammer", trusted=True).__name__ == "Thing"
    assert plugins.resolve(group, "box", trusted=True).__name__ == "toolbox"
    assert plugins.resolve(group, "toolbox:Thing", trusted=True).__name__ == "Thing"
    assert plugins.resolve(group, f"{installed}/toolbox.py:Thing", trusted=True).__name__ == "Thing"
    assert "hammer" in plugins.names(group)


@pytest.mark.parametrize("group", plugins.GROUPS)
def test_names_are_listed_without_importing_what_they_stand_for(group: str, installed: Path) -> None:
    assert {"hammer", "broken"} <= set(plugins.names(group))
    assert not (installed / "ran").exists()


@pytest.mark.parametrize("group", ["simulators", "policies", "trackers"])
def test_everything_built_in_is_there(group: str) -> None:
    assert plugins.built_in(group)
    for name in plugins.built_in(group):
        assert plugins.resolve(group, name, trusted=False) is not None


def test_a_plug_in_does_not_take_the_place_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "thief-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thief\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[manyarms.policies]\nrandom = not_there:Thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.resolve("policies", "random", trusted=True).__name__ == "RandomPolicy"


@pytest.mark.parametrize(
    ("group", "name", "message"),
    [
        ("policies", "randm", r"there is no policy 'randm'\n.*did you mean random\?"),
        ("simulators", "tabeltop", r"there is no simulator 'tabeltop'\n.*did you mean tabletop\?"),
        ("trackers", "tensorbord", r"there is no logger backend 'tensorbord'\n.*did you mean tensorboard\?"),
        ("rewards", "hamer", r"there is no reward 'hamer'\n.*did you mean hammer\?"),
        ("algorithms", "toolbox:Missing", r"there is no algorithm 'toolbox:Missing'\n.*no attribute 'Missing'"),
        ("algorithms", "nowhere:Thing", r"there is no algorithm 'nowhere:Thing'\n.*No module named 'nowhere'"),
        ("rewards", "nowhere.py:Thing", r"there is no reward 'nowhere.py:Thing'\n.*there is no file"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(group: str, name: str, message: str, installed: Path) -> None:
    with pytest.raises(UnknownName, match=message):
        plugins.resolve(group, name, trusted=True)


def test_what_a_name_needs_is_told_with_how_to_come_by_it(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"algorithm 'broken' needs not_there\n.*install it"):
        plugins.resolve("algorithms", "broken", trusted=True)
    monkeypatch.setitem(plugins.GROUPS, "rewards", plugins.Group("a reward", f"{__name__}:OURS"))
    with pytest.raises(ConfigError, match=r"reward 'far' needs not_there\n.*pip install 'manyarms\[torch,vla\]'"):
        plugins.resolve("rewards", "far", trusted=True)


OURS = {"far": "not_there:Thing [torch,vla]"}


@pytest.mark.parametrize("group", plugins.GROUPS)
def test_a_file_names_what_is_installed_and_no_code(group: str, installed: Path) -> None:
    for name in ("toolbox:Thing", f"{installed}/toolbox.py:Thing", "screwdriver", "", None, 3, ["hammer"]):
        with pytest.raises(ConfigError, match=r"run/config\.json names an? .* not installed(.|\n)*--trust-code"):
            plugins.resolve(group, name, trusted=False, source=Path("run/config.json"))  # type: ignore[arg-type]
    assert not (installed / "ran").exists()
    assert plugins.resolve(group, "hammer", trusted=False).__name__ == "Thing"


def test_tasks_may_follow_the_names_of_simulators_only(installed: Path) -> None:
    plugins.check_installed("simulators", "hammer/nail", "a recording")
    for group, name in (("simulators", "hammer/nails:Nail"), ("policies", "hammer/nail"), ("simulators", "/hammer")):
        with pytest.raises(ConfigError, match="not installed"):
            plugins.check_installed(group, name, "a recording")
    with pytest.raises(ConfigError, match="not installed"):
        plugins.check_installed("policies", "random", "a checkpoint", among={"mlp"})


class Notebook:
    """A tracker as users write them."""

    pages: ClassVar[list[Any]] = []

    def __init__(self, run: Any) -> None:
        self.pages.append((run.project, run.name, run.config))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.pages.append((step, dict(metrics)))

    def video(self, name: str, path: Path, step: int) -> None: ...

    def close(self, failed: bool) -> None:
        self.pages.append(failed)


def test_a_tracker_of_ones_own_gets_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notebook, "pages", [])
    with open_trackers(tmp_path / "run", backends=[f"{__name__}:Notebook"], project_name="arms") as trackers:
        trackers.log({"loss": 0.5}, 3)
    assert Notebook.pages == [("arms", "run", {}), (3, {"loss": 0.5}), False]
