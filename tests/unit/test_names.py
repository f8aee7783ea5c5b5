"""Names of simulators: what they mean and how they are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from manyarms import plugins
from manyarms.errors import ConfigError, did_you_mean
from manyarms.simulators import registry
from manyarms.vector.config import find_interpreter, name_of, parse_autoreset
from manyarms.vector.supervisor import search_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gym/CartPole-v1", ("gym", "CartPole-v1")),
        ("gym/ALE/Pong-v5", ("gym", "ALE/Pong-v5")),
        ("gym/my_package:MyEnv-v0", ("gym", "my_package:MyEnv-v0")),
        ("tabletop/open_drawer", ("tabletop", "open_drawer")),
        ("my_package.envs:make_env", ("my_package.envs:make_env", "")),
        ("path/to/envs.py:make_env", ("path/to/envs.py:make_env", "")),
        ("/abs/envs.py:Sub.make", ("/abs/envs.py:Sub.make", "")),
        ("tabletop", ("tabletop", "")),
    ],
)
def test_a_name_is_split_into_simulator_and_task(name: str, expected: tuple[str, str]) -> None:
    assert registry.split_id(name) == expected


KNOWN = """
import os, sys
from manyarms.simulators import registry
before = dict(os.environ)
facts = {name: registry.about(name) for name in registry.BUILT_IN}
assert all(about.what and about.factory and about.task for about in facts.values())
assert os.environ == before
print(*{name.partition(".")[0] for name in sys.modules} & {"mujoco", "gymnasium", "omnigibson", "rlbench", "libero"})
"""


def test_a_simulator_is_known_before_anything_of_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", KNOWN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def plug_in(folder: Path, target: str) -> None:
    """Install a simulator `mine` that an entry point says is at `target`."""
    info = folder / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[manyarms.simulators]\nmine = {target}\n")


def test_a_plug_in_is_a_class_or_a_module_with_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "facts_of_mine.py").write_text(
        "from manyarms.simulators.about import About\n"
        "about = About('a thing', factory='standins:Walker', start_timeout=7.0, evaluation_options={'goal': 9.0})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plug_in(tmp_path, "facts_of_mine")
    assert registry.resolve("mine/near") == (registry.resolve("standins:Walker")[0], {"task": "near"})
    assert registry.about("mine/near").start_timeout == 7.0
    (tmp_path / "mine-1.0.dist-info/entry_points.txt").write_text("[manyarms.simulators]\nmine = standins:Walker\n")
    assert registry.resolve("mine/near")[0].__name__ == "Walker"
    assert registry.about("mine/near") == registry.about("standins:Walker") == registry.About()


def test_a_plug_in_whose_module_says_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent_plug_in.py").write_text("")
    plug_in(tmp_path, "silent_plug_in")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="silent_plug_in has no attribute 'about'"):
        registry.resolve("mine")
    assert registry.about("mine") == registry.About()


def test_a_file_is_imported_without_running_its_main_part(tmp_path: Path) -> None:
    path = tmp_path / "envs.py"
    path.write_text(
        "ran = __name__ == '__main__'\nclass Sub:\n    @staticmethod\n    def make():\n        return ran\n"
    )
    assert plugins.import_object(f"{path}:Sub.make")() is False


def test_a_function_becomes_its_import_string() -> None:
    assert name_of(registry.resolve) == "manyarms.simulators.registry:resolve"
    assert name_of("envs.py:make") == f"{Path('envs.py').absolute()}:make"
    assert name_of("gym/CartPole-v1") == "gym/CartPole-v1"

    def local() -> None: ...

    with pytest.raises(ConfigError, match="cannot be found by another process"):
        name_of(local)


def test_an_interpreter_is_found_by_path_command_or_environment() -> None:
    assert find_interpreter(sys.executable) == sys.executable
    assert find_interpreter(str(Path(sys.executable).parent.parent)).endswith("/bin/python")
    assert find_interpreter("python3").startswith("/")


@pytest.mark.parametrize("text", ["NextStep", "next_step", "NEXT_STEP", "nextstep"])
def test_autoreset_modes_are_read_in_any_spelling(text: str) -> None:
    assert parse_autoreset(text).value == "NextStep"


def test_another_interpreter_gets_only_the_users_own_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "other/lib/python3.9/site-packages"
    foreign.mkdir(parents=True)
    own = tmp_path / "project"
    own.mkdir()
    monkeypatch.setattr(sys, "path", [str(own), str(foreign), *sys.path])
    found = search_path(same_interpreter=False)
    assert str(own) in found
    assert not any("site-packages" in entry or entry.startswith(sys.base_prefix) for entry in found)
    assert set(found) < set(search_path(same_interpreter=True))


def test_suggestions_ignore_case_and_list_all_when_few() -> None:
    assert did_you_mean("cartpole-v1", ["CartPole-v1", "Pendulum-v1"]) == "did you mean CartPole-v1?"
    assert did_you_mean("zzz", ["a", "b"]) == "known: a, b"
    assert did_you_mean("zzz", [f"name{i}" for i in range(40)]).startswith("40 are known")
    assert did_you_mean("zzz", []) == ""
