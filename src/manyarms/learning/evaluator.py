"""Evaluation inside training: the policy as it stands, on held-out episodes, just as `manyarms eval` would judge it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from manyarms.learning.assembly import network_for, opened, runner_config, videos_for
from manyarms.learning.checkpoint import Recipe
from manyarms.learning.config import TrainConfig
from manyarms.learning.ranks import Ranks
from manyarms.learning.trainer import Trainer
from manyarms.policies.network import NetworkPolicy
from manyarms.reporting.evaluation import held_out, results_of, tasks_of
from manyarms.reporting.results import EpisodeResult
from manyarms.vector import VectorEnv


class Evaluator:
    """Judges the policy on held-out episodes, just as `manyarms eval` would judge its checkpoint."""

    def __init__(self, config: TrainConfig, recipe: Recipe, ranks: Ranks, folder: Path, stack: ExitStack) -> None:
        self._config, self._env, self._recipe, self._ranks = config, config.eval, recipe, ranks
        self._folder, self._stack = folder, stack
        self._envs: VectorEnv | None = None
        self._policy: NetworkPolicy | None = None

    def results(self, trainer: Trainer) -> list[EpisodeResult]:
        """Return what came of every held-out episode, of all ranks."""
        env, config = self._env, self._config
        if self._envs is None:
            count = max(1, len(self._ranks.share(env.total_num_envs or 1)))
            self._envs = self._stack.enter_context(opened(env, count))
            judged = replace(self._recipe, options=self._recipe.for_judging())
            self._policy = network_for(judged, self._envs.simulator_spec, config)
        assert self._policy is not None
        self._policy.load_state_dict(trainer.learner.parallel.state())
        episodes = list(enumerate(held_out(tasks_of(self._envs), env.episodes, env.seed or 0)))
        mine = [episodes[i] for i in self._ranks.share(len(episodes))]
        videos = videos_for(env, self._envs.simulator_spec, self._folder / "video" / "eval", trainer.iteration)
        runner = runner_config(config, keep=())
        try:
            found = list(results_of(self._envs, self._policy, mine, runner, [videos] if videos else []))
        finally:
            if videos:
                videos.close()
        return [result for results in self._ranks.gather(found) for result in results]
