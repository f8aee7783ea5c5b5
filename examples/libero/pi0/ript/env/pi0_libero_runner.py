"""`LIBEROEnvRunner`: the same as `PI0LiberoRunner`, with all environments in step, round after round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from manyarms import EpisodeId
from manyarms.rollout import Episode, Runner, RunnerConfig
from pi0.ript.env.pi0_libero_runner_ript_vla import PI0LiberoRunner
from pi0.ript.env.settings import runner_kind


class LIBEROEnvRunner(PI0LiberoRunner):
    """As many episodes as there are environments begin together, and the next when the last of them is over.

    Of the feature flags, enable_true_parallel_envs and enable_parallel_envs give it `num_parallel_envs` processes;
    without them it plays in one.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if self.config is not None and runner_kind(self.config) == "serial":
            self.num_parallel_envs = 1

    def _play(self, runner: Runner, starts: Sequence[EpisodeId], count: int) -> Iterator[Episode]:
        for first in range(0, len(starts), count):
            yield from runner.play(starts[first : first + count])

    def _how(self, count: int) -> RunnerConfig:
        return RunnerConfig(pipeline_stage_num=1, min_rows=count)
