"""PPO on an arm that learns to reach a ball, from states, on a laptop.

python examples/training.py --updates 100     # some minutes; the default is only long enough to see it start
"""

from __future__ import annotations

import argparse

import torch

import manyarms
from manyarms.algorithms.ppo import PPO
from manyarms.learning.learner import Learner, LearnerConfig, OptimConfig
from manyarms.learning.trainer import Trainer, TrainerConfig
from manyarms.policies import make_trainable
from manyarms.rollout import Runner, RunnerConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=3)
    updates = parser.parse_args().updates
    torch.set_num_threads(1)
    options = {"arm_mode": "delta_ee", "cameras": [], "shaped_rewards": True, "copy": False}
    with manyarms.make_vec("tabletop/reach_target", num_envs=8, rows_per_worker=4, **options) as envs:
        sees = ["gripper_pose", "task_low_dim_state"]
        options = {"chunk": 4, "hidden": 128, "critic": "chunk_level", "fields": sees}
        policy = make_trainable("mlp", envs.simulator_spec, options)
        algorithm = PPO(gamma=0.97, update_epoch=8, target_kl=0.05)
        learner = Learner(policy, algorithm, OptimConfig(lr=1e-3), LearnerConfig(global_batch_size=256))
        trainer = Trainer(Runner(envs, policy, RunnerConfig()), learner, ["reach_target"], TrainerConfig(updates, 64))
        for _ in range(updates):
            found = trainer.step()
            print(
                f"update {trainer.iteration}: success {100 * found['env/success_once']:.0f} %, "
                f"return {found['env/return']:.2f}, {found['throughput/env_steps_per_s']:,.0f} env-steps/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
