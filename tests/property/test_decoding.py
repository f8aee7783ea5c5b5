"""What others may have written, configs and what lies beside weights: it is read, or refused in words, never more."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyarms.algorithms.ppo import PPO
from manyarms.cli.options import parse_pairs
from manyarms.decoding import MOST_LEVELS, Undecodable, from_json, from_yaml
from manyarms.errors import ManyarmsError
from manyarms.learning.checkpoint import CheckpointPolicy, Recipe, load, save
from manyarms.learning.course import Course, TrainerConfig
from manyarms.learning.learner import Learner
from manyarms.learning.settings import from_mapping
from manyarms.learning.settings import load as load_settings
from manyarms.learning.variables import shown
from manyarms.policies.registry import make_policy
from standins import Walker
from training import CONFIG

SPEC = Walker(cameras=()).spec
OPTIONS = {"chunk": 2, "hidden": 8, "fields": ["position"]}

NAMES = st.one_of(st.sampled_from(["a", "runner", "logger", "lr", "options", "${", "${a}", "base", "???"]), st.text())
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, -1, 0, 2**63, 2**64]),
    st.floats(),
    st.text(),
    st.sampled_from(
        ["${oc.env:HOME}", "${.a}", "${actor}", "${", "\ud800", "\0", "../x", "1e999", "2001-99-99", "???"]
    ),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)
OFTEN = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def keys(tree: Any, prefix: str = "") -> list[str]:
    """Return all dotted keys of a tree."""
    found = []
    for key, value in tree.items():
        found += [f"{prefix}{key}", *(keys(value, f"{prefix}{key}.") if isinstance(value, dict) else [])]
    return found


KNOWN = keys(yaml.safe_load(load_settings("reach_target_ppo").text))


@OFTEN
@given(st.one_of(st.text(), st.text(alphabet="[]{}:,&*-!|>'\"\n a$?#%@", max_size=80), TREES.map(yaml.safe_dump)))
def test_any_text_is_a_config_or_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for whole in (text, f"{CONFIG}\n{text}"):
        path.write_bytes(whole.encode("utf-8", "surrogatepass"))
        with suppress(ManyarmsError):
            load_settings(str(path))


@OFTEN
@given(st.sampled_from(KNOWN), TREES)
def test_any_value_of_a_setting_is_taken_or_refused_in_words(tmp_path: Path, key: str, value: Any) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(CONFIG)
    for word in (f"{key}={json.dumps(value)}", f"{key}={value}"):
        try:
            found = load_settings(str(path), [word])
        except ManyarmsError:
            continue
        path.with_name("again.yaml").write_text(found.text)
        again = load_settings(str(path.with_name("again.yaml"))).config
        assert repr(again) == repr(found.config), "what is printed can be given back"


@OFTEN
@given(st.dictionaries(st.sampled_from(["runner", "env", "actor", "algorithm", "x"]), TREES, max_size=3))
def test_any_mapping_is_a_config_or_refused_in_words(values: dict[str, Any]) -> None:
    with suppress(ManyarmsError):
        json.dumps(shown(from_mapping(values, "a program").warnings))


@OFTEN
@given(st.text())
def test_any_option_of_the_command_line_is_taken_or_refused_in_words(text: str) -> None:
    with suppress(ManyarmsError):
        parse_pairs([f"a={text}"])


@OFTEN
@given(st.one_of(st.text(), TREES.map(json.dumps), st.integers(0, 5000).map(lambda n: "[" * n + "]" * n)))
def test_json_and_yaml_give_plain_values_within_bounds_or_one_error(text: str) -> None:
    for read in (from_json, from_yaml):
        try:
            found = read(text)
        except Undecodable:
            continue
        assert _levels(found) <= MOST_LEVELS


def _levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_levels, inner)) if inner else 0


def unplayed() -> Course:
    policy: Any = make_policy("mlp", SPEC, {**OPTIONS, "value_head": True})
    return Course(Learner(policy, PPO()), ["near"], TrainerConfig(3, 2))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an earlier version, without digests."""
    folder = tmp_path_factory.mktemp("checkpoints")
    path = save(folder, unplayed(), Recipe("mlp", {**OPTIONS, "value_head": True}))
    (path / "SHA256SUMS").unlink()
    return path


def changed(path: Path, key: str | None, value: Any) -> str:
    """Return a file's JSON in which something is another value, or missing."""
    facts = json.loads(path.read_text())
    place, _, last = (key or "").rpartition(".")
    part = facts
    for name in filter(None, place.split(".")):
        part = part[int(name) if isinstance(part, list) else name]
    if key is None:
        return json.dumps({} if value is KEEP_OUT else value)
    if value is KEEP_OUT:
        part.pop(last, None)
    else:
        part[last] = value
    return json.dumps(facts)


KEEP_OUT = object()
POSITION = [None, "iteration", "position", "env_steps", "optimizer_steps", "optimizer", "strange"]
POSITION += ["optimizer.0.lr", "optimizer.0.betas", "optimizer.0.params", "optimizer.0.strange", "optimizer.0.eps"]
POLICY = [None, "model_type", "options", "needs", "strange", "options.strange"]
POLICY += [f"options.{name}" for name in ("hidden", "chunk", "fields", "device", "layers", "words", "head", "seed")]


@OFTEN
@given(st.sampled_from(POSITION), st.one_of(TREES, st.just(KEEP_OUT)))
def test_any_position_is_gone_on_from_or_refused_in_words(written: Path, key: str | None, value: Any) -> None:
    file = written / "trainer.json"
    before = file.read_text()
    try:
        file.write_text(changed(file, key, value))
        load(written, unplayed())
    except ManyarmsError:
        pass
    finally:
        file.write_text(before)


@OFTEN
@given(st.sampled_from(POLICY), st.one_of(TREES, st.just(KEEP_OUT)))
def test_any_recipe_of_a_policy_is_made_or_refused_in_words(written: Path, key: str | None, value: Any) -> None:
    file = written / "policy.json"
    before = file.read_text()
    try:
        file.write_text(changed(file, key, value))
        CheckpointPolicy(written)(SPEC)
    except ManyarmsError:
        pass
    finally:
        file.write_text(before)


@OFTEN
@given(st.sampled_from(["trainer.json", "policy.json"]), st.binary())
def test_any_bytes_beside_weights_are_refused_in_words(written: Path, name: str, data: bytes) -> None:
    before = (written / name).read_bytes()
    (written / name).write_bytes(data)
    try:
        with pytest.raises(ManyarmsError):
            load(written, unplayed()) if name == "trainer.json" else CheckpointPolicy(written)
    finally:
        (written / name).write_bytes(before)
