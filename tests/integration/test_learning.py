"""Learners that really learn, on worlds small enough for a test."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import manyarms
from manyarms import EpisodeId
from manyarms.algorithms import make_algorithm
from manyarms.algorithms.grpo import GRPO
from manyarms.algorithms.ppo import PPO
from manyarms.errors import ConfigError, LearningError, ManyarmsError
from manyarms.learning.batch import Batch, EpisodeSummary
from manyarms.learning.checkpoint import Recipe, latest, load, load_weights, save
from manyarms.learning.cloning import CloningConfig, clone
from manyarms.learning.course import Course
from manyarms.learning.demonstrations import demonstrations
from manyarms.learning.learner import Learner, LearnerConfig, OptimConfig
from manyarms.learning.samples import Samples, final_observations_of, observations_of, shuffled
from manyarms.learning.trainer import Trainer, TrainerConfig
from manyarms.policies import make_policy
from manyarms.policies.network import NetworkPolicy
from manyarms.policies.trainable import Batched
from manyarms.reporting.recording import RecordedEpisode
from manyarms.rollout import Episode, Runner, RunnerConfig, books
from manyarms.rollout.episode import Column, Picked
from standins import Walker


def batched(spec: Any, **options: Any) -> Batched:
    policy = make_policy("mlp", spec, {"chunk": 2, "hidden": 32, "fields": ["position"], **options})
    assert isinstance(policy, Batched)
    return policy


def network(spec: Any, **options: Any) -> NetworkPolicy:
    policy = batched(spec, **options).policy
    assert isinstance(policy, NetworkPolicy)
    return policy


def trained(adv_type: str, updates: int, seed: int = 0) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Train a walker to walk to its goal; return the metrics of every update and the weights."""
    grouped = adv_type != "gae"
    algorithm = make_algorithm(adv_type, update_epoch=4, **({"group_size": 4} if grouped else {"gamma": 0.95}))
    with manyarms.make_vec("standins:Walker", 4, rows_per_worker=2, max_episode_steps=20, goal=1.5, cameras=[]) as envs:
        policy = batched(envs.simulator_spec, value_head=not grouped, seed=seed, deterministic=True, batch_size=8)
        learner = Learner(policy, algorithm, OptimConfig(lr=3e-3), LearnerConfig(64))
        trainer = Trainer(Runner(envs, policy), learner, ["near"], TrainerConfig(updates, 32, seed=1000))
        history = [trainer.step() for _ in range(updates)]
    return history, {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("adv_type", ["gae", "grpo", "rloo"])
def test_every_algorithm_raises_the_return(adv_type: str) -> None:
    history, _ = trained(adv_type, 14)
    returns = [metrics["env/return"] for metrics in history]
    assert np.mean(returns[-3:]) > np.mean(returns[:2]) + 5.0, returns
    assert history[-1]["env/success_once"] > history[0]["env/success_once"]
    assert {"actor/loss", "actor/grad_norm", "actor/approx_kl", "actor/pg_clipfrac"} <= set(history[0])
    assert ("critic/explained_variance" in history[0]) == (adv_type == "gae")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights() -> None:
    first, second, other = trained("gae", 2)[1], trained("gae", 2)[1], trained("gae", 2, seed=1)[1]
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [0, 8], ids=["no warm-up", "inside the warm-up"])
def test_training_resumed_from_a_checkpoint_equals_training_that_went_on(warmup: int, tmp_path: Path) -> None:
    batch = 10_000 if warmup else 32  # one step per epoch: six by the checkpoint, ten in all
    settings = {"max_episode_steps": 12, "goal": 1.5, "cameras": []}
    with manyarms.make_vec("standins:Walker", 2, **settings) as envs:

        def trainer() -> Trainer:
            policy = batched(envs.simulator_spec, value_head=True, deterministic=True, batch_size=4)
            optim = OptimConfig(lr=3e-3, schedule="linear", critic_warmup_steps=warmup)
            learner = Learner(policy, PPO(update_epoch=2), optim, LearnerConfig(batch))
            return Trainer(Runner(envs, policy), learner, ["near", "far"], TrainerConfig(6, 8))

        through = trainer()
        wanted = [through.step() for _ in range(5)]
        first = trainer()
        for _ in range(3):
            first.step()
        save(tmp_path, first, Recipe("mlp"))
        (tmp_path / ".global_step_4.99").mkdir()  # what a run leaves that was killed while it wrote
        path = latest(tmp_path)
        assert path is not None
        assert path.name == "global_step_3"
        again = trainer()
        load(path, again)
        found = [again.step() for _ in range(2)]
    for metrics, other in zip(wanted[3:], found, strict=True):
        same = {name for name in metrics if metrics[name] == other[name]}
        assert {name for name in metrics if not name.startswith(("time/", "throughput/"))} <= same
    for name, tensor in through.learner.policy.state_dict().items():
        assert torch.equal(tensor, again.learner.policy.state_dict()[name]), name


def test_a_checkpoint_of_another_policy_is_refused_by_name(tmp_path: Path) -> None:
    spec = Walker(cameras=()).spec
    small, large = network(spec), network(spec, value_head=True)
    save_file(small.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"missing: value\.0\.bias"):
        load_weights(large, load_file(tmp_path / "model.safetensors"), tmp_path)
    with pytest.raises(ConfigError, match="no checkpoint"):
        load(tmp_path, Trainer.__new__(Trainer))


def unplayed(policy: NetworkPolicy) -> Course:
    algorithm = GRPO(group_size=2)
    return Course(Learner(policy, algorithm), ["near"], TrainerConfig(1, 2))


def test_a_checkpoint_that_is_written_again_is_whole_whenever_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = unplayed(network(Walker(cameras=()).spec))
    path = save(tmp_path, course, Recipe("mlp"))

    def interrupted(folder: Path, **_: Any) -> None:
        for file in sorted(Path(folder).glob("*"))[:1]:
            file.unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, course, Recipe("mlp"))
    load(path, course)


def test_a_checkpoint_from_a_gpu_that_is_not_here_can_be_used(tmp_path: Path) -> None:
    spec = Walker(cameras=()).spec
    options = {"chunk": 2, "hidden": 32, "fields": ["position"], "device": "cuda:64"}
    path = save(tmp_path, unplayed(network(spec)), Recipe("mlp", options))
    made: Any = make_policy(str(path), spec)
    assert isinstance(made.policy, NetworkPolicy)


def test_a_setting_without_effect_is_an_error() -> None:
    for settings, says in (
        ({"group_size": 4}, "group_size"),
        ({"adv_type": "grpo", "group_size": 1}, "group_size is 1"),
        ({"adv_type": "grpo", "group_size": 4, "value_clip": 0.2}, "value_clip"),
        ({"logprob_type": "word_level"}, "token_level"),
        ({"gamma": 1.5}, "gamma"),
        ({"adv_type": "ppo2"}, "ppo2"),
    ):
        with pytest.raises(ManyarmsError, match=says):
            make_algorithm(**settings)  # type: ignore[arg-type]
    spec = Walker(cameras=()).spec
    with pytest.raises(ConfigError, match="estimates values"):
        Learner(network(spec), PPO())
    grouped = GRPO(group_size=2)
    with pytest.raises(ConfigError, match="uses no critic"):
        Learner(network(spec, value_head=True), grouped)
    with pytest.raises(ConfigError, match="reference"):
        Learner(network(spec), GRPO(group_size=2, kl_beta=0.1))


def played(count: int, **options: Any) -> tuple[NetworkPolicy, list[Episode]]:
    with manyarms.make_vec("standins:Walker", 2, max_episode_steps=9, cameras=[], goal=0.7) as envs:
        policy = network(envs.simulator_spec, value_head=True, **options)
        return policy, list(Runner(envs, policy, RunnerConfig()).play([EpisodeId("near", i) for i in range(count)]))


def judged(learner: Learner, episodes: list[Episode]) -> Samples:
    return learner.prepare(list(enumerate(episodes)))[0]


@pytest.mark.parametrize("level", ["token_level", "action_level", "chunk_level"])
def test_gradients_of_micro_batches_add_up_to_those_of_the_whole(level: str) -> None:
    weights = []
    reward_type = "chunk_level" if level == "chunk_level" else "action_level"
    algorithm = PPO(reward_type=reward_type, logprob_type=level, entropy_type=level, entropy_bonus=0.1, update_epoch=1)
    for micro in (None, 3):
        policy, episodes = played(6, value_type=reward_type)
        learner = Learner(policy, algorithm, config=LearnerConfig(1000, micro))
        learner.update(judged(learner, episodes), 0)
        weights.append(policy.head.mean.weight.detach().clone())
    torch.testing.assert_close(*weights, atol=1e-6, rtol=1e-4)


def test_a_gradient_that_is_not_finite_is_named_and_changes_nothing() -> None:
    policy, episodes = played(2)
    learner = Learner(policy, PPO(update_epoch=1))
    samples = judged(learner, episodes)
    samples.advantages[0] = np.nan
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    with pytest.raises(LearningError, match=r"gradient of .* is not finite"):
        learner.update(samples, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_during_the_warm_up_only_the_critic_learns() -> None:
    policy, episodes = played(4)
    learner = Learner(policy, PPO(update_epoch=1), OptimConfig(critic_warmup_steps=100))
    head = policy.head.mean.weight.detach().clone()
    assert policy.value is not None
    critic = [parameter.detach().clone() for parameter in policy.value.parameters()]
    learner.update(judged(learner, episodes), 0)
    assert torch.equal(head, policy.head.mean.weight)
    assert not any(torch.equal(old, new) for old, new in zip(critic, policy.value.parameters(), strict=True))


def test_the_actor_learns_from_the_first_step_after_the_warm_up_on() -> None:
    policy, episodes = played(4)
    learner = Learner(policy, PPO(update_epoch=1), OptimConfig(critic_warmup_steps=3), LearnerConfig(1000))
    first = policy.head.mean.weight.detach().clone()
    moved = []
    for iteration in range(4):
        learner.update(judged(learner, episodes), iteration)
        moved.append(not torch.equal(first, policy.head.mean.weight))
    assert moved == [False, False, False, True]


def test_advantages_of_actions_are_normalised_over_those_that_were_taken() -> None:
    algorithm = PPO(reward_type="action_level", logprob_type="action_level")
    policy, episodes = played(4, value_type="action_level")
    samples = judged(Learner(policy, algorithm), episodes)
    assert (samples.mask == 0).any(), "or the test shows nothing: some chunk must have been cut short"
    taken = samples.advantages[samples.mask > 0]
    assert taken.mean() == pytest.approx(0.0, abs=1e-5)
    assert taken.std() == pytest.approx(1.0, abs=1e-4)


def test_every_pass_cuts_a_batch_into_other_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, episodes = played(4)
    learner = Learner(policy, PPO(update_epoch=2), config=LearnerConfig(4))
    samples, looked_at = judged(learner, episodes), []
    evaluate = policy.evaluate

    def watched(observations: Any, chosen: Any) -> Any:
        looked_at.append({tuple(row) for row in observations.fields["position"].tolist()})
        return evaluate(observations, chosen)

    monkeypatch.setattr(policy, "evaluate", watched)
    learner.update(samples, 0)
    half = len(looked_at) // 2
    assert half > 2
    assert set.union(*looked_at[:half]) == set.union(*looked_at[half:]), "all of it in each pass"
    assert looked_at[:half] != looked_at[half:]


def test_an_update_stops_when_the_policy_has_gone_far_enough() -> None:
    policy, episodes = played(4)
    steps = {}
    for target in (1e-6, None):
        algorithm = PPO(update_epoch=6, target_kl=target)
        learner = Learner(policy, algorithm, OptimConfig(lr=1e-2), LearnerConfig(1000))
        learner.update(judged(learner, episodes), 0)
        steps[target] = learner.steps
    assert steps == {1e-6: 2, None: 6}, "nothing has changed before the first step, and enough before the second"


def test_learning_rates_follow_their_schedule() -> None:
    policy, episodes = played(2)
    for schedule, wanted in (("constant", 1.0), ("linear", 0.75), ("cosine", 0.5 + 0.5 * np.cos(np.pi / 4))):
        learner = Learner(policy, PPO(update_epoch=1), OptimConfig(2e-3, 4e-3, schedule=schedule))
        found = learner.update(judged(learner, episodes), 0, progress=0.25)
        assert found["actor/lr"] == pytest.approx(2e-3 * wanted)
        assert learner.optimizer.param_groups[1]["lr"] == pytest.approx(4e-3 * wanted), "the critic has its own"
        again = learner.update(judged(learner, episodes), 1, progress=0.25)
        assert again["actor/lr"] == found["actor/lr"], "it is counted from the first, not from the last"
    with pytest.raises(ConfigError, match="cosine"):
        OptimConfig(schedule="triangle")


def test_observations_of_episodes_line_up_with_their_decisions() -> None:
    _, episodes = played(5)
    seen, final = observations_of(episodes), final_observations_of(episodes)
    assert len(seen) == sum(len(episode.num_steps) for episode in episodes)
    assert len(final) == 5
    assert seen.steps[0] == 0
    assert final.steps.tolist() == [episode.length for episode in episodes]
    order = np.random.default_rng(0).permutation(len(seen))
    some = seen.rows(order)
    np.testing.assert_array_equal(some.fields["clock"], seen.steps[order])
    assert some.texts == [seen.texts[i] for i in order]


def test_decisions_that_lie_apart_are_put_together_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "_DECISIONS_PER_ROW", 1)
    monkeypatch.setattr(books, "_SEGMENT_BYTES", 0)  # as many segments as decisions
    _, episodes = played(5)
    assert len(cast(Picked, episodes[0].observations).parts) > 1
    copies = [pickle.loads(pickle.dumps(episode)) for episode in episodes]  # these hold their arrays themselves
    everything = np.arange(sum(len(episode.num_steps) for episode in episodes))
    for apart, whole in zip(Column.of(episodes), Column.of(copies), strict=True):
        assert apart.keys() == whole.keys()
        for name in apart:
            assert isinstance(whole[name], np.ndarray)
            np.testing.assert_array_equal(apart[name][everything[::-1]], whole[name][::-1])
            assert apart[name].shape == whole[name].shape


def test_minibatches_cover_everything_once_and_follow_their_seed() -> None:
    batches = list(shuffled(10, 4, (0, 1)))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(np.concatenate(batches).tolist()) == list(range(10))
    assert [b.tolist() for b in shuffled(10, 4, (0, 1))] == [b.tolist() for b in batches]
    assert [b.tolist() for b in shuffled(10, 4, (0, 2))] != [b.tolist() for b in batches]


def test_dynamic_sampling_drops_uniform_groups_in_schedule_order() -> None:
    batch: Batch[int] = Batch(GRPO(group_size=2), update=0, version=0, first_start=0, target=2)
    batch.take(batch.most)
    heard = [batch.add(i, EpisodeSummary("", False, reward, 1), i) for i, reward in enumerate((1, 1, 0, 1, 0, 0, 1, 0))]
    assert heard == [False] * 7 + [True]
    assert list(batch.kept_places()) == [2, 3, 6, 7]
    assert batch.payloads == {2: 2, 3: 3, 6: 6, 7: 7}, "rejected episodes are not held in memory"
    assert batch.rejected == 2


@pytest.mark.slow
def test_cloning_finds_what_the_demonstrator_does() -> None:
    rng = np.random.default_rng(0)
    recorded = []
    for i in range(30):
        position = rng.uniform(-1, 1, (11, 2))
        actions = np.stack([np.tanh(position[:-1, 0]), -position[:-1, 1]], 1).astype(np.float32)
        recorded.append(
            RecordedEpisode(
                i, EpisodeId(seed=i), "go", {"position": position}, {"": actions}, np.ones(10), i != 3, True, False
            )
        )
    assert demonstrations(recorded, 2).mask.sum() == 29 * (2 * 9 + 1), "beyond the end there is nothing to imitate"
    examples = demonstrations(recorded, 1)
    assert len(examples) == 290, "the failed one is left out"
    policy = network(Walker(cameras=()).spec, chunk=1)
    losses = list(clone(policy, examples, CloningConfig(400, 64)))
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 1.0
    chosen = policy.act(examples.observations.rows(np.arange(40)), explore=False).actions[""][:, 0]
    assert np.abs(chosen - examples.actions[:40, 0]).mean() < 0.1
    with pytest.raises(ConfigError, match="no demonstration"):
        demonstrations(recorded[3:4], 2)
