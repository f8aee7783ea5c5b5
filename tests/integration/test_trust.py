"""What other people's files may do here: nothing but be read. The boundary is told in docs/security.md."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import manyarms
import watched
from manyarms import cli, trust
from manyarms.errors import ConfigError, ManyarmsError
from manyarms.learning.checkpoint import CheckpointPolicy
from manyarms.learning.settings import load
from manyarms.learning.training import train
from manyarms.policies.checkpoints import inspect
from manyarms.policies.openvla_oft.folder import OftFolder
from manyarms.policies.registry import find_policy, make_policy
from manyarms.reporting.recording import Recording
from manyarms.reporting.watched import WatchedRun
from manyarms.simulators.behavior.simulator import Options as BehaviorOptions
from manyarms.simulators.libero.simulator import Options as LiberoOptions
from manyarms.simulators.libero.tasks import SuiteTask
from manyarms.simulators.rlbench.options import Options as RLBenchOptions
from manyarms.simulators.tabletop.simulator import Options as TabletopOptions
from manyarms.vector.config import VectorConfig
from oft import SPEC, STATE, golden_with_tokenizer, observed
from pi0_checkpoints import pi0_folder
from today import DATA
from training import CONFIG, in_folder, written

#: What a stranger's module does when it is imported: it tells on itself.
CODE = (
    "from pathlib import Path\nPath(__file__).with_name('ran').touch()\ndef go(*args, **kwargs): raise SystemExit(3)\n"
)


GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """Return a folder with code that must not run."""
    folder = tmp_path / "downloaded"
    folder.mkdir()
    (folder / "weights.py").write_text(CODE)
    return folder


def checkpoint(folder: Path, **changes: Any) -> Path:
    """Write what names a checkpoint's policy; weights are never asked for."""
    (folder / "policy.json").write_text(json.dumps({"model_type": "mlp", "options": {}, "needs": {}, **changes}))
    return folder


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must be refused without a traceback; return what it said."""
    assert cli.run(list(words)) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "eval": lambda folder: ["eval", "tabletop", "--policy", str(folder), "--episodes", "1"],
    "record": lambda folder: ["record", "tabletop", "--policy", str(folder), "--out", str(folder / "out")],
    "serve": lambda folder: ["serve", "tabletop", "--policy", str(folder), "--port", "0"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("attribute", ["weights.py:go", "random", "remote", "replay"])
def test_a_checkpoint_runs_no_code_and_no_policy_that_has_no_weights(
    command: str, attribute: str, stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{stranger}/{attribute}" if ":" in attribute else attribute
    said = refused(capsys, *COMMANDS[command](checkpoint(stranger, model_type=name)))
    assert "--trust-code" in said
    assert "not installed" in said
    assert not (stranger / "ran").exists()


def test_a_checkpoint_named_in_a_config_runs_no_code(
    stranger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(stranger, model_type=f"{stranger}/weights.py:go")
    config = written(tmp_path)
    for setting in (f"actor.model.model_type={folder}", f"cloning.expert={folder}"):
        cloning = ["cloning.episodes=1", "cloning.steps=1"]
        said = refused(capsys, "train", config, *in_folder(tmp_path), setting, *cloning)
        assert "--trust-code" in said
    assert not (stranger / "ran").exists()


def test_a_dry_run_lists_the_code_that_a_config_names(
    stranger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"env.train.simulator={stranger}/weights.py:go", "actor.model.model_type=my_package.nets:Net"]
    assert cli.run(["train", written(tmp_path), "--dry-run", *settings, f"env.eval.python={sys.executable}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"runs code from my_package.nets:Net, {stranger}/weights.py:go, {sys.executable}" in said
    assert cli.run(["train", "reach_target_ppo", "--dry-run"]) == 0
    assert "runs code from" not in capsys.readouterr().out
    assert not (stranger / "ran").exists()


HOSTILE_OPTIONS: dict[str, Any] = {
    "env": {"LD_PRELOAD": "x.so"},
    "log_dir": "logs",
    "trace": "trace.json",
    "python": "sh",
    "wrappers": ["weights.py:go"],
    "imports": ["weights"],
    "rename": {"a": "b"},
    "descriptions": "/etc/passwd",
    "num_envs": 3,
    "something_new": 1,
    "tasks": ["weights.py:go"],
    "task": "../weights.py:go",
    "cameras": ["/etc/passwd"],
    "image_size": {"deep": [[[[[1]]]]]},
    "task_options": {"../x": 1},
    "scene_model": "a/b",
    "display": {"backend": "xvfb", "command": "/bin/sh"},
}


@pytest.mark.parametrize("name", HOSTILE_OPTIONS)
def test_a_checkpoint_sets_only_harmless_options(
    name: str, stranger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    said = refused(capsys, *COMMANDS["eval"](checkpoint(stranger, needs={name: HOSTILE_OPTIONS[name]})))
    assert repr(name) in said
    assert "--trust-code" in said
    assert dict(os.environ) == before
    assert not {"logs", "trace.json"} & {path.name for path in tmp_path.iterdir()}, "nothing was written"


def test_options_that_describe_a_robot_and_its_cameras_are_taken(stranger: Path) -> None:
    needs = {"arm_mode": "delta_ee", "cameras": ["front"], "image_size": [64, 64], "task_options": {"radius": 0.1}}
    needs |= {"tasks": ["push_button", "libero_spatial/3"], "max_episode_steps": 50, "display": "xvfb"}
    assert CheckpointPolicy(checkpoint(stranger, needs=needs)).needs == needs


def test_whoever_trusts_a_checkpoint_gets_its_code(stranger: Path) -> None:
    folder = checkpoint(stranger, model_type=f"{stranger}/weights.py:go", needs={"trace": "t.json"})
    with pytest.raises(SystemExit, match="3"):
        find_policy(str(folder), trust_code=True)(None)
    assert (stranger / "ran").exists()


@pytest.mark.slow
def test_ones_own_policy_is_evaluated_when_its_code_is_trusted(tmp_path: Path) -> None:
    short = ["runner.max_steps=1", "runner.val_check_interval=0"]
    result = manyarms.train(written(tmp_path, CONFIG), overrides=[*in_folder(tmp_path), *short])
    last = result.folder / "checkpoints" / "global_step_1"
    with pytest.raises(ConfigError, match=r"the option 'goal'[^$]*--trust-code"):
        manyarms.evaluate("standins:Walker", policy=str(last), episodes=1, out=tmp_path / "no")
    found = manyarms.evaluate("standins:Walker", policy=str(last), episodes=1, out=tmp_path / "yes", trust_code=True)
    assert found.complete


def test_a_folder_beside_the_user_does_not_take_the_place_of_a_policy_of_ours(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(stranger, model_type=f"{stranger}/weights.py:go").rename(stranger.with_name("mlp"))
    monkeypatch.chdir(stranger.parent)
    assert find_policy("mlp").__name__ == "MlpPolicy"


# -- recordings -------------------------------------------------------------------------------------------------------


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Return a recording of one short episode."""
    options: dict[str, Any] = {"arm_mode": "delta_ee", "cameras": []}
    manyarms.record("tabletop/reach_target", policy="random", episodes=1, max_episode_steps=3, options=options)
    return Path("recording").resolve()


HOSTILE_HEADS: dict[str, dict[str, Any]] = {
    "a file": {"simulator": "weights.py:go"},
    "a module": {"simulator": "weights:go"},
    "a module of Gymnasium's": {"simulator": "gym/weights:Env-v0"},
    "no name": {"simulator": None},
    "an interpreter": {"python": "./python"},
    "variables": {"options": {"env": {"LD_PRELOAD": "x.so"}}},
    "wrappers": {"options": {"wrappers": ["weights.py:go"]}},
    "a task's code": {"options": {"tasks": ["weights.py:go"]}},
    "a path to write to": {"options": {"log_dir": "logs"}},
    "no options": {"options": [1]},
}


@pytest.mark.slow
def test_a_recording_runs_no_code(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = json.loads((recording / "recording.json").read_text())
    assert cli.run(["replay", str(recording)]) == 0
    (tmp_path / "weights.py").write_text(CODE)
    (tmp_path / "python").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.syspath_prepend(tmp_path)
    for what, changes in HOSTILE_HEADS.items():
        (recording / "recording.json").write_text(json.dumps({**good, **changes}))
        capsys.readouterr()
        said = refused(capsys, "replay", str(recording))
        assert "options" in said if what == "no options" else "--trust-code" in said, what
        assert not (tmp_path / "ran").exists(), what
        assert not (tmp_path / "logs").exists(), what


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_recording_is_replayed_in_the_interpreter_that_its_user_names(recording: Path) -> None:
    head = json.loads((recording / "recording.json").read_text())
    (recording / "recording.json").write_text(json.dumps({**head, "python": "/nowhere/python"}))
    assert manyarms.replay(recording, python=sys.executable).same


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(data=st.data())
def test_any_json_at_all_is_taken_or_refused_in_words(data: st.DataObject, tmp_path: Path) -> None:
    options = st.dictionaries(st.sampled_from([*sorted(trust.HARMLESS), "env", "x"]), JSON, max_size=3)
    recipe = st.fixed_dictionaries({}, optional={"model_type": JSON, "options": JSON, "needs": JSON | options})
    head = st.fixed_dictionaries(
        {}, optional={"format": st.just(1), "spec": JSON, "simulator": JSON, "options": JSON | options, "python": JSON}
    )
    for name, kind in (("policy.json", recipe | JSON), ("recording.json", head | JSON)):
        (tmp_path / name).write_text(json.dumps(data.draw(kind)))
    for read in (CheckpointPolicy, lambda folder: Recording(folder).source()):
        with suppress(ConfigError):
            read(tmp_path)


@pytest.mark.parametrize("name", ["policy.json", "recording.json"])
@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"a":' * 100_000, "\x00", '"\\ud800"', "[]", ""],
    ids=["deep lists", "deep objects", "a NUL", "half a character", "a list", "nothing"],
)
def test_what_is_no_json_object_is_refused_in_words(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError):
        (CheckpointPolicy if name == "policy.json" else Recording)(tmp_path)


# -- folders to go on in ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short training run and an evaluation of it, both to be gone on with."""
    folder = tmp_path_factory.mktemp("begun")
    train(load(written(folder), [*in_folder(folder), "runner.max_steps=1", "runner.save_interval=1"]))
    policy = str(folder / "walk" / "checkpoints" / "global_step_1")
    manyarms.evaluate("standins:Walker", policy=policy, episodes=2, out=folder / "judged", trust_code=True)
    (folder / "judged" / "episodes-0.jsonl").write_text("")
    shutil.copytree(DATA / "recording", folder / "tape")
    return folder


def going_on(folder: Path, *trusting: str) -> dict[str, list[str]]:
    """Return the commands that go on with what is in a folder."""
    words = [*in_folder(folder), "runner.max_steps=2", "runner.save_interval=1"]
    return {
        "walk": ["train", str(folder / "walk.yaml"), "--resume", *words, *trusting],
        "judged": ["eval", "tabletop", "--policy", "random", "--out", str(folder / "judged"), "--resume", *trusting],
        "tape": ["record", "tabletop", "--policy", "random", "--out", str(folder / "tape"), "--resume", *trusting],
    }


LINKS = {
    "walk": [".lock", "metrics.jsonl", "evaluations.jsonl", "run.json", "config.yaml", "report.html"],
    "judged": ["episodes-0.jsonl", "config.json", "results.json"],
    "tape": ["episodes", "recording.json"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in LINKS.items() for name in names])
def test_a_folder_to_go_on_in_leads_to_no_file_elsewhere(
    kind: str, name: str, begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(begun, tmp_path / "copy")
    precious = tmp_path / "precious"
    precious.write_text("a key\n")
    part = tmp_path / "copy" / kind / name
    shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
    part.symlink_to(precious)
    said = refused(capsys, *going_on(tmp_path / "copy")[kind])
    assert f"{part} is a link that leads out of the folder" in said
    assert "trust" in said
    assert precious.read_text() == "a key\n"


@pytest.mark.parametrize("name", ["live", "checkpoints", "tensorboard", "video", "checkpoints/global_step_2"])
def test_a_folder_to_go_on_in_leads_to_no_folder_elsewhere(
    name: str, begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old live files are removed, and would be whatever they are."""
    shutil.copytree(begun, tmp_path / "copy")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "letter.txt").touch()
    part = tmp_path / "copy" / "walk" / name
    shutil.rmtree(part, ignore_errors=True)
    part.symlink_to(tmp_path / "precious")
    assert "leads out of the folder" in refused(capsys, *going_on(tmp_path / "copy")["walk"])
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["letter.txt"]


def test_a_pipe_in_a_folder_to_go_on_in_is_not_waited_for(
    begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(begun, tmp_path / "copy")
    (tmp_path / "copy" / "walk" / "evaluations.jsonl").unlink()
    os.mkfifo(tmp_path / "copy" / "walk" / "evaluations.jsonl")
    assert "is no file" in refused(capsys, *going_on(tmp_path / "copy")["walk"])


def test_links_of_ones_own_are_followed_when_they_are_trusted_and_within_the_folder(
    begun: Path, tmp_path: Path
) -> None:
    shutil.copytree(begun, tmp_path / "copy")
    large = tmp_path / "large_disk"
    (tmp_path / "copy" / "walk" / "checkpoints").rename(large)
    (tmp_path / "copy" / "walk" / "checkpoints").symlink_to(large)
    assert cli.run(going_on(tmp_path / "copy", "--trust-code")["walk"]) == 0
    assert (large / "global_step_2").is_dir()
    shutil.copytree(begun, tmp_path / "second")
    (tmp_path / "second" / "walk" / "newest").symlink_to("checkpoints/global_step_1")
    assert cli.run(going_on(tmp_path / "second")["walk"]) == 0


def test_who_watches_a_folder_writes_nowhere_else(tmp_path: Path) -> None:
    run = watched.training(tmp_path / "run")
    watched.write_live(run, watched.rows(2))
    for place, elsewhere in ((run / "live" / "watched", tmp_path / "new"), (run / "live", tmp_path / "other")):
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        if place.name == "live":
            elsewhere.mkdir()
        place.symlink_to(elsewhere)
        WatchedRun(run).state()
    assert not (tmp_path / "new").exists()
    assert [*(tmp_path / "other").iterdir()] == []


@pytest.mark.parametrize("content", ["", "[]", "{", '{"episodes": [1]}', "\udcff"])
def test_an_evaluation_whose_settings_cannot_be_read_is_not_gone_on_with(
    content: str, begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(begun, tmp_path / "copy")
    (tmp_path / "copy" / "judged" / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    assert "was begun with other settings" in refused(capsys, *going_on(tmp_path / "copy")["judged"])


# -- weights and data -------------------------------------------------------------------------------------------------


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def test_initial_states_of_libero_are_arrays_and_nothing_that_runs(tmp_path: Path) -> None:
    folder = tmp_path / "init_files" / "libero_spatial"
    folder.mkdir(parents=True)
    task = SuiteTask("libero_spatial", "a_task", str(tmp_path))
    for content in (np.arange(6.0).reshape(2, 3), _Evil()):
        with zipfile.ZipFile(folder / "a_task.pruned_init", "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
        if isinstance(content, _Evil):
            with pytest.raises(pickle.UnpicklingError, match="mkdir"):
                task.init_states()
        else:
            assert task.init_states().tolist() == content.tolist()
    assert not (tmp_path / "ran").exists()


def test_a_config_of_transformers_fetches_no_code(tmp_path: Path) -> None:
    from manyarms.policies.checkpoints import CheckpointFolder
    from manyarms.policies.pi0 import loading

    golden = GOLDEN / "pi0_tiny"
    config = json.loads((golden / "config.json").read_text())
    hostile = {"_attn_implementation": "someone/kernel", "attn_implementation": "someone/kernel"}
    hostile["experts_implementation"] = "someone/kernel"
    config = {**config, **hostile, "vlm_config": {**config["vlm_config"], **hostile}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(golden / "model.safetensors")
    found = loading.architecture(CheckpointFolder.open(tmp_path))
    assert "someone" not in str(vars(found))
    assert "someone" not in str(vars(found.vlm_config))


def _places(tree: dict[str, Any], way: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the way to every value of a config, those of its parts included."""
    inner = [place for key, value in tree.items() if isinstance(value, dict) for place in _places(value, (*way, key))]
    return [*((*way, key) for key in tree), *inner]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small checkpoints of others, with all that acting needs."""
    folder = tmp_path_factory.mktemp("models")
    return {"pi0": pi0_folder(folder / "pi0"), "openvla_oft": golden_with_tokenizer(folder / "oft")}


def _acts(kind: str, folder: Path) -> None:
    inspect(folder)
    policy = make_policy(kind, SPEC, {"model_path": str(folder), **(STATE if kind == "openvla_oft" else {})})
    assert policy.act(observed(1)).actions[""].shape[-1] == 7


@pytest.mark.parametrize("kind", ["pi0", "openvla_oft"])
def test_checkpoints_of_others_act_as_they_are(kind: str, models: dict[str, Path]) -> None:
    """Or the tests below, which spoil them, show nothing."""
    _acts(kind, models[kind])


@pytest.mark.slow
@settings(max_examples=12)
@given(data=st.data())
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("pi0", "config.json"),
        ("pi0", "norm_stats.json"),
        ("pi0", "tokenizer.json"),
        ("openvla_oft", "config.json"),
        ("openvla_oft", "dataset_statistics.json"),
        ("openvla_oft", "tokenizer.json"),
    ],
)
def test_whatever_is_in_a_model_of_others_it_acts_or_is_refused_in_words(
    kind: str, name: str, data: st.DataObject, models: dict[str, Path]
) -> None:
    file = models[kind] / name
    before = file.read_text()
    content = json.loads(before)
    *way, last = data.draw(st.sampled_from(_places(content)))
    part = content
    for key in way:
        part = part[key]
    if data.draw(st.booleans()):
        part[last] = data.draw(JSON | st.sampled_from([0, [], {}, [0.0] * 7, [[1.0]], "x", 1e300, None]))
    else:
        del part[last]
    try:
        file.write_text(json.dumps(content))
        with suppress(ManyarmsError):
            _acts(kind, models[kind])
    finally:
        file.write_text(before)


HEADS = ("action_head--1_checkpoint.pt", "proprio_projector--1_checkpoint.pt")


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("name", HEADS)
def test_any_bytes_of_a_head_are_refused_in_words(name: str, data: st.DataObject, models: dict[str, Path]) -> None:
    file = models["openvla_oft"] / name
    before = file.read_bytes()
    changed = bytearray(before)
    for _ in range(data.draw(st.integers(1, 5))):
        changed[data.draw(st.integers(0, len(before) - 1))] = data.draw(st.integers(0, 255))
    try:
        file.write_bytes(data.draw(st.sampled_from([bytes(changed), bytes(changed[: len(changed) // 2])])))
        with suppress(ManyarmsError):
            folder = OftFolder(file.parent)
            folder.action_head()
            folder.state_projector()
    finally:
        file.write_bytes(before)


def test_an_index_of_weights_names_files_beside_it_only(tmp_path: Path) -> None:
    from manyarms.policies.checkpoints import CheckpointFolder

    for name in ("../model.safetensors", "/etc/passwd", 3):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": name}}))
        with pytest.raises(ConfigError, match="names"):
            CheckpointFolder.open(tmp_path)


# -- the list itself --------------------------------------------------------------------------------------------------

#: Options of ours that no file from elsewhere may set: they name files.
REFUSED = {"descriptions"}


def test_every_option_of_a_simulator_of_ours_is_known_to_be_harmless_or_not() -> None:
    kinds = (TabletopOptions, LiberoOptions, RLBenchOptions, BehaviorOptions)
    options = {field.name for kind in kinds for field in fields(kind)}
    assert options - trust.HARMLESS == REFUSED, "decide which list a new option belongs to"
    vector = {field.name for field in fields(VectorConfig)}
    of_adapters = {"task", "tasks", "max_episode_steps", "device"}
    assert trust.HARMLESS - options - vector - of_adapters == set(), "what nothing takes should go"


def test_nothing_that_is_opened_is_unpickled_freely() -> None:
    found = io.StringIO()
    source = Path(manyarms.__file__).parent
    for path in source.rglob("*.py"):
        text = path.read_text()
        for call in ("pickle.load", "allow_pickle=True", "yaml.load(", "weights_only=False", "trust_remote_code=True"):
            if call in text:
                print(path.relative_to(source), call, file=found)
    assert not found.getvalue()
