"""`PI0LiberoRunner`: one policy, many environments in processes of their own, each served as soon as it is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from manyarms import EpisodeId, VectorEnv
from manyarms.errors import ConfigError, did_you_mean
from manyarms.policies.base import needs_of
from manyarms.policies.registry import find_policy
from manyarms.rollout import Episode, Runner, RunnerConfig, Steps
from pi0.ript.env.benchmarks import Benchmark, init_hash
from pi0.ript.env.policies import Served, as_policy
from pi0.ript.env.settings import setting

CreatedEnv = tuple[VectorEnv, int, int]
"""The environments, the task's place in its suite, and how many they are."""


class PI0LiberoRunner:
    """Plays tasks of a benchmark; what it yields, RIPT-VLA's rollout generator understands."""

    def __init__(
        self,
        policy: Any = None,
        benchmark_name: str = "libero_spatial",
        rollouts_per_env: int = 1,
        num_parallel_envs: int = 1,
        max_episode_length: int | None = None,
        task_names_to_use: Sequence[str] | None = None,
        config: Any = None,
        rank: int = 0,
        world_size: int = 1,
        norm_stats_path: str | None = None,
        policy_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Prepare; processes are started by `create_env`.

        An episode is cut off after `max_episode_length` steps, by default after as many as its suite is evaluated
        with. `options` are those of `manyarms.make_vec`.
        """
        if rollouts_per_env < 1 or num_parallel_envs < 1:
            raise ConfigError("rollouts_per_env and num_parallel_envs must be at least 1")
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank is {rank} of {world_size}")
        self.policy = policy
        self.benchmark_name = benchmark_name
        self.benchmark = Benchmark(benchmark_name, **options)
        self.rollouts_per_env = rollouts_per_env
        self.num_parallel_envs = num_parallel_envs
        self.max_episode_length = max_episode_length
        self.config, self.rank, self.world_size = config, rank, world_size
        self.debug = bool(setting(config, "test.debug_mode", False))
        self.verbose = self.debug or bool(setting(config, "test.verbose_logging", False))
        self._named = list(task_names_to_use or [])
        self._norm_stats_path, self._policy_options = norm_stats_path, policy_options
        self._drawn = 0
        """Starts that were drawn at random so far: no call begins where another did."""
        self.batches: list[int] = []
        """How many environments each inference of the last run served."""

    # -- tasks --------------------------------------------------------------------------------------------------------

    @property
    def env_names(self) -> list[str]:
        """The tasks of the benchmark, in its order."""
        return self.benchmark.task_names()

    task_names = env_names

    @property
    def env_names_to_run(self) -> list[str]:
        """Those that were asked for; default: all."""
        return self._named or self.env_names

    @property
    def local_env_names(self) -> list[str]:
        """Those of this rank."""
        return self.env_names_to_run[self.rank :: self.world_size]

    # -- playing ------------------------------------------------------------------------------------------------------

    def create_env(self, env_name: str, **options: Any) -> CreatedEnv:
        """Start the processes in which a task is played; whoever calls this closes them."""
        names = self.env_names
        if env_name not in names:
            raise ConfigError(f"{self.benchmark_name} has no task {env_name!r}", do=did_you_mean(env_name, names))
        count = min(self.num_parallel_envs, self.rollouts_per_env)
        wanted = needs_of(find_policy(self.policy) if isinstance(self.policy, str) else self.policy)
        limit = {} if self.max_episode_length is None else {"max_episode_steps": self.max_episode_length}
        envs = self.benchmark.open(count, [env_name], copy=False, **{**wanted, **limit, **options})
        self._say(f"{env_name}: {count} environments in processes {envs.worker_pids}")
        return envs, names.index(env_name), count

    def run_policy_in_env(
        self,
        env_name: str,
        policy: Any = None,
        all_init_states: Sequence[Any] | np.ndarray | None = None,
        render: bool = False,
        created_env: CreatedEnv | None = None,
        random_init: bool = False,
    ) -> Iterator[tuple[bool, float, dict[str, Any]]]:
        """Play `rollouts_per_env` episodes; yield of each whether it succeeded, its reward and the episode.

        They begin from `all_init_states` in turn, from the task's fixed ones by default, or from anywhere
        (`random_init`). With `render`, episode["render"] holds a picture of each decision.
        """
        envs, _, count = created_env or self.create_env(env_name)
        try:
            asked = self._served(policy, envs)
            pictures = Pictures(self.benchmark.images[0], envs) if render else None
            runner = Runner(envs, asked, self._how(count), sinks=[pictures] if pictures else [])
            starts = self._starts(env_name, all_init_states, random_init)
            for number, episode in enumerate(self._play(runner, starts, count)):
                found = as_ript(episode, self.benchmark.images)
                if pictures:
                    found["render"] = pictures.take(episode.id)
                self._say(
                    f"rollout {number}: {'success' if episode.success else 'failure'} after {episode.length} steps, "
                    f"init {found['init_hash']}"
                )
                yield episode.success, episode.total_reward, found
            self.batches = asked.batches
        finally:
            if created_env is None:
                envs.close()

    def run(
        self,
        policy: Any = None,
        n_video: int = 0,
        do_tqdm: bool = False,
        save_video_fn: Callable[[list[np.ndarray], str, int], object] | None = None,
        run_env_names: Sequence[str] | None = None,
        created_envs: Sequence[CreatedEnv] | None = None,
    ) -> dict[str, Any]:
        """Judge a policy on all tasks of this rank; return success rates under RIPT-VLA's names.

        With `save_video_fn(frames, env_name, number)`, it gets the first `n_video` rollouts of each task. Environments
        that are given (`created_envs`, one of each of `env_names_to_run`) are used as they are; ours render as
        evaluations do.
        """
        rates: dict[str, float] = {}
        successes: list[bool] = []
        rewards: list[float] = []
        wanted = self.local_env_names if run_env_names is None else list(run_env_names)
        for place, env_name in enumerate(wanted):
            if do_tqdm:
                print(f"[rank {self.rank}] task {place + 1}/{len(wanted)}: {env_name}", flush=True)
            with ExitStack() as stack:
                if created_envs is not None:
                    created = created_envs[self.env_names_to_run.index(env_name)]
                else:
                    created = self.create_env(env_name, **self.benchmark.evaluation_options())
                    stack.enter_context(created[0])
                played = self._judged(env_name, policy, created, n_video if save_video_fn else 0, save_video_fn)
            rates[env_name] = float(np.mean([success for success, _ in played]))
            successes += [success for success, _ in played]
            rewards += [reward for _, reward in played]
        return {
            "rollout": {
                "overall_success_rate": float(np.mean(successes)) if successes else 0.0,
                "overall_average_reward": float(np.mean(rewards)) if rewards else 0.0,
                "environments_solved": sum(rate > 0 for rate in rates.values()),
                "rollout_count": len(successes),
            },
            "rollout_success_rate": rates,
        }

    # -- inside -------------------------------------------------------------------------------------------------------

    def _judged(
        self, env_name: str, policy: Any, created: CreatedEnv, films: int, show: Callable[..., object] | None
    ) -> list[tuple[bool, float]]:
        """Play a task; return whether each rollout succeeded and what it earned."""
        found: list[tuple[bool, float]] = []
        rollouts = self.run_policy_in_env(env_name, policy, render=films > 0, created_env=created)
        for number, (success, reward, episode) in enumerate(rollouts):
            found.append((success, reward))
            if show is not None and number < films:
                show(episode["render"], env_name, number)
        return found

    def _play(self, runner: Runner, starts: Sequence[EpisodeId], count: int) -> Iterable[Episode]:
        """Play: a row that is free gets the next episode at once."""
        return runner.play(starts)

    def _how(self, count: int) -> RunnerConfig:
        # Two parts take turns at the policy; fewer than four environments are better served together.
        return RunnerConfig(pipeline_stage_num=2 if count >= 4 else 1)

    def _served(self, policy: Any, envs: VectorEnv) -> Served:
        policy = self.policy if policy is None else policy
        if policy is None:
            raise ConfigError("no policy was given", do="give one to the runner, or to run_policy_in_env")
        found = as_policy(policy, self.benchmark, envs.simulator_spec, self._norm_stats_path, self._policy_options)
        return Served(found, loud=self.debug)

    def _starts(self, task: str, states: Sequence[Any] | np.ndarray | None, random_init: bool) -> list[EpisodeId]:
        given = [None] if states is None else list(states)
        if not given:
            raise ConfigError("all_init_states is empty", do="leave it out to begin from the task's own")
        first = self._drawn if random_init else 0
        self._drawn += self.rollouts_per_env if random_init else 0
        return [
            self.benchmark.start(task, number, given[number % len(given)], random_init)
            for number in range(first, first + self.rollouts_per_env)
        ]

    def _say(self, text: str) -> None:
        if self.verbose:
            print(f"[rank {self.rank}] {text}", flush=True)


class Pictures:
    """Keeps what one camera saw at every decision."""

    def __init__(self, field: str, envs: VectorEnv) -> None:
        self.cameras = [str(envs.simulator_spec.observations[field].camera)]
        self._field = field
        self._frames: dict[int, list[np.ndarray]] = {}
        self._done: dict[bytes, list[np.ndarray]] = {}

    def begin(self, row: int, episode: EpisodeId, text: str, observation: Mapping[str, np.ndarray]) -> None:
        self._frames[row] = [observation[self._field].copy()]

    def advance(self, row: int, steps: Steps) -> None:
        self._frames[row].append(steps.observation[self._field].copy())

    def end(self, row: int, episode: Episode | None) -> None:
        frames = self._frames.pop(row)
        if episode is not None:
            self._done[episode.id.key] = frames

    def take(self, episode: EpisodeId) -> list[np.ndarray]:
        return self._done.pop(episode.key)


def as_ript(episode: Episode, images: tuple[str, str]) -> dict[str, Any]:
    """Return an episode as RIPT-VLA's optimisers read it: a list of each thing, an entry a decision."""
    actions, mask = episode.actions[""], episode.mask
    normalised = episode.extras.get("actions_normalized", episode.extras.get("chosen"))
    log_probs = episode.extras.get("log_probs")
    decisions = range(len(mask))
    return {
        "observations": [_seen(episode, t, images) for t in decisions],
        "actions": [actions[t] for t in decisions],  # [K, A]
        "valid": [True for _ in decisions],  # every decision was made before the episode ended
        "mask": [mask[t] for t in decisions],  # [K]: which of its actions were taken
        "actions_normalized": [None if normalised is None else normalised[t] for t in decisions],
        "log_prob": [None if log_probs is None else log_probs[t] for t in decisions],  # [K, A]
        "task_description": [episode.text for _ in decisions],
        "rewards": [episode.rewards[t] for t in decisions],  # [K]
        "init_hash": init_hash(episode.id),
        "success": episode.success,
        "total_reward": episode.total_reward,
    }


def _seen(episode: Episode, t: int, images: tuple[str, str]) -> dict[str, np.ndarray]:
    """Return an observation, with its images under RIPT-VLA's names as well."""
    found = {name: array[t] for name, array in episode.observations.items()}
    return found | {
        alias: found[name] for alias, name in zip(("full_image", "wrist_image"), images, strict=True) if name in found
    }
