"""The tests try the tree that they lie in, in every process that they start, and not a copy that is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import manyarms
from conftest import REPOSITORY, environment

SOURCE = REPOSITORY / "src"
TELL = "import manyarms, standins; print(manyarms.__file__); print(standins.__file__)"


def test_this_process_tries_the_tree() -> None:
    assert Path(manyarms.__file__).resolve().is_relative_to(SOURCE)


def test_no_test_takes_the_tree_away_from_a_process_that_it_starts() -> None:
    """One that gives the environment another PYTHONPATH tries what is installed, and never finds out."""
    replaced = re.compile(r"""\*\*os\.environ,[^}]*["']PYTHONPATH["']: (?!os\.pathsep\.join\((sys\.path|path)\))""")
    tests = [path for path in (REPOSITORY / "tests").rglob("*.py") if path.parent.name != "external"]
    assert len(tests) > 100
    assert [path.name for path in tests if replaced.search(path.read_text())] == ["conftest.py"], "use environment()"


def test_processes_of_tests_try_the_same_copy_even_where_another_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manyarms.py").write_text("raise SystemExit('another copy')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", TELL], env=environment(), capture_output=True, text=True, check=True, cwd=tmp_path.parent
    )
    found = [Path(line).resolve() for line in done.stdout.split()]
    assert found == [Path(manyarms.__file__).resolve(), REPOSITORY / "tests" / "standins.py"]
    assert environment()["PYTHONPATH"].endswith(os.pathsep + str(tmp_path)), "what was there is kept"
    given = environment(PYTHONPATH="/given")["PYTHONPATH"].split(os.pathsep)
    assert given[0] == str(Path(manyarms.__file__).resolve().parent.parent), "nothing comes before the tree"
    assert given[2:] == ["/given", str(tmp_path)]
