"""Roles in processes of their own on a real Ray: the same curves as one process gives, whoever dies on the way."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import environment
from manyarms.errors import ConfigError, LearningError, StartError
from manyarms.learning.settings import load
from manyarms.learning.training import train as train_in_this_process
from manyarms.placement import learner_group, rollouts
from manyarms.placement.faults import ProcessLost
from manyarms.placement.learners import LearnerRole
from manyarms.placement.roles import RolloutRole
from manyarms.placement.training import train
from placement import AHEAD, ONE_LEARNER, PLACED, SHARED, SMALL_STORE, Disturbed, all_gone, kill, run, undisturbed
from training import assert_same_run, curve, ended, in_folder, lines, started, wait_for, weights, written

ray = pytest.importorskip("ray")

# One Ray after the other: each is a dozen processes.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

SEPARATE = [f"{PLACED}env=0-1", f"{PLACED}rollout=2-3", f"{PLACED}actor=4-5"]
HYBRID = [f"{PLACED}env=0", f"{PLACED}rollout=1", f"{PLACED}actor=0-1"]
GROUPS = ["algorithm.adv_type=grpo", "algorithm.loss_type=actor", "algorithm.group_size=2"]


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    """A Ray of our own, and none of its processes left behind."""
    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=SMALL_STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()
    assert all_gone("raylet")


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one plain process."""
    return undisturbed(tmp_path_factory)


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two slots that all roles share."""
    return undisturbed(tmp_path_factory, *SHARED)


# -- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [SEPARATE, HYBRID], ids=["separate", "hybrid"])
def test_layouts_with_as_many_learners_give_the_same_curve(layout: list[str], shared: Path, tmp_path: Path) -> None:
    found = run(tmp_path, *layout)
    assert_same_run(found.folder, shared)
    assert (found.folder / "report.html").exists()


def test_one_learner_gives_the_curve_of_a_plain_process(alone: Path, shared: Path, tmp_path: Path) -> None:
    assert_same_run(run(tmp_path, *ONE_LEARNER).folder, alone)
    one, two = curve(alone)[1], curve(shared)[1]
    assert two == pytest.approx(one, rel=2e-3, abs=2e-4), "the first update, whatever the number of learners"
    assert two["env/return"] == pytest.approx(one["env/return"], rel=1e-12), "the same episodes"


def test_groups_are_kept_by_their_place_whoever_plays_them(tmp_path: Path) -> None:
    words = [*GROUPS, "runner.max_steps=4", "algorithm.filter_rewards=true", "algorithm.rewards_lower_bound=-21"]
    alone = train_in_this_process(load(written(tmp_path), [*in_folder(tmp_path, "alone"), *words]))
    placed = run(tmp_path, *ONE_LEARNER, *words, "cluster.weight_sync=broadcast", name="placed")
    assert curve(placed.folder) == curve(alone.folder)
    assert sum(line["rollout/rejected_groups"] for line in lines(placed.folder)[1:]), "or the test shows less"
    one, other = weights(alone.folder, 4), weights(placed.folder, 4)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


# -- deaths -----------------------------------------------------------------------------------------------------------


def test_deaths_of_simulators_and_of_rollout_processes_change_nothing(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deeds = Disturbed(
        monkeypatch,
        {
            1: lambda: kill("manyarms.workers.main", -1),
            2: lambda: kill("ray::RolloutRole", 0),
            4: lambda: kill("ray::RolloutRole", 1),
        },
    )
    found = run(tmp_path, *ONE_LEARNER)
    assert deeds.done
    assert_same_run(found.folder, alone)
    said = capsys.readouterr().err
    assert "rollout 0 (process" in said or "rollout 1 (process" in said
    assert "a signal ended it" in said
    assert "played again" in said


def test_the_death_of_a_learner_costs_what_was_learnt_since_the_last_checkpoint(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deed = Disturbed(monkeypatch, {3: lambda: kill("ray::LearnerRole", 1)})
    found = run(tmp_path, *HYBRID)
    assert deed.done
    assert_same_run(found.folder, shared)
    said = capsys.readouterr().err
    assert "died" in said
    assert "going on from" in said
    assert "ray.kill" not in said


# -- playing ahead ----------------------------------------------------------------------------------------------------


def test_playing_ahead_repeats_and_is_never_further_behind_than_allowed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = undisturbed(tmp_path_factory, *ONE_LEARNER, *AHEAD)
    assert [line["rollout/staleness"] for line in lines(found)] == [0, 1, 2, 2, 2, 2]
    deed = Disturbed(monkeypatch, {2: lambda: kill("ray::RolloutRole", 0)})
    again = run(tmp_path, *ONE_LEARNER, *AHEAD)
    assert deed.done
    assert_same_run(again.folder, found)
    first = lines(found)
    assert "actor/behave_weight" not in first[0], "the first update is plain PPO"
    assert all(line["actor/behave_weight"] != 1.0 for line in first[1:])


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_update_is_played_while_the_last_one_is_learnt_from_where_that_is_allowed(
    staleness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates, events = 3, tmp_path / "events"
    events.mkdir()

    def meet(mine: str, other: str | None) -> None:
        """Tell that something has begun, and go on once another thing has: so both are under way at once."""
        (events / mine).touch()
        deadline = time.monotonic() + 400
        while other is not None and not (events / other).exists():
            if time.monotonic() > deadline:
                raise LearningError(f"{other} has not begun while {mine} was under way")
            time.sleep(0.01)

    class Playing(RolloutRole):
        def play(self, version: int, *arguments: Any, **options: Any) -> Any:
            update = len(list(events.glob("play *")))
            meet(f"play {update}", f"learn {update - 1}" if update and staleness else None)
            if not staleness:
                assert len(list(events.glob("learnt *"))) == update
            found = super().play(version, *arguments, **options)
            (events / f"played {update}").touch()
            return found

    class Learning(LearnerRole):
        def learn(self) -> dict[str, float]:
            update = len(list(events.glob("learn *")))
            meet(f"learn {update}", f"play {update + 1}" if update + 1 < updates and staleness else None)
            if update + 1 < updates:
                assert (events / f"play {update + 1}").exists() == bool(staleness)
            found = super().learn()
            (events / f"learnt {update}").touch()
            return found

    monkeypatch.setattr(rollouts, "RolloutRole", Playing)
    monkeypatch.setattr(learner_group, "LearnerRole", Learning)
    words = [f"algorithm.max_staleness={staleness}", f"runner.max_steps={updates}", "runner.val_check_interval=0"]
    run(tmp_path, *HYBRID[:2], f"{PLACED}actor=0", *words)
    assert len(list(events.glob("learnt *"))) == len(list(events.glob("played *"))) == updates


def test_groups_can_be_played_ahead_too(tmp_path: Path) -> None:
    words = [*GROUPS, "algorithm.filter_rewards=true", "algorithm.rewards_lower_bound=-21", "algorithm.max_staleness=1"]
    found = run(tmp_path, *HYBRID[:2], f"{PLACED}actor=0", *words, "runner.max_steps=4")
    assert [line["rollout/staleness"] for line in lines(found.folder)[1:]] == [0, 1, 1, 1]
    assert sum(line["rollout/rejected_groups"] for line in lines(found.folder)[1:])


# -- beginnings and ends ----------------------------------------------------------------------------------------------


def test_a_warm_start_and_a_reference_are_as_in_one_process(tmp_path: Path) -> None:
    words = ["cloning.episodes=4", "cloning.expert=standins:keen", "cloning.steps=40", "algorithm.kl_beta=0.1"]
    words += [*GROUPS, "runner.max_steps=2", "env.train.options.goal=1.0"]
    alone = train_in_this_process(load(written(tmp_path), [*in_folder(tmp_path, "alone"), *words]))
    placed = run(tmp_path, *HYBRID[:2], f"{PLACED}actor=0", *words, name="placed")
    assert curve(placed.folder) == curve(alone.folder)
    assert lines(placed.folder)[1]["actor/kl_loss"] >= 0.0


def _is_agent(process: psutil.Process) -> bool:
    try:
        return process.name().endswith("Agent")
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_a_run_and_all_its_processes(number: signal.Signals, alone: Path, tmp_path: Path) -> None:
    arguments = [written(tmp_path), *in_folder(tmp_path), *ONE_LEARNER, "cluster.address=local"]
    process = started([*arguments, "runner.save_interval=-1"])
    wait_for(process, lambda: len(lines(tmp_path / "walk")) >= 3, 400)
    below = psutil.Process(process.pid).children(recursive=True)
    # Two agents of Ray's own try for a minute to tell of a driver that was killed, and then end as well.
    below = [child for child in below if number == signal.SIGINT or not _is_agent(child)]
    process.send_signal(number)
    said = ended(process, 250)
    assert len(below) > 8, "or the test looks at too few of them"
    assert not psutil.wait_procs(below, timeout=150)[1]
    done = 0
    if number == signal.SIGINT:
        assert process.returncode == 130, said
        assert "SIGINT asked for the end" in said
        assert (tmp_path / "walk" / "report.html").exists()
        done = len(lines(tmp_path / "walk")) - 1
    assert (tmp_path / "walk" / "checkpoints" / f"global_step_{done}").is_dir()
    found = run(tmp_path, *ONE_LEARNER, resume=True)
    assert_same_run(found.folder, alone)


@pytest.mark.parametrize("victim", ["raylet/raylet", "gcs/gcs_server"])
def test_the_death_of_ray_itself_is_told_with_the_command_that_goes_on(
    victim: str, alone: Path, tmp_path: Path
) -> None:
    disturbed = (
        "import sys, pytest; from manyarms.cli import main; from placement import Disturbed, kill\n"
        "import manyarms.placement.cluster; manyarms.placement.cluster._SECONDS_BETWEEN_CHECKS = 0.0\n"
        "Disturbed(pytest.MonkeyPatch(), {3: lambda: kill(sys.argv[1]).wait()}); main(['train', *sys.argv[2:]])"
    )
    words = [written(tmp_path), *in_folder(tmp_path), *ONE_LEARNER, "cluster.address=local"]
    env = environment(MARK=str(tmp_path))
    run = partial(subprocess.run, env=env, capture_output=True, text=True, timeout=400)
    process = run([sys.executable, "-c", disturbed, victim, *words])
    assert process.returncode == 2, process.stderr
    told = process.stderr[process.stderr.rindex("RayLost: ") :]
    assert "died, and the run ends with it" in told
    assert "Traceback" not in process.stderr
    command = re.search(r"do:  (manyarms train .*--resume)   # goes on from (\S+)$", told, re.MULTILINE)
    assert command is not None, told
    assert Path(command[2]) == tmp_path / "walk" / "checkpoints" / "global_step_2"
    assert not psutil.wait_procs(marked(str(tmp_path)), timeout=60)[1]
    again = run([sys.executable, "-m", *shlex.split(command[1])])
    assert again.returncode == 0, again.stderr
    assert_same_run(tmp_path / "walk", alone)


def marked(mark: str) -> list[psutil.Process]:
    """Return what was started with a mark in its environment, but for the agents of Ray's own, which take a minute."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("MARK") == mark and not _is_agent(process):
                found.append(process)
    return found


def test_what_goes_wrong_in_another_process_is_told_as_if_it_were_here(tmp_path: Path) -> None:
    placed = [*HYBRID[:2], f"{PLACED}actor=0"]
    with pytest.raises(StartError, match="No module named 'nowhere'"):
        run(tmp_path, *placed, "env.train.simulator=nowhere:Walker")
    with pytest.raises(ConfigError, match="add_value_head: true"):
        run(tmp_path, *placed, "actor.model.add_value_head=false")
    with pytest.raises(ConfigError, match="nobody waits"):
        run(tmp_path, *placed, "algorithm.max_staleness=1", "cluster.weight_sync=broadcast")


def test_a_process_that_dies_again_and_again_ends_the_run_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*HYBRID[:2], f"{PLACED}actor=0", "cluster.max_restarts=0"]
    Disturbed(monkeypatch, {1: lambda: kill("ray::RolloutRole")})
    with pytest.raises(ProcessLost, match=r"rollout 0 \(process \d+ at .*\) died") as caught:
        run(tmp_path, *words, "runner.max_steps=40")
    assert "a signal ended it" in str(caught.value)


def test_no_room_on_a_node_is_told_with_what_is_missing(tmp_path: Path) -> None:
    @ray.remote(num_cpus=3.5)
    class Guest:
        def is_there(self) -> bool:
            return True

    guest = Guest.remote()
    ray.get(guest.is_there.remote())
    try:
        with pytest.raises(StartError, match=r"node 0 .* has no room") as caught:
            run(tmp_path, *HYBRID, "cluster.wait_seconds=1")
    finally:
        ray.kill(guest)
    assert "2 CPUs wanted, 0.5 CPUs free" in str(caught.value)


def test_placement_has_to_be_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(written(tmp_path), [*in_folder(tmp_path), *HYBRID])
    with pytest.raises(ConfigError, match=r"manyarms\.placement\.training"):
        train_in_this_process(settings)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun"):
        train(settings)
    with pytest.raises(ConfigError, match="max_staleness would do nothing"):
        load(written(tmp_path), ["algorithm.max_staleness=1"])


def test_four_devices_begin_to_learn_as_one_does(alone: Path, tmp_path: Path) -> None:
    """In the hybrid layout, which takes the most processes: two that play and four that learn."""
    layout = [f"{PLACED}env=0-1", f"{PLACED}rollout=2-3", f"{PLACED}actor=0-3"]
    words = ["env.train.total_num_envs=4", "runner.max_steps=1", "runner.val_check_interval=0"]
    found = run(tmp_path, *layout, *words, "actor.optim.schedule=constant")
    one, other = curve(alone)[1], curve(found.folder)[0]
    assert other == pytest.approx({name: one[name] for name in other}, rel=2e-3, abs=2e-4)
