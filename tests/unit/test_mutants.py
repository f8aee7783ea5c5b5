"""The list of mutants is sound: each breaks one place that is there, names tests that are there, and can be tried."""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
mutants: Any = importlib.import_module("mutants")
sys.path.pop()

ALL = mutants.mutants()

#: What each has six mutants of at least.
PACKAGES = (
    *("algorithms", "cli", "doctor", "learning", "placement", "policies", "reporting", "rollout", "serving"),
    *("simulators", "testing", "vector", "workers"),
)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.id)
def test_a_mutant_breaks_one_place_and_is_python_still(mutant: Any) -> None:
    source = (REPOSITORY / mutants.SOURCE / mutant.file).read_text()
    broken = mutant.applied(source)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source)), "it changes what the program does"
    assert mutant.breaks.endswith("."), "it says in a sentence what a user would see"


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.id)
def test_a_mutant_names_tests_that_are_there(mutant: Any) -> None:
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert file.startswith("tests/")
        assert not name or f"def {name.partition('[')[0]}(" in (REPOSITORY / file).read_text(), test


def test_there_are_enough_in_every_package_and_no_two_of_a_name() -> None:
    assert not [name for name, count in Counter(mutant.id for mutant in ALL).items() if count > 1]
    found = Counter(mutant.package for mutant in ALL)
    assert len(ALL) >= 100
    assert not [package for package in PACKAGES if found[package] < 6]
    files = {mutant.file for mutant in ALL}
    for part in ("tabletop", "libero", "rlbench", "behavior", "gymnasium"):
        assert any(file.startswith(f"simulators/{part}") for file in files), part
    ours = {path.name for path in (REPOSITORY / mutants.SOURCE).iterdir() if (path / "__init__.py").is_file()}
    assert ours == set(PACKAGES), "a new package needs mutants too"


def test_a_text_that_has_moved_is_an_error() -> None:
    for source in ("", f"{ALL[0].text}\n{ALL[0].text}"):
        with pytest.raises(ValueError, match=f"{ALL[0].id}: its text stands"):
            ALL[0].applied(source)


def test_mutants_are_chosen_by_package_id_or_file() -> None:
    assert {mutant.package for mutant in mutants.chosen(ALL, "vector")} == {"vector"}
    assert [mutant.id for mutant in mutants.chosen(ALL, "stale-infos")] == ["stale-infos"]
    assert {mutant.package for mutant in mutants.chosen(ALL, "tabletop")} == {"simulators"}
    with pytest.raises(SystemExit, match="no mutant is called like 'nobody'"):
        mutants.chosen(ALL, "nobody")


def test_a_result_that_was_being_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mutants.jsonl"
    path.write_text('{"key": "a", "id": "one", "outcome": "caught", "seconds": 1.0, "told": ""}\n{"key": "b", "id"')
    monkeypatch.setattr(mutants, "RESULTS", path)
    assert list(mutants.read_results()) == ["a"]
