"""A run that is killed, wherever that hits it, ends with the books of a run that nothing happened to."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from manyarms.learning.folder import RunFolder
from manyarms.learning.interrupts import Interrupts
from manyarms.learning.loop import Run
from manyarms.learning.ranks import Ranks
from manyarms.learning.settings import load
from manyarms.learning.training import train
from manyarms.placement.faults import LearnersLost
from manyarms.placement.training import _run as run_in_spite_of_deaths
from manyarms.reporting.results import EpisodeResult
from training import assert_same_run, curve, in_folder, lines, written

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["manyarms.learning.training", "training"])


@dataclass(frozen=True)
class Death:
    """Where a process dies: before, within or after the `count`-th call of a method."""

    method: str
    """module:Class.method"""
    count: int = 1
    when: str = "before"


#: Everything that a run writes, and the places between.
DEATHS = {
    "before anything is written": Death("manyarms.learning.checkpoint:_write"),
    "within the first checkpoint": Death("pathlib:Path.replace", 4),
    "between the first checkpoint and the first evaluation": Death("manyarms.learning.training:LocalBackend.evaluate"),
    "within the first line of evaluations": Death("manyarms.learning.folder:RunFolder.add_evaluation", when="within"),
    "between the first evaluation and its metrics": Death("manyarms.reporting.trackers:Trackers.log"),
    "within the first line of metrics": Death("manyarms.reporting.trackers:Trackers.log", when="within"),
    "after the first line of metrics": Death("manyarms.reporting.trackers:Trackers.log", when="after"),
    "between an evaluation and its metrics": Death("manyarms.reporting.trackers:Trackers.log", 4),
    "within a line of metrics": Death("manyarms.reporting.trackers:Trackers.log", 4, "within"),
    "between metrics and their checkpoint": Death("manyarms.learning.training:LocalBackend.save", 3),
    "while an old checkpoint is dropped": Death("manyarms.learning.folder:RunFolder.drop_old_checkpoints", 3, "after"),
    "between the last evaluation and its metrics": Death("manyarms.reporting.trackers:Trackers.log", 7),
    "between the last metrics and the last checkpoint": Death("manyarms.learning.training:LocalBackend.save", 4),
    "before the report": Death("manyarms.learning.folder:RunFolder.end"),
}

#: Enough for a test that is run all the time; the others differ less from each other.
SOON = (
    "between the first checkpoint and the first evaluation",
    "between the first evaluation and its metrics",
    "within the first line of metrics",
)


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(call: Callable[..., Any], death: Death) -> Callable[..., Any]:
    """Return a method that kills its process."""
    calls = 0

    def instead(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < death.count:
            return call(*arguments, **options)
        if death.when == "within":
            folder = arguments[0].path if isinstance(arguments[0], RunFolder) else arguments[0]._path.parent
            name = "evaluations.jsonl" if isinstance(arguments[0], RunFolder) else "metrics.jsonl"
            with (folder / name).open("a") as file:
                file.write('{"step": 0, "seco')
        elif death.when == "after":
            call(*arguments, **options)
        return die()

    return instead


def train_until(death: Death, config: str, words: Sequence[str], variables: dict[str, str]) -> None:
    """Train in this process until it dies, or to the end."""
    os.environ.update(variables)
    module, _, name = death.method.partition(":")
    owner: Any = importlib.import_module(module)
    *way, last = name.split(".")
    for part in way:
        owner = getattr(owner, part)
    setattr(owner, last, dying(getattr(owner, last), death))
    train(load(config, words), resume=True)


def killed(death: Death, config: str, words: Sequence[str], ranks: int = 1) -> None:
    """Train in processes of their own that die, all of them, as on a machine that goes down."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        arguments = (death if rank == 0 else Death("manyarms.learning.folder:_now"), config, list(words), variables)
        processes.append(FORKS.Process(target=train_until, args=arguments))
    with ExitStack() as stack:
        for process in processes:
            process.start()
            stack.callback(process.join, 60)
            stack.callback(process.kill)
        processes[0].join(300)
        assert processes[0].exitcode == -signal.SIGKILL, "it had to die, or the test shows nothing"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    tmp_path = tmp_path_factory.mktemp("undisturbed")
    return train(load(written(tmp_path), in_folder(tmp_path))).folder


@pytest.mark.parametrize(
    "where", [pytest.param(where, marks=() if where in SOON else pytest.mark.slow) for where in DEATHS]
)
def test_a_run_keeps_the_same_books_wherever_it_is_killed(where: str, undisturbed: Path, tmp_path: Path) -> None:
    config, words = written(tmp_path), in_folder(tmp_path)
    if "dropped" in where:
        words.append("runner.keep_checkpoints=1")
    killed(DEATHS[where], config, words)
    train(load(config, words), resume=True)
    assert_same_run(tmp_path / "walk", undisturbed)
    assert [line["step"] for line in lines(tmp_path / "walk")] == list(range(7))
    steps = [json.loads(text)["step"] for text in (tmp_path / "walk" / "evaluations.jsonl").read_text().splitlines()]
    assert steps == [0, 3, 6]


def test_a_run_that_was_cloned_first_keeps_the_same_books(tmp_path: Path) -> None:
    words = ["cloning.episodes=4", "cloning.expert=standins:keen", "cloning.steps=20", "runner.max_steps=1"]
    config = written(tmp_path)
    train(load(config, [*in_folder(tmp_path, "whole"), *words]))
    killed(Death("manyarms.learning.training:LocalBackend.evaluate"), config, [*in_folder(tmp_path), *words])
    assert (tmp_path / "walk" / "checkpoints" / "global_step_0").is_dir(), "it is not cloned again"
    train(load(config, [*in_folder(tmp_path), *words]), resume=True)
    assert curve(tmp_path / "walk") == curve(tmp_path / "whole")


@pytest.mark.slow
def test_ranks_that_are_killed_before_their_first_evaluation_keep_the_same_books(tmp_path: Path) -> None:
    config, words = written(tmp_path), ["runner.max_steps=1"]
    for name, deaths in (("whole", 0), ("torn", 1)):
        for _ in range(deaths):
            death = Death("manyarms.learning.folder:RunFolder.drop_old_checkpoints", when="after")
            killed(death, config, [*in_folder(tmp_path, name), *words], ranks=2)
        after = Death("manyarms.learning.folder:RunFolder.end", when="after")
        killed(after, config, [*in_folder(tmp_path, name), *words], ranks=2)
    assert curve(tmp_path / "torn") == curve(tmp_path / "whole")
    assert (tmp_path / "torn" / "evaluations.jsonl").read_text() == (
        tmp_path / "whole" / "evaluations.jsonl"
    ).read_text()


def test_a_checkpoint_is_dropped_whole_or_not_at_all(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(undisturbed, tmp_path / "walk")
    folder = RunFolder(load(written(tmp_path), in_folder(tmp_path)))

    def interrupted(path: Path, **_: Any) -> None:
        (Path(path) / "policy.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.drop_old_checkpoints(1)
    left = list(folder.checkpoints.glob("global_step_*"))
    assert left
    assert all((path / "policy.json").exists() for path in left)
    folder.drop_old_checkpoints(1)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["global_step_0", "global_step_6"]


class LosingBackend:
    """Plays and learns nothing; those who learn are lost in the first evaluation."""

    tasks: tuple[str | None, ...] = (None,)

    def __init__(self, checkpoints: Path, deaths: int) -> None:
        self._checkpoints, self._deaths = checkpoints, deaths
        self.iteration = 0

    def begin(self, start: Path | None, say: Callable[[str], None]) -> None:
        self.iteration = 0 if start is None else int(start.name.rpartition("_")[2])

    def update(self) -> dict[str, float]:
        self.iteration += 1
        return dict.fromkeys(("env/return", "env/success_once", "throughput/env_steps_per_s"), float(self.iteration))

    def evaluate(self) -> list[EpisodeResult]:
        if self._deaths:
            self._deaths -= 1
            raise LearnersLost("actor 0 is gone")
        return [EpisodeResult(0, None, 1, True, 1.0, 3, "")]

    def save(self) -> None:
        path = self._checkpoints / f"global_step_{self.iteration}"
        path.mkdir(parents=True, exist_ok=True)
        known = dict.fromkeys(("position", "env_steps", "optimizer_steps"), 0)
        (path / "trainer.json").write_text(json.dumps({"iteration": self.iteration, **known, "optimizer": []}))

    def recover(self, lost: LearnersLost) -> None:
        """Nothing is broken."""


def test_a_placed_run_whose_learners_die_in_the_first_evaluation_has_it_all_the_same(tmp_path: Path) -> None:
    settings = load(written(tmp_path), [*in_folder(tmp_path), "runner.max_steps=2"])
    folder = RunFolder(settings)
    backend: Any = LosingBackend(folder.checkpoints, deaths=1)
    with folder.claimed(), Interrupts() as interrupts:
        run_in_spite_of_deaths(Run(settings, Ranks(), folder, interrupts), backend, folder, None, 3)
    assert [line["step"] for line in lines(folder.path)] == [0, 1, 2]
    assert [line["step"] for line in lines(folder.path) if "eval/return" in line] == [0, 2]


def test_evaluating_alone_is_written_where_the_run_stands(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "walk")
    settings = load(written(tmp_path), [*in_folder(tmp_path), "runner.only_eval=true"])
    for _ in range(2):
        train(settings, resume=True)
    walk = tmp_path / "walk"
    assert (walk / "evaluations.jsonl").read_text() == (undisturbed / "evaluations.jsonl").read_text()
    assert [line["step"] for line in lines(walk)] == [*range(7), 6, 6], "step 0 keeps what it had"
