"""Plays episodes in LIBERO itself (`ControlEnv`, no manyarms), for ours to be compared with.

Runs in LIBERO's interpreter: ``python libero_reference.py JOBS.npz OUT.npz``. Job i is ``task_i`` (a BDDL file),
``start_i`` (the seed and the number of the initial state), ``size_i`` (of images; 0: none) and ``actions_i``.
"""

import importlib
import os
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np

OBSERVED = ("robot0_joint_pos", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object-state")
IMAGES = ("agentview_image", "robot0_eye_in_hand_image")


def init_state(task: Path, index: int) -> np.ndarray:
    """Return one of the initial states that LIBERO brings for a task."""
    path = task.parents[2] / "init_files" / task.parent.name / (task.stem + ".pruned_init")
    with zipfile.ZipFile(path) as archive:
        return pickle.loads(archive.read("archive/data.pkl"))[index]


def play(task: Path, start: np.ndarray, size: int, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Play an episode as LIBERO's evaluations do; return what it gave, the first moment included."""
    control_env = importlib.import_module("libero.libero.envs.env_wrapper").ControlEnv

    seed, index = start.tolist()
    cameras = {"camera_heights": size, "camera_widths": size} if size else {}
    env = control_env(str(task), use_camera_obs=bool(size), has_offscreen_renderer=bool(size), **cameras)
    env.seed(seed)
    env.reset()
    observation = env.set_init_state(init_state(task, index))
    for _ in range(10):
        observation, *_ = env.step([0.0] * 6 + [-1.0])
    names = (*OBSERVED, *(IMAGES if size else ()))
    moments = [(env.get_sim_state(), 0.0, False, observation)]
    for action in actions:
        observation, reward, done, _ = env.step(action.tolist())
        moments.append((env.get_sim_state(), reward, done, observation))
    env.close()
    states, rewards, dones, observations = zip(*moments, strict=True)
    seen = {name: np.stack([each[name] for each in observations]) for name in names}
    return {"states": np.stack(states), "rewards": np.array(rewards), "dones": np.array(dones), **seen}


def main() -> None:
    jobs, out = np.load(sys.argv[1]), {}
    os.environ.setdefault("LIBERO_CONFIG_PATH", os.path.join(sys.prefix, "libero"))
    for i in range(sum(name.startswith("task_") for name in jobs.files)):
        played = play(Path(str(jobs[f"task_{i}"])), jobs[f"start_{i}"], int(jobs[f"size_{i}"]), jobs[f"actions_{i}"])
        out.update({f"{name}_{i}": value for name, value in played.items()})
    np.savez(sys.argv[2], **out)


if __name__ == "__main__":
    main()
