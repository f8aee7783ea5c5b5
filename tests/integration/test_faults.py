"""Faults of every kind: nothing lost, nothing changed, nothing left, nobody killed in vain."""

from __future__ import annotations

import collections
import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import manyarms
from manyarms import EpisodeId
from manyarms.vector.keeper import main_of, mark_of
from standins import Misbehaving

WORKERS = 8
LENGTH = 9
CHUNK = 3
FAULTS = {
    Misbehaving.RAISE: "the gripper fell off",
    Misbehaving.WRONG_SHAPE: "the spec says",
    Misbehaving.EXIT: "ended with exit code 7",
    Misbehaving.CRASH: "was killed by SIGSEGV",
    Misbehaving.KILL: "was killed by SIGKILL",
    Misbehaving.HANG: "it is asleep",
    Misbehaving.SPIN: "it computes without end",
    Misbehaving.STOP: "it is stopped",
    Misbehaving.WRONG_RESULT: "unpack",
    Misbehaving.NONSENSE: "cannot be read",
    Misbehaving.DIE_AFTER_RESET: "was killed by SIGKILL",
    Misbehaving.BABBLE: "was killed by SIGKILL",
    Misbehaving.BEGET: "was killed by SIGKILL",
    Misbehaving.STOP_NURSERY: "was killed by SIGSEGV",
}


def actions_of(episode: int) -> np.ndarray:
    """The same actions for an episode, whenever and wherever it runs; the last number is an order to misbehave."""
    actions = np.random.default_rng(episode).uniform(-1, 1, (LENGTH, 3)).astype(np.float32)
    actions[:, 2] = 0.0
    return actions


def run_all(envs: manyarms.VectorEnv, episodes: int, faults: dict[int, tuple[int, int]]) -> dict[int, list[Any]]:
    """Run every episode to its end, again where it was aborted; `faults` misbehave in the first attempt."""
    waiting = collections.deque(range(episodes))
    running: dict[int, tuple[int, int]] = {}
    seen: dict[int, list[Any]] = {}
    attempts: collections.Counter[int] = collections.Counter()

    def begin(row: int) -> None:
        episode = waiting.popleft()
        attempts[episode] += 1
        running[row] = (episode, 0)
        seen[episode] = []
        dies = attempts[episode] == 1 and faults.get(episode, (0, 0))[0] == Misbehaving.DIE_AFTER_RESET
        envs.begin([row], EpisodeId(seed=episode, init_state="die" if dies else None, index=episode))

    for row in range(WORKERS):
        begin(row)
    while running:
        ready = envs.recv(min_rows=3)  # so that what is done waits for others, and may die meanwhile
        for i, row in enumerate(ready.rows.tolist()):
            episode, step = running.pop(row)
            if ready.aborted[i]:
                waiting.append(episode)
            else:
                steps = ready.num_steps[i]
                seen[episode].append((ready.observations["position"][i].tolist(), ready.rewards[i, :steps].tolist()))
            if ready.ended[i]:
                if waiting:
                    begin(row)
                continue
            actions = actions_of(episode)[step : step + CHUNK]
            fault, at = faults.get(episode, (0, -1))
            if attempts[episode] == 1 and step <= at < step + CHUNK:
                actions[at - step, 2] = fault
            running[row] = (episode, step + CHUNK)
            envs.send([row], actions[None])
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("count", [60, pytest.param(210, marks=pytest.mark.soak)])
def test_faults_change_nothing_and_are_all_accounted_for(count: int, tmp_path: Path) -> None:
    episodes = 2 * count + 20
    options: dict[str, Any] = {
        "folder": str(tmp_path),
        "max_episode_steps": LENGTH,
        "step_timeout": 0.4,
        "max_restarts": 30,
    }
    with manyarms.make_vec("standins:Faulty", WORKERS, **options) as envs:
        undisturbed = run_all(envs, episodes, {})
        assert envs.failures == [], "no healthy worker may be taken for a sick one"

    rng = np.random.default_rng(0)
    kinds = list(FAULTS)
    faulty = rng.choice(episodes, count, replace=False).tolist()
    faults = {episode: (kinds[i % len(kinds)], int(rng.integers(LENGTH))) for i, episode in enumerate(faulty)}
    before = collections.Counter(child.pid for child in psutil.Process().children(recursive=True))
    files = len(os.listdir("/proc/self/fd"))
    with manyarms.make_vec("standins:Faulty", WORKERS, **options) as envs:
        disturbed = run_all(envs, episodes, faults)
        failures = envs.failures

    assert disturbed == undisturbed, "every episode must come out bit for bit as without faults"
    babble = [str(error) for error in failures if "seed " not in str(error)]
    assert len(babble) == sum(kind == Misbehaving.BABBLE for kind, _ in faults.values())
    assert all("cannot be read" in text for text in babble), "what starts again and talks nonsense is told too"
    failures = [error for error in failures if str(error) not in babble]
    assert len(failures) == len(faults) == count
    by_seed = {episode: text for error in failures for episode, text in [(_seed_in(str(error)), str(error))]}
    assert sorted(by_seed) == sorted(faults)
    wrong = {e: by_seed[e] for e, (kind, _) in faults.items() if FAULTS[kind] not in by_seed[e]}
    assert wrong == {}, "every fault must be told with its own cause"
    assert len(os.listdir("/proc/self/fd")) <= files
    assert collections.Counter(c.pid for c in psutil.Process().children(recursive=True)) == before
    ours = [child for child in psutil.process_iter() if main_of(mark_of(child.pid)) == os.getpid()]
    assert [child for child in ours if child.status() != psutil.STATUS_ZOMBIE] == [], "no survivor, whoever started it"


def _seed_in(text: str) -> int:
    return int(text.partition("seed ")[2].partition(")")[0])


@pytest.mark.slow
@pytest.mark.parametrize("most", [200_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_many_steps_leave_memory_where_it_was(most: int) -> None:
    def memory() -> list[int]:
        return [psutil.Process(pid).memory_full_info().uss for pid in (os.getpid(), *envs.worker_pids)]

    with manyarms.make_vec("standins:Walker", 4, cameras=[], max_chunk=50, goal=1e9) as envs:
        actions = np.zeros((4, 50, 2), np.float32)
        envs.reset(seed=0)
        steps, baseline = 0, memory()
        while steps < most:
            steps += int(envs.step_chunk(actions).num_steps.sum())
            if steps < 100_000:
                baseline = memory()
        growth = [(now - then) / 1e6 for now, then in zip(memory(), baseline, strict=True)]
        assert max(growth) < 4, f"memory grew by {growth} MB"
