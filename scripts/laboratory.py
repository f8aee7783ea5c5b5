"""Copies of the tree to break things in, and tests that run there: all that they import is the copy.

Every copy has a virtual environment made of links to ours, in which only manyarms is another. So the processes that
tests start import the copy too, also where a test gives them a PYTHONPATH of its own.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = Path("src/manyarms")

#: A file of the tree, and what is made of its text.
Edit = tuple[Path, Callable[[str], str]]

#: Names every process of a test, wherever it has gone.
_MARK = "MANYARMS_MUTANT"


# -- copies of the tree -----------------------------------------------------------------------------------------------


def tracked() -> list[str]:
    """Return the files of the tree: what git knows, and what is new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({name for name in listed if name and (REPOSITORY / name).is_file()})


class Copy:
    """The tree in another place, whose own interpreter imports it and nothing of the original."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        self.folder = folder
        self._stamp = int(time.time())
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
        if (REPOSITORY / ".venvs").is_dir():
            (folder / ".venvs").symlink_to((REPOSITORY / ".venvs").resolve())
        self._make_environment()
        self._check()

    def _make_environment(self) -> None:
        """Make a virtual environment of links to ours, in which only manyarms is another."""
        made = self.folder / ".venv"
        venv.EnvBuilder(symlinks=True).create(made)
        ours, theirs = (Path(sysconfig.get_path("purelib", vars={"base": str(p)})) for p in (sys.prefix, made))
        for path in ours.iterdir():
            if not (path.name.startswith("_editable_impl_") or path.name == "__pycache__"):
                (theirs / path.name).symlink_to(path)
        (theirs / "manyarms.pth").write_text(f"{self.folder / 'src'}\n")
        for path in Path(sys.prefix).iterdir():
            if not (made / path.name).exists():
                (made / path.name).symlink_to(path)
        for path in (Path(sys.prefix) / "bin").iterdir():
            _copy_script(path, made / "bin" / path.name)

    def _check(self) -> None:
        """Make sure that the copy is what is imported, with and without PYTHONPATH."""
        program = "import manyarms, manyarms.workers; print(manyarms.__file__)"
        for variables in ({}, {"PYTHONPATH": str(self.folder / "tests")}):
            command = [self.folder / ".venv/bin/python", "-c", program]
            env = {**environment(self.folder, ""), **variables}
            said = subprocess.run(command, env=env, cwd="/", check=True, capture_output=True, text=True).stdout.strip()
            if Path(said) != self.folder / SOURCE / "__init__.py":
                raise RuntimeError(f"the copy {self.folder} imports {said}")
        for program in ("pytest", "manyarms"):
            first = (self.folder / ".venv/bin" / program).read_text().partition("\n")[0]
            if not first.startswith(f"#!{self.folder / '.venv/bin'}/"):
                raise RuntimeError(f"{program} of the copy {self.folder} is run by {first}")

    @contextlib.contextmanager
    def edited(self, edit: Edit | None) -> Iterator[None]:
        """Have a file changed inside."""
        if edit is None:
            yield
            return
        path = self.folder / edit[0]
        source = path.read_text()
        self._write(path, edit[1](source))
        try:
            yield
        finally:
            self._write(path, source)

    def _write(self, path: Path, source: str) -> None:
        """Write a file with a date of its own: what Python compiled of another version must not pass for it."""
        path.write_text(source)
        self._stamp += 1
        os.utime(path, (self._stamp, self._stamp))


def _copy_script(path: Path, target: Path) -> None:
    """Copy a program, to run with the interpreter beside it; what is no script becomes a link."""
    if target.exists() or target.is_symlink():
        return
    heads = {f"#!{folder}/python".encode() for folder in (path.parent, path.parent.resolve())}
    content = path.read_bytes() if path.stat().st_size < 1 << 20 else b""
    head = next(filter(content.startswith, heads), None)
    if head is None:
        target.symlink_to(path)
        return
    target.write_bytes(content.replace(head, f"#!{target.parent}/python".encode(), 1))
    target.chmod(0o755)


def environment(folder: Path, mark: str) -> dict[str, str]:
    """Return the variables that tests run with."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PATH": f"{folder / '.venv/bin'}{os.pathsep}{kept.get('PATH', os.defpath)}", _MARK: mark}


# -- running tests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """How a run of pytest ended."""

    code: int | None
    """None: it took too long."""
    seconds: float
    passed: int
    told: str


class Laboratory:
    """Copies of the tree, and what is running there."""

    def __init__(self, folder: Path, files: Sequence[str], count: int) -> None:
        self._folder = folder
        self._free: queue.Queue[Copy] = queue.Queue()
        self._stopped = threading.Event()
        self._marks: set[str] = set()
        for i in range(count):
            self._free.put(Copy(folder / f"copy-{i}", files))

    def run(self, tests: Sequence[str], limit: float, edit: Edit | None = None) -> Ran:
        """Run tests in a free copy, with a file of it changed."""
        copy = self._free.get()
        try:
            if self._stopped.is_set():
                raise KeyboardInterrupt
            with copy.edited(edit):
                return self._run(copy, tests, limit)
        finally:
            self._free.put(copy)

    def _run(self, copy: Copy, tests: Sequence[str], limit: float) -> Ran:
        mark = uuid.uuid4().hex
        # A short name: sockets are made in there, whose paths have 107 letters at most.
        temporary = Path(tempfile.mkdtemp(prefix="mutant-"))
        report = temporary / "report.xml"
        command = [copy.folder / ".venv/bin/pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        variables = {**environment(copy.folder, mark), "TMPDIR": str(temporary)}
        self._marks.add(mark)
        began = time.monotonic()
        try:
            with (temporary / "output").open("wb") as output:
                process = subprocess.Popen(
                    [*command, f"--junitxml={report}", *tests],
                    cwd=copy.folder,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                _be_first_to_go(process.pid)
                code = _ended(process, limit)
            seconds = time.monotonic() - began
            if self._stopped.is_set():
                raise KeyboardInterrupt
            passed, failed = _read(report)
            lines = (temporary / "output").read_text(errors="replace").strip().splitlines()
            return Ran(code, seconds, passed, failed or (lines[-1] if lines else ""))
        finally:
            end(mark)
            self._marks.discard(mark)
            _remove(temporary)

    def stop(self) -> None:
        """End everything that runs."""
        self._stopped.set()
        for mark in list(self._marks):
            end(mark)


def _be_first_to_go(pid: int) -> None:
    """Where memory runs out, have the kernel end this process, or what it starts, rather than anything else."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def _ended(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """Wait for the end of a process; None: it took too long, and was killed."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def _read(report: Path) -> tuple[int, str]:
    """Return how many tests passed, and the first that did not."""
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return 0, ""
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    name = f"{bad[0].get('classname', '')}::{bad[0].get('name', '')}".removeprefix("tests.") if bad else ""
    return sum(case.find("skipped") is None for case in cases) - len(bad), name


def end(mark: str) -> None:
    """Kill every process that has a mark, in whatever session it is, and what those started meanwhile."""
    for _ in range(5):
        found = [process for process in psutil.process_iter() if _is_marked(process, mark)]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not found:
            return
        psutil.wait_procs(found, timeout=5.0)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(_MARK) == mark
    return False


def _remove(folder: Path) -> None:
    """Remove a folder, with file systems that a test had no time to unmount."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mounted = line.split()[1]
        if Path(mounted).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", mounted], check=False)
    shutil.rmtree(folder, ignore_errors=True)
