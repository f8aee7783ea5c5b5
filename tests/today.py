"""What manyarms wrote before its redesign, for later versions to read: how it was made, and where the tests find it.

The files in `tests/data/today` were written once, by the commit that their README names, and stay as they are:
``python tests/today.py FOLDER`` writes them anew with whichever manyarms is imported.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from conftest import REPOSITORY
from oft import golden_with_tokenizer
from pi0_checkpoints import pi0_folder

DATA = REPOSITORY / "tests" / "data" / "today"

#: Updates that each run made, and the one whose checkpoint is kept to go on from.
UPDATES, KEPT = 3, 2

_WORLD: dict[str, Any] = {"arm_mode": "delta_ee", "cameras": [], "shaped_rewards": True}
_SEEN: dict[str, Any] = {**_WORLD, "cameras": ["front"], "image_size": [32, 32]}
_SMALL: dict[str, Any] = {"hidden": 8, "fields": ["gripper_pose", "gripper_open"]}
_PPO: dict[str, Any] = {"update_epoch": 2, "episodes_per_step": 4}
_GROUPS: dict[str, Any] = {"loss_type": "actor", "group_size": 2, "update_epoch": 2, "episodes_per_step": 4}


def _config(
    model: dict[str, Any], algorithm: dict[str, Any], world: dict[str, Any], steps: int = 8, **more: Any
) -> dict[str, Any]:
    return {
        "runner": {
            "max_steps": UPDATES,
            "val_check_interval": 1,
            "save_interval": 1,
            "logger": {"logger_backends": [], "log_path": "runs"},
        },
        "algorithm": algorithm,
        "env": {
            "train": {"simulator": "tabletop/reach_target", "total_num_envs": 2, "rows_per_worker": 2}
            | {"max_episode_steps": steps, "options": world},
            "eval": {"episodes": 2},
        },
        "rollout": {"batch_size": 2},
        "actor": {"global_batch_size": 8, "model": model, "optim": {"lr": 1.0e-3, "schedule": "linear"}},
        **more,
    }


#: One run of each kind: configs as `manyarms train` takes them.
RUNS: dict[str, dict[str, Any]] = {
    "mlp_ppo": _config({"model_type": "mlp", "num_action_chunks": 2, "options": _SMALL}, _PPO, _WORLD),
    "mlp_grpo": _config(
        {"model_type": "mlp", "num_action_chunks": 2, "options": _SMALL},
        {"adv_type": "grpo", "kl_beta": 0.01, **_GROUPS},
        _WORLD,
    ),
    "mlp_rloo": _config(
        {"model_type": "mlp", "num_action_chunks": 2, "options": {**_SMALL, "head": "tokens"}},
        {"adv_type": "rloo", "logprob_type": "token_level", **_GROUPS},
        _WORLD,
    ),
    "pixel_cloned_ppo": _config(
        {"model_type": "pixel", "num_action_chunks": 2, "options": {**_SMALL, "image_side": 32}},
        {"reward_type": "action_level", "logprob_type": "action_level", **_PPO},
        _SEEN,
        steps=40,
        cloning={"episodes": 2, "steps": 4, "batch_size": 8},
    ),
    "pi0_ppo": _config(
        {
            "model_type": "pi0",
            "num_action_chunks": 4,
            "options": {"model_path": "models/pi0", "state": ["joint_positions", "gripper_open"]}
            | {"noise": "flow_sde", "lora_rank": 1},
        },
        {"logprob_type": "action_level", **_PPO},
        {**_SEEN, "cameras": ["front", "wrist"], "image_size": [56, 56]},
    ),
    "oft_grpo": _config(
        {
            "model_type": "openvla_oft",
            "num_action_chunks": 8,
            "options": {"model_path": "models/oft", "unnorm_key": "libero_spatial", "prompt_length": 96}
            | {"state": ["gripper_pose", "gripper_open"], "head": "tokens", "lora_rank": 1},
        },
        {"adv_type": "grpo", "logprob_type": "token_level", **_GROUPS},
        {**_SEEN, "cameras": ["front", "wrist"], "image_size": [48, 48]},
    ),
}


def models(folder: Path) -> None:
    """Write the models that runs of π0 and OpenVLA-OFT begin with."""
    pi0_folder(folder / "models" / "pi0")
    golden_with_tokenizer(folder / "models" / "oft")


def write(folder: Path) -> None:
    """Write everything; the working folder is where relative paths in it begin."""
    import manyarms

    folder.mkdir(parents=True)
    os.chdir(folder)
    models(folder)
    sys.argv = ["manyarms", "train"]  # what a run notes as its command
    for name, config in RUNS.items():
        _train(name, config)
    kept = f"runs/mlp_ppo/checkpoints/global_step_{KEPT}"
    manyarms.evaluate("tabletop/reach_target", policy=kept, episodes=4, num_envs=2, out=Path("evaluation"))
    seen = ("arm_mode=joint_position", "cameras=[front]", "image_size=[32,32]")
    unseen = ("arm_mode=joint_position", "cameras=[]")
    for out, options, lerobot in (("recording", unseen, None), ("recording_seen", seen, Path("dataset"))):
        manyarms.record(
            "tabletop/reach_target",
            policy="random",
            episodes=2,
            max_episode_steps=6,
            options=options,  # type: ignore[arg-type]
            out=Path(out),
            lerobot=lerobot,
        )
    _configs(folder / "configs")
    for name in RUNS:
        _thin_out(folder / "runs" / name, folder / "expected" / name)
    shutil.rmtree("models")


def _train(name: str, config: dict[str, Any]) -> None:
    from manyarms.learning.settings import from_mapping
    from manyarms.learning.training import train

    config["runner"]["logger"]["experiment_name"] = name
    train(from_mapping(config, name))


def _configs(folder: Path) -> None:
    """Write every shipped config as a run would have kept it; what it leaves open is given."""
    from omegaconf import OmegaConf

    from manyarms.learning.recipes import examples, read, recipes
    from manyarms.learning.settings import load

    folder.mkdir()
    os.environ.update(dict.fromkeys(("ISAAC_PATH", "OMNIGIBSON_DATA_PATH", "EMBODIED_PATH"), "."))
    for source in [*recipes(), *examples()]:
        gaps = OmegaConf.missing_keys(read(source)[1])
        text = load(source, [f"{gap}=models/anywhere" for gap in gaps]).text
        (folder / f"{Path(source).stem}.yaml").write_text(text)


def _thin_out(run: Path, expected: Path) -> None:
    """Keep the checkpoint to go on from, and apart from it what the run went on to."""
    expected.mkdir(parents=True)
    checkpoints = run / "checkpoints"
    shutil.copy(checkpoints / f"global_step_{UPDATES}" / "model.safetensors", expected)
    shutil.copy(run / "metrics.jsonl", expected)
    shutil.copy(run / "evaluations.jsonl", expected)
    kept = {f"global_step_{KEPT}", *(["global_step_0"] if "grpo" in run.name and "mlp" in run.name else [])}
    for path in checkpoints.iterdir():
        if path.name not in kept:
            shutil.rmtree(path)
    for heavy in ("live", "report.html"):
        path = run / heavy
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    facts = json.loads((run / "run.json").read_text())
    facts["machine"] = "Linux"
    (run / "run.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
