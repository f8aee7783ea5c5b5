"""RLBench in many processes behind one object, `RLBenchVectorEnv`; run as a script, it measures how fast that is."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import manyarms
from flags import BenchFlags, Flags, read
from manyarms import Chunk
from manyarms.cli import answer
from manyarms.errors import ConfigError
from manyarms.learning.ranks import joined
from manyarms.vector.display import DisplayConfig

CAMERAS = ("front", "wrist")


class RLBenchVectorEnv:
    """N environments of one task, each in a process of its own, observed through shared memory.

    An environment whose episode is over begins the next one in the following call, which steps nothing in it.

    >>> with RLBenchVectorEnv(2, "ReachTarget", simulator="tabletop", rgb=False) as env:
    ...     observations = env.reset(seed=0)
    ...     hold = np.append(observations["gripper_pose"][0], 1.0)
    ...     observations, rewards, dones, infos = env.step_chunk(np.tile(hold, (2, 16, 1)))
    >>> rewards.shape, dones.shape
    ((2, 16), (2,))
    """

    def __init__(
        self,
        num_envs: int,
        task: str = "OpenDrawer",
        *,
        simulator: str = "rlbench",
        arm_mode: str = "ik",
        image_size: tuple[int, int] = (128, 128),
        rgb: bool = True,
        copy_obs: bool = True,
        render_backend: str | DisplayConfig = "xvfb",
        **options: Any,
    ) -> None:
        """Start the processes; `image_size` is height and width, `options` are those of `manyarms.make_vec`."""
        height, width = image_size
        settings = {
            "arm_mode": arm_mode,
            "cameras": list(CAMERAS) if rgb else [],
            "image_size": (width, height),
            "copy": copy_obs,
            "action_bounds": "clip",
            **_surroundings(simulator, rgb, render_backend),
        }
        self.envs = manyarms.make_vec(f"{simulator}/{task}", num_envs, **{**settings, **options})
        self.num_envs = num_envs
        self.last_chunk: Chunk | None = None
        """All that the last call brought."""

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin an episode everywhere; return arrays [N, …] by name."""
        observations, _ = self.envs.reset(seed=seed)
        return observations

    def step(self, actions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply an action [N, A] everywhere; return observations, rewards [N], dones [N] (the task ended it) and infos.

        infos["truncated"] are those that ran out of time, infos["num_steps"] how many steps each took.
        """
        observations, rewards, dones, infos = self.step_chunk(np.asarray(actions)[:, None])
        return observations, rewards[:, 0], dones, infos

    def step_chunk(
        self, actions: np.ndarray, *, cameras: Sequence[str] | None = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply K actions [N, K, A] in one call; rewards are [N, K], observations those after the last action."""
        chunk = self.last_chunk = self.envs.step_chunk(np.asarray(actions, np.float32), cameras=cameras)
        infos = {**chunk.infos, "num_steps": chunk.num_steps, "truncated": chunk.truncated, "aborted": chunk.aborted}
        return chunk.observations, chunk.rewards, chunk.terminated, infos

    def close(self) -> None:
        """End all processes and their displays."""
        self.envs.close()

    def __enter__(self) -> RLBenchVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def from_flags(flags: Flags, num_envs: int, **options: Any) -> RLBenchVectorEnv:
    """Make the environments that flags ask for."""
    filmed = flags.filmed(num_envs)
    if filmed:
        options |= {"render_every": flags.stride, "render_rows": filmed}
    if flags.simulator == "rlbench" and flags.idle_fps is not None:
        options |= {"idle_fps": flags.idle_fps}
    return RLBenchVectorEnv(
        num_envs,
        flags.task_class,
        simulator=flags.simulator,
        arm_mode=flags.mode_of_arm,
        image_size=flags.image_size,
        rgb=flags.rgb,
        render_backend=flags.render_backend,
        max_chunk=max(flags.action_chunk, 1),
        python=flags.python,
        **options,
    )


def _surroundings(simulator: str, rgb: bool, backend: str | DisplayConfig) -> dict[str, Any]:
    """Return what a simulator needs around it: CoppeliaSim's libraries, and a display when it draws."""
    if simulator != "rlbench":
        return {"env": {"MUJOCO_GL": "egl"}} if rgb and backend == "egl" else {}
    root = os.environ.get("COPPELIASIM_ROOT")
    if not root or not os.path.isdir(root):
        raise ConfigError(
            f"there is no CoppeliaSim: COPPELIASIM_ROOT is {root or 'not set'}",
            why="RLBench runs on CoppeliaSim 4.1.0, which pip cannot install",
            do="run scripts/install_coppeliasim.sh and scripts/reinstall_rlbench.sh, then manyarms doctor rlbench; "
            "or try this without CoppeliaSim: --simulator tabletop",
        )
    paths = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path]
    found: dict[str, Any] = {
        "env": {"LD_LIBRARY_PATH": os.pathsep.join([*paths, *([root] if root not in paths else [])])}
    }
    return {**found, "display": backend} if rgb else found


def main() -> int:
    """Play at random and say how fast it went."""
    from play import bench

    flags = read(BenchFlags)
    with joined() as ranks:
        bench(flags, [flags.num_envs] * ranks.world, ranks, copy=bool(flags.copy_obs), profile=True)
    return 0


if __name__ == "__main__":
    sys.exit(answer(main))
