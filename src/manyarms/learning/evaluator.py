"""Evaluation inside training: the policy as it stands, on held-out episodes, just as `manyarms eval` would judge it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from manyarms.environments import EnvConfig
from manyarms.learning.assembly import runner_config
from manyarms.learning.config import TrainConfig
from manyarms.learning.course import Course
from manyarms.learning.ranks import Ranks
from manyarms.policies.trainable import Batched
from manyarms.reporting.results import EpisodeResult, results_of
from manyarms.vector import VectorEnv


class Evaluator:
    """Judges the policy on held-out episodes, just as `manyarms eval` would judge its checkpoint."""

    def __init__(
        self, config: TrainConfig, env: EnvConfig, ranks: Ranks, folder: Path, stack: ExitStack, *, name: str
    ) -> None:
        """Evaluate in environments `env`, in the process `name` of a run."""
        self._env, self._ranks, self._folder, self._stack = env, ranks, folder, stack
        self._runner = runner_config(config, env, keep=())
        self._live = (folder, f"{name}-eval") if config.runner.logger.live else None
        self._envs: VectorEnv | None = None

    def results(self, trainer: Course) -> list[EpisodeResult]:
        """Return what came of every held-out episode, of all ranks."""
        learner = trainer.learner
        with learner.parallel.whole():
            found = self.share(learner.batched, trainer.iteration)
        return [result for results in self._ranks.gather(found) for result in results]

    def share(self, policy: Batched, step: int) -> list[EpisodeResult]:
        """Play this rank's share of the held-out episodes."""
        if self._envs is None:  # opened when they are first needed
            count = max(1, len(self._ranks.share(self._env.total_num_envs)))
            self._envs = self._stack.enter_context(self._env.open(count, live=self._live))
        episodes = list(enumerate(self._env.held_out(self._envs)))
        mine = [episodes[i] for i in self._ranks.share(len(episodes))]
        videos = self._env.videos(self._envs.simulator_spec, self._folder / "video" / "eval", f"global_step_{step}")
        try:
            return list(results_of(self._envs, policy.for_evaluation(), mine, self._runner, [videos] if videos else []))
        finally:
            if videos:
                videos.close()
