"""Fixtures shared by all tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

from endings import eventually

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

# On some virtual machines whose CPU says it has AMX, oneDNN's own code for it dies (SIGILL at `tilezero`) as soon as
# PyTorch multiplies in bfloat16, and pytest with it. PyTorch reads this when it is imported, in children too.
if Path("/proc/cpuinfo").is_file() and "amx_bf16" in Path("/proc/cpuinfo").read_text():
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Tests run side by side, and so do their processes: threads that wait for work only take it from each other.
# Maths libraries read this when they are imported, in children too.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

REPOSITORY = Path(__file__).resolve().parent.parent


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a process that imports what this one does: the same manyarms, and the tests' modules.

    A PYTHONPATH that is given comes after, and then what it holds already: a test must not fall back on a copy that is
    installed somewhere.
    """
    import manyarms

    source, tests = Path(manyarms.__file__).resolve().parent.parent, REPOSITORY / "tests"
    own = [str(source), str(tests), variables.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, own))}


def away_from_the_tree() -> dict[str, str]:
    """Return the environment of a process that is to import what is installed, wherever the tree is looked for."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


#: Types of models that there are golden tests for.
_GOLDEN_KINDS = ("pi0", "openvla")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", type=Path, help="a folder laid out as those in tests/data/golden, to be checked too")


def pytest_configure(config: pytest.Config) -> None:
    given: Path | None = config.getoption("--golden")
    if given:
        golden_kind(given)


def golden_kind(folder: Path) -> str:
    """Return the type of model a golden folder is of; one that no test would look at is an error."""
    if not all((folder / file).is_file() for file in ("config.json", "oracle.npz")):
        raise pytest.UsageError(f"--golden {folder} has no config.json and oracle.npz: it is no golden folder")
    found = json.loads((folder / "config.json").read_text()).get("model_type")
    if found not in _GOLDEN_KINDS:
        raise pytest.UsageError(f"--golden {folder} is of {found!r}; known: {', '.join(_GOLDEN_KINDS)}")
    return found


def goldens(config: pytest.Config, ours: Path, kind: str) -> list[Path]:
    """Return our golden folder, and the one given with --golden where it is of this kind."""
    given = config.getoption("--golden")
    return [ours, given] if given and golden_kind(given) == kind else [ours]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a pytest with which pytest-xdist does not group tests: four Rays at once are more than a machine has."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid:
            raise pytest.UsageError(
                "this pytest-xdist does not group tests with this pytest: install requirements/dev.txt"
            )


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
    allowed = before.union(*_module_pids.values())

    def left() -> list[psutil.Process]:
        found = [child for child in psutil.Process().children(recursive=True) if child.pid not in allowed]
        return [child for child in found if "manyarms.workers.main" in " ".join(_command_line(child))]

    # On a busy machine, the kernel may be some time in ending what was killed.
    assert eventually(lambda: not left(), 20.0), f"workers left running: {left()}"


_module_pids: dict[str, list[int]] = {}


def keep_until_module_ends(name: str, pids: list[int]) -> None:
    """Say that these workers belong to a fixture that outlives a test."""
    _module_pids[name] = pids


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
