"""A policy of your own in many environments: a noisy expert, played, judged and counted.

python examples/rollout.py
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import manyarms
from manyarms import EpisodeId
from manyarms.policies import ActionChunk, Observations
from manyarms.policies.noise import normal
from manyarms.rollout import Runner, RunnerConfig, Scene


class NoisyExpert:
    """Does what the simulator's expert says, with noise that belongs to the episode."""

    needs: ClassVar[dict[str, Any]] = {"expert": True}
    cameras = ()  # it looks through none, so none is rendered

    def act(self, observations: Observations) -> ActionChunk:
        wanted = observations.fields["expert_action"][:, None]  # [rows, 1, 7]: a chunk of one action
        noise = normal(0, observations, wanted.shape[1:])
        return ActionChunk.of(np.clip(wanted + 0.3 * noise, -1.0, 1.0).astype(np.float32))


def hurry(scene: Scene) -> np.ndarray:
    """Charge for time: a reward from outside the simulator."""
    return np.full(len(scene), -0.01)


def main() -> None:
    tasks = ["reach_target", "push_button"]
    episodes = [EpisodeId(task, seed) for seed in range(8) for task in tasks]
    with manyarms.make_vec("tabletop", num_envs=4, tasks=tasks, arm_mode="delta_ee", **NoisyExpert.needs) as envs:
        runner = Runner(envs, NoisyExpert(), RunnerConfig(keep=("gripper_pose",)), rewards=[hurry])
        print(runner.memory)
        for episode in runner.play(episodes):
            outcome = "solved" if episode.success else "failed"
            print(f"{episode.text:40} seed {episode.id.seed}  {outcome} in {episode.length} steps")


if __name__ == "__main__":
    main()
