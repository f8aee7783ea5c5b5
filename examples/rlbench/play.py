"""Random play in all environments of a rank, what it came to, and how that is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from films import Films
from flags import Flags
from manyarms import Chunk
from manyarms.learning.ranks import Ranks
from rlbench_vec_env import RLBenchVectorEnv, from_flags

#: Arm modes whose actions are poses of the hand.
POSES = ("ik", "planning")

#: How far one action moves the hand (metres) or the joints (radians), and how far the hand may stray.
_STRIDE, _JOINT_STRIDE, _STRAY = 0.01, 0.02, 0.08

#: How often the gripper changes its mind.
_FICKLENESS = 0.05

#: Where a call's time goes, as --profile_timing names it.
PARTS = ("build", "env_call", "exec", "sim", "obs", "vid", "toggle", "other", "ipc")


class Wanderer:
    """Makes chunks of small moves, each from where the last one ended, about where the hand was at first."""

    def __init__(self, arm_mode: str, home: Mapping[str, np.ndarray], seed: int) -> None:
        self._arm_mode = arm_mode
        self._home = np.array(home["gripper_pose"][:, :3])
        self._grip = np.ones((len(self._home), 1))
        # One for each environment: what it does must not depend on how many there are in its rank.
        self._rngs = [np.random.default_rng(seed + row) for row in range(len(self._home))]

    def chunk(self, observations: Mapping[str, np.ndarray], length: int) -> np.ndarray:
        """Return actions [N, length, A] from where the arms are."""
        arm = self._poses if self._arm_mode in POSES else self._joints
        moves = arm(observations, length)
        flips = np.stack([rng.random((length, 1)) for rng in self._rngs]) < _FICKLENESS
        grips = np.where(np.cumsum(flips, axis=1) % 2, 1.0 - self._grip[:, None], self._grip[:, None])
        self._grip = grips[:, -1]
        return np.concatenate([moves, grips], axis=2).astype(np.float32)

    def _poses(self, observations: Mapping[str, np.ndarray], length: int) -> np.ndarray:
        pose = observations["gripper_pose"].astype(np.float64)
        steps = _STRIDE * np.stack([rng.standard_normal((length, 3)) for rng in self._rngs])
        where = pose[:, None, :3] + np.cumsum(steps, axis=1)
        where = np.clip(where, self._home[:, None] - _STRAY, self._home[:, None] + _STRAY)
        turned = pose[:, 3:] / np.linalg.norm(pose[:, 3:], axis=1, keepdims=True)
        return np.concatenate([where, np.repeat(turned[:, None], length, axis=1)], axis=2)

    def _joints(self, observations: Mapping[str, np.ndarray], length: int) -> np.ndarray:
        joints = observations["joint_positions"].astype(np.float64)
        steps = _JOINT_STRIDE * np.stack([rng.standard_normal((length, joints.shape[1])) for rng in self._rngs])
        if self._arm_mode == "joint_velocity":
            return steps * 10.0
        return joints[:, None] + np.cumsum(steps, axis=1)


@dataclass
class Tally:
    """What came of one rank's play."""

    num_envs: int
    env_steps: int = 0
    seconds: float = 0.0
    calls: int = 0
    done: list[bool] = field(default_factory=list)
    """Of each environment: whether the task ended an episode of it."""
    returns: list[float] = field(default_factory=list)
    """Of each environment."""
    invalid_actions: int = 0
    """Chunks in which one was refused."""
    restarts: int = 0
    parts_ms: dict[str, float] = field(default_factory=dict)
    """Mean of a call, by part; the worker's are those of the slowest."""

    def count(self, chunk: Chunk) -> None:
        """Add a call."""
        if not self.calls:
            self.done, self.returns = [False] * self.num_envs, [0.0] * self.num_envs
        self.calls += 1
        self.env_steps += int(chunk.num_steps.sum())
        self.done = [bool(was or now) for was, now in zip(self.done, chunk.terminated, strict=True)]
        self.returns = [float(old + new) for old, new in zip(self.returns, chunk.rewards.sum(axis=1), strict=True)]
        self.invalid_actions += int(np.count_nonzero(chunk.infos.get("_invalid_action", ())))


def play(env: RLBenchVectorEnv, flags: Flags, films: Films, seed: int) -> Tally:
    """Step every environment `max_steps` times, a chunk a call; on Ctrl-C return what there is."""
    tally = Tally(env.num_envs)
    observations = env.reset(seed=seed)
    wanderer = Wanderer(flags.mode_of_arm, observations, seed)
    films.begin(observations)
    if env.envs.profiler:
        env.envs.profiler.clear()
    began = time.perf_counter()
    left = flags.max_steps
    try:
        while left:
            length = min(flags.action_chunk, left)
            actions = wanderer.chunk(observations, length)
            # Where every picture is for a video, those that it will not show need not be rendered.
            cameras = () if films and length == 1 and not films.due else None
            observations, *_ = env.step_chunk(actions, cameras=cameras)
            assert env.last_chunk is not None
            films.add(env.last_chunk)
            tally.count(env.last_chunk)
            left -= length
    except KeyboardInterrupt:
        if not tally.calls:
            raise
        print(f"interrupted after {tally.calls} calls", flush=True)
    tally.seconds = time.perf_counter() - began
    tally.restarts = len(env.envs.failures)
    if env.envs.profiler and tally.calls:
        mean = env.envs.profiler.summary()["mean_ms"]
        tally.parts_ms = {part: mean[part] for part in PARTS}
    return tally


def bench(flags: Flags, counts: Sequence[int], ranks: Ranks, **options: Any) -> list[Tally]:
    """Play in every rank and tell once what all of them did; returns each rank's."""
    say = print if ranks.first else _silent
    say(f"envs_per_rank={list(counts)}")
    say(flags.summary(), flush=True)
    mine = counts[ranks.rank]
    first = flags.seed + sum(counts[: ranks.rank])
    with ExitStack() as stack:
        env = stack.enter_context(from_flags(flags, mine, **options))
        films = stack.enter_context(Films(flags, mine, ranks.rank))
        tally = play(env, flags, films, first)
    found = ranks.gather(tally)
    show(found, flags, say)
    paths = [path for group in ranks.gather(films.paths) for path in group]
    if paths:
        say(f"{len(paths)} videos in {flags.output_dir}: {', '.join(path.name for path in paths[:4])}", end="")
        say(", …" if len(paths) > 4 else "")
    return found


def show(tallies: Sequence[Tally], flags: Flags, say: Callable[..., None] = print) -> None:
    """Print what all ranks did."""
    steps = sum(tally.env_steps for tally in tallies)
    seconds = max(tally.seconds for tally in tallies)
    say(f"env_steps={steps} in {seconds:.2f} s: {steps / max(seconds, 1e-9):.1f} env-steps/s")
    if len(tallies) > 1:
        rates = [round(tally.env_steps / max(tally.seconds, 1e-9), 1) for tally in tallies]
        say(f"env_steps_per_second_per_rank={rates}")
    if tallies[0].parts_ms:
        # The calls of all ranks overlap: of each part, the mean over ranks.
        mean = {part: float(np.mean([tally.parts_ms[part] for tally in tallies])) for part in PARTS}
        calls = tallies[0].calls
        say(f"exec_s={mean['exec'] * calls / 1e3:.3f} ipc_s={mean['ipc'] * calls / 1e3:.3f} in {calls} calls")
        if flags.profile_timing:
            say("time of a call (ms): main " + _parts(mean, "build", "env_call"))
            say("  slowest worker: " + _parts(mean, "sim", "obs", "vid", "toggle", "other", "ipc"))
    done = [ended for tally in tallies for ended in tally.done]
    say(f"Success rate (done==True): {100 * np.mean(done):.1f}% ({sum(done)}/{len(done)})")
    say(f"Average return: {np.mean([value for tally in tallies for value in tally.returns]):.3f}")
    refused, restarts = sum(t.invalid_actions for t in tallies), sum(t.restarts for t in tallies)
    if refused:
        say(f"invalid_actions={refused} (chunks with an action that was not carried out)")
    if restarts:
        say(f"{restarts} workers failed and were replaced")


def _parts(mean: Mapping[str, float], *names: str) -> str:
    return " ".join(f"{name}={mean[name]:.3f}" for name in names)


def _silent(*_: object, **__: object) -> None:
    """Say nothing: another rank does."""
