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
from vector import interpreter

import manyarms
from manyarms.algorithms import ppo
from manyarms.algorithms.config import AlgorithmConfig
from manyarms.learning import learner as learning
from manyarms.learning.learner import Learner, LearnerConfig, OptimConfig
from manyarms.learning.samples import Samples, gathered
from manyarms.learning.trainer import Trainer, TrainerConfig
from manyarms.policies import make_policy
from manyarms.policies.network import NetworkPolicy
from manyarms.rollout import Episode, Runner, Steps
from manyarms.vector import EpisodeId

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results"
COMMIT = "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"
SHA256 = "326dd8678bf9cc51abec833eb551ef2409a3804d604b689e1f0a084eca41f655"

#: CleanRL's pins where they matter to the task: Gymnasium and MuJoCo.
_PEER = (
    *("gymnasium==0.29.1", "mujoco==2.3.3", "imageio==2.37.0", "numpy==1.26.4"),
    *("torch==2.13.0", "tensorboard==2.20.0", "tyro==0.9.26", "setuptools<81"),
)
_PLOTTING = ("matplotlib==3.11.2",)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

PEER, OURS, ENDING, LIKE = "CleanRL", "manyarms", "manyarms, clock ends", "manyarms, as CleanRL"
LEGEND = {
    PEER: "`ppo_continuous_action.py`, unchanged",
    LIKE: "two things done as CleanRL does them: the environment calls it an end when the clock runs out, and "
    "advantages are normalised over each minibatch. We know of no difference that is left but random numbers and "
    "rounding",
    ENDING: "only the first of these two",
    OURS: "as it is: an episode cut short by the clock is worth what the critic says after its end",
}

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


def algorithm(normalise: bool) -> AlgorithmConfig:
    return AlgorithmConfig(
        adv_type="gae",
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

    def _step(self, samples: Samples, layout: Any, index: np.ndarray) -> dict[str, torch.Tensor]:
        advantages, part = samples.advantages.copy(), samples.advantages[index]
        advantages[index] = (part - part.mean()) / (part.std(ddof=1) + 1e-8)
        return super()._step(replace(samples, advantages=advantages), layout, index)


def make_learner(envs: manyarms.VectorEnv, seed: int, by_minibatch: bool) -> Learner:
    options = {"chunk": 1, "hidden": 64, "layers": 2, "log_std": 0.0, "value_head": True, "separate_critic": True}
    policy = make_policy("mlp", envs.simulator_spec, {**options, "seed": seed})
    assert isinstance(policy, NetworkPolicy)
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
    advantages, returns = ppo.targets(episodes, np.zeros(len(episodes)), learner.algorithm)
    samples = gathered(episodes, advantages, returns)
    with in_order(theirs["orders"]):
        learner.update(samples, 0)
    last = renamed(policy, theirs, "last")
    moved = max(float(np.abs(last[name] - first[name]).max()) for name in last)
    apart = max(float(np.abs(last[name] - policy.get_parameter(name).detach().numpy()).max()) for name in last)
    return {
        "optimizer_steps": learner.steps,
        "advantages_apart": float(np.abs(np.concatenate(advantages) - theirs["advantages"][:, 0]).max()),
        "advantages_largest": float(np.abs(theirs["advantages"]).max()),
        "weights_moved": moved,
        "weights_apart": apart,
    }


def renamed(policy: NetworkPolicy, theirs: Mapping[str, np.ndarray], when: str) -> dict[str, np.ndarray]:
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


# -- results ----------------------------------------------------------------------------------------------------------


def final(run: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    count = max(1, round(len(run["curve"]) * config["last"]))
    return float(np.mean(run["curve"][-count:]))


def finals(found: Mapping[str, Any], side: str) -> list[float]:
    return [final(run, found["config"]) for run in found["runs"][side].values()]


def markdown(found: Mapping[str, Any]) -> str:
    """Return the page."""
    config, runs = found["config"], found["runs"]
    sides = [side for side in config["sides"] if runs.get(side)]
    seeds = [str(seed) for seed in config["seeds"]]
    steps = config["updates"] * config["episodes_per_update"] * config["episode_steps"]
    lines = [
        f"| | {' | '.join(f'seed {seed}' for seed in seeds)} | mean ± deviation | seconds a run |",
        "|---|" + "---:|" * (len(seeds) + 2),
    ]
    for side in sides:
        by_seed = [f"{final(runs[side][s], config):.2f}" if s in runs[side] else "–" for s in seeds]
        values = finals(found, side)
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        seconds = np.median([run["seconds"] for run in runs[side].values()])
        lines.append(f"| {side} | {' | '.join(by_seed)} | {np.mean(values):.2f}{spread} | {seconds:.0f} |")
    parts = [
        "# PPO against CleanRL's",
        f"`{config['env_id']}`, {steps:,} env-steps, {len(seeds)} seeds, one environment, one thread. Numbers are "
        f"returns as the task gives them, before rewards are normalised: the mean over the last "
        f"{100 * config['last']:.0f} % of each run's episodes. Deviations are over seeds.",
        "\n".join(lines),
        "\n".join(f"- *{side}*: {LEGEND[side]}." for side in sides),
        *verdicts(found, sides),
        "![Returns over env-steps](cleanrl.png)",
        update_words(found["update"]) if found.get("update") else "",
        same_words(config),
        _DIFFERENT,
        _AGAIN,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def verdicts(found: Mapping[str, Any], sides: Sequence[str]) -> list[str]:
    """Say how far ours is from CleanRL, in units of CleanRL's spread."""
    if PEER not in sides or len(finals(found, PEER)) < 2:
        return []
    theirs = finals(found, PEER)
    spread = float(np.std(theirs, ddof=1))
    said = []
    for side in sides:
        ours = finals(found, side)
        if side == PEER or len(ours) < 2:
            continue
        away = float(np.mean(ours) - np.mean(theirs))
        inside = sum(min(theirs) <= value <= max(theirs) for value in ours)
        error = float(np.sqrt(np.var(ours, ddof=1) / len(ours) + np.var(theirs, ddof=1) / len(theirs)))
        said.append(
            f"*{side}* ends {away:+.2f} from CleanRL's mean: {abs(away) / spread:.1f} of CleanRL's deviations over "
            f"seeds (standard error of the difference: {error:.2f}). {inside} of its {len(ours)} seeds end between "
            f"CleanRL's worst ({min(theirs):.2f}) and best ({max(theirs):.2f})."
        )
    return said


def update_words(update: Mapping[str, float]) -> str:
    return (
        f"**One update, number by number.** From the same weights, the same batch and the same order of minibatches, "
        f"with advantages normalised over each minibatch, the two updates end at the same weights: after "
        f"{update['optimizer_steps']:.0f} steps of the optimiser, in which weights moved by up to "
        f"{update['weights_moved']:.3f}, none is more than {update['weights_apart']:.1g} from CleanRL's. Advantages "
        f"(up to {update['advantages_largest']:.2f}) agree to {update['advantages_apart']:.1g}."
    )


def same_words(config: Mapping[str, Any]) -> str:
    batch = config["episodes_per_update"] * config["episode_steps"]
    return f"""## What is the same

Gymnasium 0.29.1 and MuJoCo 2.3.3, in one virtual environment from which both run. CleanRL's own `make_env` builds the
environment on both sides: RecordEpisodeStatistics, ClipAction, NormalizeObservation, NormalizeReward, both clipped to
±10; ours has it in a worker process, where the running statistics live. Batches of {batch:,} steps are
{config["episodes_per_update"]} whole episodes for both, minibatches are of {HYPER.minibatch} (the last of an epoch has
{batch % HYPER.minibatch or HYPER.minibatch}), {HYPER.epochs} epochs an update. Two tanh networks of 64 and 64,
orthogonal first weights (√2; 0.01 for the mean, 1 for the value), a spread of actions that does not depend on the state
and begins at 1. Adam with ε = 1e-5, rate {HYPER.lr:g} falling linearly to nothing, gradients clipped to
{HYPER.max_grad_norm:g} together; γ {HYPER.gamma:g}, λ {HYPER.gae_lambda:g}, ratios and values clipped to
{HYPER.clip:g}, value loss ½ · ½ (V - R)², no entropy bonus."""


_DIFFERENT = """## What is not

- Ours normalises advantages over the batch (deviation over n, + 1e-6), CleanRL over each minibatch (over n - 1,
  + 1e-8). *as CleanRL* takes this difference away.
- When the clock ends an episode, CleanRL counts what would follow as worth nothing; ours asks the critic. *clock ends*
  and *as CleanRL* take this difference away, and with it most of what lies between the curves. A likely reason, not
  tested further: every episode here ends by the clock and observations do not tell the time, so without the critic one
  and the same state is worth much or nothing.
- CleanRL seeds the environment once and draws actions from PyTorch's generator; ours gives every episode a seed, from
  which its start and its noise follow. Seed 1 here and seed 1 there are different runs.
- Ours computes advantages in float64, CleanRL in float32. Ours has AdamW without decay, which is Adam.
- In ours a batch is whole episodes by construction. In CleanRL it is a number of steps, which are whole episodes here
  because all have the same length.
- Ours sends actions that are already within bounds and learns from those that were drawn; CleanRL has the environment
  clip them. It comes to the same where bounds are ±1; elsewhere ours scales actions from -1..1 to the bounds.

Seconds are of training alone, without the start. CleanRL steps the environment in its own process; ours hands every
single action to a worker, which does not pay with one environment. The machine was shared with other work whose load
changed from run to run, and runs were stopped and resumed: do not compare seconds.

*as CleanRL* was added after the first runs of the others had been seen. Where a side has fewer seeds than CleanRL, the
time was up; `--resume` runs those that are missing."""

_AGAIN = f"""## Again

    git clone https://github.com/vwxyzjn/cleanrl && git -C cleanrl checkout {COMMIT}
    python benchmarks/cleanrl.py --cleanrl cleanrl/cleanrl/ppo_continuous_action.py

The release on PyPI (0.4.8, of 2021) holds an older file for another Gym; it was not used. All curves are in
[cleanrl.json](cleanrl.json)."""


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
