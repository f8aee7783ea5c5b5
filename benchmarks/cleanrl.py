"""Our PPO against CleanRL's: one task, one set of hyper-parameters, the same environment package, seed after seed.

    git clone https://github.com/vwxyzjn/cleanrl && git -C cleanrl checkout fe8d8a03c41a7ef5b523e2e354bd01c363e786bb
    python benchmarks/cleanrl.py --cleanrl cleanrl/cleanrl/ppo_continuous_action.py  # docs/results/cleanrl.*
    python benchmarks/cleanrl.py --cleanrl … --out /tmp/look --seeds 1 --updates 5   # a quick look

The release of CleanRL on PyPI (0.4.8, of 2021) holds an older file for another Gym, so the file is taken from its
repository. It runs unchanged, in an environment of its own with the Gymnasium it asks for; our workers run in that
interpreter too and build their environment with CleanRL's own `make_env`. Before training, one update is compared
number by number: the same weights, batch and order of minibatches, given to both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cleanrl_page import COMMIT, ENDING, LIKE, OURS, PEER, final, markdown
from vector import interpreter

import manyarms
from manyarms.algorithms.ppo import PPO
from manyarms.learning import learner as learning
from manyarms.learning.learner import Learner, LearnerConfig, OptimConfig
from manyarms.learning.samples import Layout, Samples
from manyarms.learning.trainer import Trainer, TrainerConfig
from manyarms.policies import make_trainable
from manyarms.policies.trainable import TrainablePolicy
from manyarms.rollout import Episode, Runner, Steps
from manyarms.vector import EpisodeId

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results"
SHA256 = "326dd8678bf9cc51abec833eb551ef2409a3804d604b689e1f0a084eca41f655"

#: CleanRL's pins where they matter to the task: Gymnasium and MuJoCo.
_PEER = (
    *("gymnasium==0.29.1", "mujoco==2.3.3", "imageio==2.37.0", "numpy==1.26.4"),
    *("torch==2.13.0", "tensorboard==2.20.0", "tyro==0.9.26", "setuptools<81"),
)
_PLOTTING = ("matplotlib==3.11.2",)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

#: Where CleanRL keeps what ours keeps under another name.
_WEIGHTS = {
    "torso.layers.0": "actor_mean.0",
    "torso.layers.2": "actor_mean.2",
    "head.mean": "actor_mean.4",
    "critic_torso.layers.0": "critic.0",
    "critic_torso.layers.2": "critic.2",
    "value.0": "critic.4",
}


@dataclass(frozen=True)
class CleanrlBenchmark:
    """What to compare."""

    cleanrl: Path
    """CleanRL's ppo_continuous_action.py."""
    env_id: str = "Reacher-v4"
    """Episodes must all have the same length, and actions lie in -1..1."""
    episode_steps: int = 50
    updates: int = 40
    episodes_per_update: int = 40
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    sides: tuple[str, ...] = (PEER, LIKE, ENDING, OURS)
    last: float = 0.1
    """The final return is the mean over this share of the episodes, the last ones."""
    resume: bool = False
    """Keep what cleanrl.json holds of runs with the same settings."""
    plot: bool = True
    out: Path = RESULTS

    @property
    def batch(self) -> int:
        return self.episodes_per_update * self.episode_steps

    @property
    def env_steps(self) -> int:
        return self.updates * self.batch


@dataclass(frozen=True)
class Hyperparameters:
    """CleanRL's defaults, but for the size of a batch."""

    lr: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    minibatch: int = 64
    epochs: int = 10
    clip: float = 0.2
    value_coef: float = 0.5
    max_grad_norm: float = 0.5


HYPER = Hyperparameters()


# -- CleanRL ----------------------------------------------------------------------------------------------------------


def peer_options(config: CleanrlBenchmark, seed: int, env_steps: int) -> list[str]:
    """Return the command line of CleanRL's file."""
    options = {
        "env-id": config.env_id,
        "seed": seed,
        "total-timesteps": env_steps,
        "num-envs": 1,
        "num-steps": config.batch,
        # It divides rounding down, so this gives minibatches of 64 and a last one of what is left, as ours.
        "num-minibatches": config.batch // HYPER.minibatch,
        "learning-rate": HYPER.lr,
        "gamma": HYPER.gamma,
        "gae-lambda": HYPER.gae_lambda,
        "update-epochs": HYPER.epochs,
        "clip-coef": HYPER.clip,
        "vf-coef": HYPER.value_coef,
        "max-grad-norm": HYPER.max_grad_norm,
        "ent-coef": 0.0,
    }
    return [*(f"--{name}={value}" for name, value in options.items()), "--no-cuda"]


def run_peer(command: Sequence[str]) -> str:
    """Run a program in the peer's environment; return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [interpreter(_PEER), *command],
            cwd=folder,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def train_peer(config: CleanrlBenchmark, seed: int) -> tuple[list[float], float]:
    """Return the returns of all episodes, and the seconds that CleanRL says it took."""
    text = run_peer([str(config.cleanrl.resolve()), *peer_options(config, seed, config.env_steps)])
    returns = [float(number) for number in re.findall(r"episodic_return=\[?([^\]\s]+)", text)]
    speeds = re.findall(r"^SPS: (\d+)", text, re.MULTILINE)
    return returns, config.env_steps / float(speeds[-1])


# -- ours -------------------------------------------------------------------------------------------------------------


def algorithm(normalise: bool) -> PPO:
    return PPO(
        gamma=HYPER.gamma,
        gae_lambda=HYPER.gae_lambda,
        normalize_advantages=normalise,
        clip_ratio_low=HYPER.clip,
        clip_ratio_high=HYPER.clip,
        value_clip=HYPER.clip,
        huber_delta=1e6,
        value_coef=HYPER.value_coef,
        entropy_bonus=0.0,
        update_epoch=HYPER.epochs,
    )


class MinibatchLearner(Learner):
    """Normalises the advantages of each minibatch, as CleanRL."""

    def _step(
        self, samples: Samples, layout: Layout, index: np.ndarray, draw: tuple[int, int]
    ) -> dict[str, torch.Tensor]:
        advantages, part = samples.advantages.copy(), samples.advantages[index]
        advantages[index] = (part - part.mean()) / (part.std(ddof=1) + 1e-8)
        return super()._step(replace(samples, advantages=advantages), layout, index, draw)


def make_learner(envs: manyarms.VectorEnv, seed: int, by_minibatch: bool) -> Learner:
    options = {"chunk": 1, "hidden": 64, "layers": 2, "log_std": 0.0, "critic": "chunk_level", "separate_critic": True}
    policy = make_trainable("mlp", envs.simulator_spec, {**options, "seed": seed})
    optim = OptimConfig(lr=HYPER.lr, clip_grad=HYPER.max_grad_norm, schedule="linear")
    kind = MinibatchLearner if by_minibatch else Learner
    return kind(policy, algorithm(not by_minibatch), optim, LearnerConfig(HYPER.minibatch, seed=seed))


class Returns:
    """A sink that keeps what each episode earned, before rewards were normalised."""

    def __init__(self) -> None:
        self.all: list[float] = []

    def begin(self, row: int, episode: EpisodeId, text: str, observation: Mapping[str, np.ndarray]) -> None:
        pass

    def advance(self, row: int, steps: Steps) -> None:
        pass

    def end(self, row: int, episode: Episode | None) -> None:
        if episode is not None:
            self.all.append(float(np.ravel(episode.last_info["episode"]["r"])[0]))


def make_envs(config: CleanrlBenchmark, clock_ends: bool) -> manyarms.VectorEnv:
    return manyarms.make_vec(
        f"{HERE / 'cleanrl_peer.py'}:make_env",
        num_envs=1,
        python=interpreter(_PEER),
        copy=False,
        cleanrl=str(config.cleanrl.resolve()),
        env_id=config.env_id,
        gamma=HYPER.gamma,
        clock_ends=clock_ends,
    )


def train_ours(config: CleanrlBenchmark, seed: int, side: str) -> tuple[list[float], float]:
    """Return the returns of all episodes, and the seconds that training took."""
    with make_envs(config, clock_ends=side in (ENDING, LIKE)) as envs:
        learner, returns = make_learner(envs, seed, by_minibatch=side == LIKE), Returns()
        # Every run has starts of its own; the next run's begin a million later.
        plan = TrainerConfig(config.updates, config.episodes_per_update, seed=seed * 1_000_000)
        trainer = Trainer(Runner(envs, learner.policy, sinks=[returns]), learner, [None], plan)
        began = time.perf_counter()
        for _ in range(config.updates):
            trainer.step()
        return returns.all, time.perf_counter() - began


# -- one update, number by number -------------------------------------------------------------------------------------


def compare_update(config: CleanrlBenchmark) -> dict[str, float]:
    """Give both the same weights, batch and minibatches; return how far apart they end."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "recording.npz"
        command = [str(HERE / "cleanrl_peer.py"), str(config.cleanrl.resolve()), str(target)]
        run_peer(command + peer_options(config, 1, config.batch))
        with np.load(target) as archive:
            theirs = {name: archive[name] for name in archive.files}
    with make_envs(config, clock_ends=True) as envs:
        learner = make_learner(envs, 1, by_minibatch=True)
    policy = learner.policy
    with torch.no_grad():
        for mine, array in renamed(policy, theirs, "first").items():
            policy.get_parameter(mine).copy_(torch.from_numpy(array))
    first = {name: p.detach().clone().numpy() for name, p in policy.named_parameters()}
    episodes = list(as_episodes(config, theirs))
    samples, layout, _ = learner.prepare(list(enumerate(episodes)))
    with in_order(theirs["orders"]):
        learner.update(samples, 0, layout=layout)
    last = renamed(policy, theirs, "last")
    moved = max(float(np.abs(last[name] - first[name]).max()) for name in last)
    apart = max(float(np.abs(last[name] - policy.get_parameter(name).detach().numpy()).max()) for name in last)
    return {
        "optimizer_steps": learner.steps,
        "advantages_apart": float(np.abs(samples.advantages - theirs["advantages"][:, 0]).max()),
        "advantages_largest": float(np.abs(theirs["advantages"]).max()),
        "weights_moved": moved,
        "weights_apart": apart,
    }


def renamed(policy: TrainablePolicy, theirs: Mapping[str, np.ndarray], when: str) -> dict[str, np.ndarray]:
    """Return CleanRL's weights by our names: all of ours, and in our shapes."""
    found = {"head.log_std": theirs[f"{when}/actor_logstd"][0]}
    for mine, its in _WEIGHTS.items():
        found.update({f"{mine}.{part}": theirs[f"{when}/{its}.{part}"] for part in ("weight", "bias")})
    assert {name: p.shape for name, p in policy.named_parameters()} == {n: a.shape for n, a in found.items()}
    return found


def as_episodes(config: CleanrlBenchmark, theirs: Mapping[str, np.ndarray]) -> Iterator[Episode]:
    """Cut CleanRL's batch into episodes; ours keeps a log-probability for every number of an action."""
    actions = theirs["actions"][:, 0]
    for start in range(0, config.batch, config.episode_steps):
        part = slice(start, start + config.episode_steps)
        count = config.episode_steps
        # What it has is the sum; as a ratio is of the sum, it may be put into the first number.
        log_probs = np.zeros((count, 1, actions.shape[1]), np.float32)
        log_probs[:, 0, 0] = theirs["logprobs"][part, 0]
        yield Episode(
            id=EpisodeId(seed=start),
            text="",
            observations={"": theirs["obs"][part, 0]},
            final_observation={"": theirs["obs"][part.stop - 1, 0]},
            actions={"": actions[part, None]},
            rewards=theirs["rewards"][part].astype(np.float64),
            num_steps=np.ones(count, np.int64),
            extras={"chosen": actions[part, None], "log_probs": log_probs, "values": theirs["values"][part, 0]},
            success=False,
            terminated=True,
            truncated=False,
        )


@contextlib.contextmanager
def in_order(orders: np.ndarray) -> Iterator[None]:
    """Have the learner take its minibatches in a given order, one row of indices an epoch."""
    plain = learning.shuffled

    def given(count: int, size: int, seed: Sequence[int]) -> Iterator[np.ndarray]:
        for start in range(0, count, size):
            yield orders[seed[-1]][start : start + size]

    learning.shuffled = given
    try:
        yield
    finally:
        learning.shuffled = plain


def main() -> None:
    """Compare, and write the page."""
    import tyro

    config = tyro.cli(CleanrlBenchmark)
    torch.set_num_threads(1)
    if hashlib.sha256(config.cleanrl.read_bytes()).hexdigest() != SHA256:
        print(f"{config.cleanrl} is not that of commit {COMMIT}", file=sys.stderr)
    interpreter(_PEER)  # installing is not measuring
    config.out.mkdir(parents=True, exist_ok=True)
    source = config.out / "cleanrl.json"
    settings = {**asdict(config), "cleanrl": COMMIT, "out": None, "resume": None}
    found: dict[str, Any] = {
        "config": settings,
        "hyperparameters": asdict(HYPER),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "peer": list(_PEER)},
        "update": {},
        "runs": {side: {} for side in config.sides},
    }
    if config.resume and source.exists():
        before = json.loads(source.read_text())
        unlike = [k for k in settings if k not in ("seeds", "sides", "plot") and settings[k] != before["config"][k]]
        if unlike:
            sys.exit(f"{source} was made with another {', '.join(unlike)}")
        found["update"], found["runs"] = before["update"], {**found["runs"], **before["runs"]}
    if not found["update"]:
        found["update"] = compare_update(config)
        print(found["update"], flush=True)
    for seed in config.seeds:
        for side in config.sides:
            if str(seed) in found["runs"][side]:
                continue
            returns, seconds = train_peer(config, seed) if side == PEER else train_ours(config, seed, side)
            curve = np.reshape(returns, (config.updates, config.episodes_per_update)).mean(1)
            run = {"curve": [round(float(value), 3) for value in curve], "seconds": round(seconds, 1)}
            found["runs"][side][str(seed)] = run
            source.write_text(json.dumps(found, indent=1) + "\n")
            print(f"seed {seed}, {side}: {final(run, settings):.2f} in {seconds:.0f} s", flush=True)
    source.write_text(json.dumps(found, indent=1) + "\n")
    (config.out / "cleanrl.md").write_text(markdown(found))
    if config.plot:
        command = [interpreter(_PLOTTING), str(HERE / "cleanrl_plot.py"), str(source), str(config.out / "cleanrl.png")]
        subprocess.run(command, check=True)
    print(markdown(found))


if __name__ == "__main__":
    main()
