"""Evaluation inside training: the policy as it stands, on held-out episodes, just as `manyarms eval` would judge it."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from manyarms.learning.assembly import network_for, opened, runner_config, videos_for
from manyarms.learning.checkpoint import Recipe
from manyarms.learning.config import TrainConfig
from manyarms.learning.course import Course
from manyarms.learning.parallel import give_weights
from manyarms.learning.ranks import Ranks
from manyarms.policies.trainable import TrainablePolicy
from manyarms.reporting.evaluation import held_out, results_of, tasks_of
from manyarms.reporting.live import LiveView
from manyarms.reporting.results import EpisodeResult
from manyarms.vector import VectorEnv


class Evaluator:
    """Judges the policy on held-out episodes, just as `manyarms eval` would judge its checkpoint."""

    def __init__(
        self, config: TrainConfig, recipe: Recipe, ranks: Ranks, folder: Path, stack: ExitStack, *, name: str
    ) -> None:
        """Judge in the process `name` of a run."""
        self._config, self._env, self._recipe, self._ranks = config, config.eval, recipe, ranks
        self._folder, self._stack, self._name = folder, stack, name
        self._envs: VectorEnv | None = None
        self._copied = False

    def results(self, trainer: Course) -> list[EpisodeResult]:
        """Return what came of every held-out episode, of all ranks."""
        learner = trainer.learner
        state = learner.parallel.state() if self._open(learner.policy) else {}
        with nullcontext() if state else learner.parallel.whole():
            found = self.share(learner.policy, state, trainer.iteration)
        return [result for results in self._ranks.gather(found) for result in results]

    def share(self, policy: TrainablePolicy, state: dict[str, Tensor], step: int) -> list[EpisodeResult]:
        """Play this rank's share of the held-out episodes; `state` are the weights of `policy`, if they were copied."""
        env = self._env
        if self._open(policy):
            give_weights(self._judged, state or policy.saved_state())
        assert self._envs is not None
        starts = held_out(tasks_of(self._envs), env.episodes, env.seed or 0, env.init_states)
        episodes = list(enumerate(starts))
        mine = [episodes[i] for i in self._ranks.share(len(episodes))]
        videos = videos_for(env, self._envs.simulator_spec, self._folder / "video" / "eval", step)
        runner = runner_config(self._config, keep=())
        try:
            return list(results_of(self._envs, self._judged, mine, runner, [videos] if videos else []))
        finally:
            if videos:
                videos.close()

    def _open(self, policy: TrainablePolicy) -> bool:
        """Open environments, make the policy that is judged; tell whether it needs weights of its own."""
        if self._envs is None:
            count = max(1, len(self._ranks.share(self._env.total_num_envs or 1)))
            self._envs = self._stack.enter_context(opened(self._env, count))
            recipe = replace(self._recipe, options=self._recipe.for_judging())
            spec = self._envs.simulator_spec
            twin = policy.twin(spec, recipe.options)
            self._copied = twin is None
            self._judged = twin or network_for(recipe, spec, self._config)
            if self._config.runner.logger.live:
                self._stack.enter_context(LiveView(self._envs, self._folder, f"{self._name}-eval"))
        return self._copied
