"""Break one line of manyarms at a time, and see whether the tests notice.

python scripts/mutants.py                     # every mutant; goes on where an earlier run was stopped
python scripts/mutants.py --only vector       # those of a package, or whose id contains the word
python scripts/mutants.py --fresh --jobs 2    # forget earlier results

A mutant is an entry of scripts/mutants/<package>.toml: a text of a file, what takes its place, what a user would see of
it, and the tests that must fail. It is tried in a copy of the tree with a virtual environment of its own, so that every
process that a test starts imports the copy, whatever it makes of PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from laboratory import REPOSITORY, SOURCE, Laboratory, Ran, tracked

LISTS = REPOSITORY / "scripts" / "mutants"
RESULTS = REPOSITORY / "build" / "mutants.jsonl"

CAUGHT, SURVIVED, TIMED_OUT, ERROR = "caught", "survived", "timed out", "error"

#: Fraction of the mutants that must be caught.
WANTED = 0.9

#: A mutant may take this many times as long as its tests take without it, but always this many seconds.
_PATIENCE, _LEAST_SECONDS = 10.0, 60.0

#: How long tests may take without a mutant.
_BASELINE_SECONDS = 900.0

#: What an outcome depends on; a page of the documentation, or another mutant, changes none.
_COUNTS = ("src/", "tests/", "examples/", "benchmarks/", "requirements/", "pyproject.toml")

#: Exit codes of pytest: tests failed, were interrupted by an error while collecting, or pytest itself failed.
_FAILED = (1, 2, 3, 4)


@dataclass(frozen=True)
class Mutant:
    """One line that is broken."""

    id: str
    file: str
    """Below src/manyarms."""
    text: str
    """Stands in the file exactly once."""
    replacement: str
    breaks: str
    """What a user would see."""
    tests: tuple[str, ...]
    """Those that must catch it, as pytest names them."""

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]

    def applied(self, source: str) -> str:
        """Return the source with the mutant in it."""
        found = source.count(self.text)
        if found != 1:
            raise ValueError(f"{self.id}: its text stands {found} times in {SOURCE / self.file}, not once")
        return source.replace(self.text, self.replacement)


@dataclass(frozen=True)
class Result:
    """What became of a mutant, or of its tests without it."""

    key: str
    id: str
    outcome: str
    seconds: float
    told: str = ""
    """The test that failed first, or what went wrong."""


def mutants(folder: Path = LISTS) -> list[Mutant]:
    """Read all mutants, package by package."""
    found: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            mutant = Mutant(**{**entry, "tests": tuple(entry["tests"])})
            if mutant.package != path.stem:
                raise ValueError(f"{mutant.id} is of {mutant.package}, and does not belong in {path.name}")
            found.append(mutant)
    return found


def chosen(known: Sequence[Mutant], only: str) -> list[Mutant]:
    """Return the mutants of a package, or whose id contains a word."""
    found = [mutant for mutant in known if only in (mutant.package, mutant.id)]
    found = found or [mutant for mutant in known if only in mutant.id or only in mutant.file]
    if not found:
        sys.exit(f"no mutant is called like {only!r}; packages: {', '.join(sorted({m.package for m in known}))}")
    return found


# -- trying mutants ---------------------------------------------------------------------------------------------------


def fingerprint(files: Sequence[str]) -> str:
    """Return a name for what the outcomes depend on."""
    digest = hashlib.sha256()
    for name in files:
        if name.startswith(_COUNTS) and name != "tests/unit/test_mutants.py":
            digest.update(name.encode() + b"\0" + hashlib.sha256((REPOSITORY / name).read_bytes()).digest())
    return digest.hexdigest()


class Trial:
    """Tries mutants, and remembers what became of them."""

    def __init__(self, laboratory: Laboratory, tree: str, fresh: bool) -> None:
        self._laboratory, self._tree = laboratory, tree
        self._known = {} if fresh else read_results()
        self._lock = threading.Lock()
        self._baselines: dict[tuple[str, ...], threading.Lock] = {}

    def known(self, mutant: Mutant) -> Result | None:
        """Return what an earlier run found."""
        return self._known.get(self._key(asdict(mutant)))

    def try_out(self, mutant: Mutant) -> Result:
        """Tell whether the tests notice a mutant; without it they must pass."""
        key = self._key(asdict(mutant))
        try:
            mutant.applied((REPOSITORY / SOURCE / mutant.file).read_text())
        except (OSError, ValueError) as error:
            return Result(key, mutant.id, ERROR, 0.0, str(error))
        plain = self._without(mutant.tests)
        if plain.outcome != SURVIVED:
            return Result(key, mutant.id, ERROR, plain.seconds, f"without the mutant: {plain.told}")
        limit = max(_LEAST_SECONDS, _PATIENCE * plain.seconds)
        ran = self._laboratory.run(mutant.tests, limit, (SOURCE / mutant.file, mutant.applied))
        return self._keep(Result(key, mutant.id, _outcome(ran), round(ran.seconds, 1), ran.told))

    def _without(self, tests: tuple[str, ...]) -> Result:
        """Return how tests end without a mutant; each set of tests is run once."""
        key = self._key({"tests": tests})
        with self._lock:
            lock = self._baselines.setdefault(tests, threading.Lock())
        with lock:
            if key not in self._known:
                ran = self._laboratory.run(tests, _BASELINE_SECONDS)
                outcome = SURVIVED if ran.code == 0 and ran.passed else ERROR
                told = ran.told if ran.code else "nothing ran: all of its tests are skipped here"
                self._known[key] = self._keep(Result(key, " ".join(tests), outcome, round(ran.seconds, 1), told))
            return self._known[key]

    def _keep(self, result: Result) -> Result:
        """Write down a result at once, so that a run that is stopped goes on from there; errors are tried again."""
        if result.outcome != ERROR:
            with self._lock:
                RESULTS.parent.mkdir(parents=True, exist_ok=True)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
        return result

    def _key(self, what: Mapping[str, object]) -> str:
        words = json.dumps([self._tree, what], sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:20]


def _outcome(ran: Ran) -> str:
    """Judge a run: a process that a signal ended was broken by the mutant, but for one that something else killed."""
    if ran.code is None:
        return TIMED_OUT
    if ran.code == 0:
        return SURVIVED
    return CAUGHT if ran.code in _FAILED or (ran.code < 0 and ran.code != -signal.SIGKILL) else ERROR


def read_results() -> dict[str, Result]:
    """Return what earlier runs found, by key."""
    found: dict[str, Result] = {}
    for line in RESULTS.read_text().splitlines() if RESULTS.is_file() else ():
        with contextlib.suppress(ValueError, TypeError):  # the last line of a run that was killed
            result = Result(**json.loads(line))
            found[result.key] = result
    return found


def try_all(wanted: Sequence[Mutant], jobs: int, fresh: bool, hear: Callable[[Mutant, Result], None]) -> list[Result]:
    """Try mutants side by side; `hear` gets each result as it comes."""
    files = tracked()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        laboratory = Laboratory(Path(folder).resolve(), files, jobs)
        trial = Trial(laboratory, fingerprint(files), fresh)

        def one(mutant: Mutant) -> Result:
            result = trial.known(mutant) or trial.try_out(mutant)
            hear(mutant, result)
            return result

        pool = ThreadPoolExecutor(jobs)
        try:
            return list(pool.map(one, wanted))
        except BaseException:
            laboratory.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


# -- telling ----------------------------------------------------------------------------------------------------------


def caught(results: Sequence[Result]) -> int:
    """Count the mutants that were noticed; tests that never end notice it too."""
    return sum(result.outcome in (CAUGHT, TIMED_OUT) for result in results)


def tell(tried: Sequence[Mutant], results: Sequence[Result]) -> None:
    """Say how many were caught in each package, and which were not."""
    by_package: dict[str, list[Result]] = {}
    for mutant, result in zip(tried, results, strict=True):
        by_package.setdefault(mutant.package, []).append(result)
    _table(
        [("package", "caught", "of", "seconds"), *(_line(*item) for item in by_package.items()), _line("all", results)]
    )
    for mutant, result in zip(tried, results, strict=True):
        if result.outcome == SURVIVED:
            print(f"survived: {mutant.id} ({SOURCE / mutant.file}): {mutant.breaks}")
        elif result.outcome != CAUGHT:
            print(f"{result.outcome}: {mutant.id}: {result.told}")


def _line(name: str, results: Sequence[Result]) -> tuple[str, str, str, str]:
    return name, str(caught(results)), str(len(results)), f"{sum(result.seconds for result in results):.0f}"


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    """Draw a table in a terminal; elsewhere, print plain lines."""
    if not sys.stdout.isatty():
        print("\n".join("  ".join((row[0].ljust(14), *(cell.rjust(7) for cell in row[1:]))) for row in rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    Console().print(table)


def main() -> int:
    """Try mutants; fail when too few are caught, or one cannot be tried."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="a package, or a part of an id or of a file's name")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many at once")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where it was started in the background
        signal.signal(number, signal.default_int_handler)
    wanted = chosen(mutants(), given.only) if given.only else mutants()
    done = iter(range(1, len(wanted) + 1))

    def hear(mutant: Mutant, result: Result) -> None:
        print(
            f"{next(done)}/{len(wanted)} {result.outcome}: {mutant.id}, {result.seconds:.0f} s  {result.told}",
            flush=True,
        )

    try:
        results = try_all(wanted, max(1, given.jobs), given.fresh, hear)
    except KeyboardInterrupt:
        print("stopped; the same command goes on (without --fresh)", file=sys.stderr)
        return 130
    tell(wanted, results)
    score = caught(results) / len(results)
    print(f"{caught(results)} of {len(results)} mutants were caught: {100 * score:.1f} %")
    return int(score < WANTED or any(result.outcome == ERROR for result in results))


if __name__ == "__main__":
    sys.exit(main())
