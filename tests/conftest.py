"""Fixtures shared by all tests."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

hypothesis.settings.register_profile(
    "default",
    deadline=None,  # a shared machine must not fail a test by being slow
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
    print_blob=True,
)
hypothesis.settings.load_profile("default")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: children would ignore the Ctrl-C that tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", type=Path, help="a folder laid out as those in tests/data/golden, to be checked too")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mount(2) is not permitted here: no tmpfs of 64 kB can be had to fill up")
    yield small
    subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> object:
    """Every test must end the workers it started."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield None
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
    left = [c for c in left if "manyarms.workers.main" in " ".join(_command_line(c))]
    allowed = {pid for pids in _module_pids.values() for pid in pids}
    assert not [c for c in left if c.pid not in allowed], f"workers left running: {left}"


_module_pids: dict[str, list[int]] = {}


def keep_until_module_ends(name: str, pids: list[int]) -> None:
    """Say that these workers belong to a fixture that outlives a test."""
    _module_pids[name] = pids


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
