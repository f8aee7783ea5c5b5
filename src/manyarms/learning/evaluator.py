"""Evaluation inside training: the policy as it stands, on held-out episodes, just as `manyarms eval` would judge it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from manyarms.learning.assembly import opened, runner_config, videos_for
from manyarms.learning.config import TrainConfig
from manyarms.learning.course import Course
from manyarms.learning.ranks import Ranks
from manyarms.policies.trainable import Batched
from manyarms.reporting.evaluation import held_out, results_of, tasks_of
from manyarms.reporting.live import LiveView
from manyarms.reporting.results import EpisodeResult
from manyarms.vector import VectorEnv


class Evaluator:
    """Judges the policy on held-out episodes, just as `manyarms eval` would judge its checkpoint."""

    def __init__(self, config: TrainConfig, ranks: Ranks, folder: Path, stack: ExitStack, *, name: str) -> None:
        """Judge in the process `name` of a run."""
        self._config, self._env, self._ranks = config, config.eval, ranks
        self._folder, self._stack, self._name = folder, stack, name
        self._envs: VectorEnv | None = None

    def results(self, trainer: Course) -> list[EpisodeResult]:
        """Return what came of every held-out episode, of all ranks."""
        learner = trainer.learner
        with learner.parallel.whole():
            found = self.share(learner.batched, trainer.iteration)
        return [result for results in self._ranks.gather(found) for result in results]

    def share(self, policy: Batched, step: int) -> list[EpisodeResult]:
        """Play this rank's share of the held-out episodes."""
        env, envs = self._env, self._opened()
        starts = held_out(tasks_of(envs), env.episodes, env.seed or 0, env.init_states)
        episodes = list(enumerate(starts))
        mine = [episodes[i] for i in self._ranks.share(len(episodes))]
        videos = videos_for(env, envs.simulator_spec, self._folder / "video" / "eval", step)
        runner = runner_config(self._config, keep=())
        try:
            return list(results_of(envs, policy.for_evaluation(), mine, runner, [videos] if videos else []))
        finally:
            if videos:
                videos.close()

    def _opened(self) -> VectorEnv:
        """Open environments when they are first needed."""
        if self._envs is None:
            count = max(1, len(self._ranks.share(self._env.total_num_envs or 1)))
            self._envs = self._stack.enter_context(opened(self._env, count))
            if self._config.runner.logger.live:
                self._stack.enter_context(LiveView(self._envs, self._folder, f"{self._name}-eval"))
        return self._envs
