"""Settings that RLinf's and RIPT-VLA's users have in their configs and that mean nothing here, with the reason."""

from __future__ import annotations

from fnmatch import fnmatch

_OUR_PORTS = "Ray and PyTorch find free ports themselves"
_OUR_CHANNELS = "episodes stay in shared memory, there are no channels or groups of workers to name"
_OUR_ROOM = "weights leave a GPU between phases wherever cluster.component_placement has roles share it"
_NO_TEXT = "actions are chosen by a policy's head, no text is generated"

#: Dotted keys, ``*`` for one part -> why they, and what lies below them, do nothing.
_REASONS = {
    "defaults": "configs are whole files; give what differs as key=value",
    "hydra": "the run's folder is runner.logger.log_path and experiment_name",
    "cluster.num_gpus_per_node": "GPUs are counted",
    "cluster.auto_port": _OUR_PORTS,
    "cluster.ray": _OUR_PORTS,
    "runner.per_worker_log": "workers' output is kept with options.log_dir of the environments",
    "runner.seq_length": _NO_TEXT,
    "runner.max_prompt_length": _NO_TEXT,
    "runner.enable_dynamic_batch_size": "micro_batch_size bounds what is in memory at once",
    "runner.max_tokens_per_mbs": "micro_batch_size bounds what is in memory at once",
    "algorithm.kl_penalty": "there is one estimate of the distance to the reference; kl_beta weighs it",
    "algorithm.loss_agg_func": "losses are means over what was taken, at the level of logprob_type",
    "algorithm.reward_coef": "advantages are scaled by their spread",
    "algorithm.sampling_params": _NO_TEXT,
    "algorithm.length_params": _NO_TEXT,
    "algorithm.rollout_epoch": "it is env.train.rollout_epoch, or algorithm.episodes_per_step",
    "algorithm.eval_rollout_epoch": "it is env.eval.episodes",
    "algorithm.auto_reset": "a row that is free begins the next episode of the schedule",
    "algorithm.ignore_terminations": "an episode ends when its task is solved",
    "env.group_name": _OUR_CHANNELS,
    "env.enable_offload": "simulators keep what they hold",
    "env.*.auto_reset": "a row that is free begins the next episode of the schedule",
    "env.*.ignore_terminations": "an episode ends when its task is solved",
    "env.*.use_fixed_reset_state_ids": "every episode has a seed of its own; groups share theirs",
    "env.*.group_size": "it is algorithm.group_size",
    "rollout.group_name": _OUR_CHANNELS,
    "rollout.channel": _OUR_CHANNELS,
    "rollout.generation_backend": _NO_TEXT,
    "rollout.enable_offload": _OUR_ROOM,
    "rollout.recompute_logprobs": "log-probabilities are those with which actions were drawn",
    "rollout.model": "the policy that plays is the one that learns: actor.model",
    "actor.group_name": _OUR_CHANNELS,
    "actor.channel": _OUR_CHANNELS,
    "actor.enable_offload": _OUR_ROOM,
    "actor.tokenizer": _NO_TEXT,
    "actor.fsdp_config": "actor.training_backend: fsdp shards weights, gradients and optimiser",
    "reward": "rewards come from the simulator",
    "critic": "the critic is the policy's value head",
    # RIPT-VLA
    "features": "environments always run side by side, in processes of their own",
    "algo.rollouts_per_env": "it is algorithm.group_size",
    "algo": "it is `algorithm` here",
    "task.num_parallel_envs": "it is env.train.total_num_envs",
    "task.benchmark_name": "it is env.train.simulator",
    "task": "tasks are env.train.tasks",
    "test": "there is no mode for tests",
}


def reason_for(key: str) -> str | None:
    """Return why a known key of others does nothing here; None: nobody knows it."""
    return next((why for known, why in _REASONS.items() if fnmatch(key, known) or fnmatch(key, f"{known}.*")), None)
