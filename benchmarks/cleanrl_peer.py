"""Runs where CleanRL does: its environment for our workers, and a recording of one of its updates.

    python benchmarks/cleanrl_peer.py path/to/ppo_continuous_action.py recording.npz <its options>

Nothing of CleanRL is copied: its file is loaded from where it lies.
"""

# pyright: reportMissingImports=false
# Runs in an environment of its own.

from __future__ import annotations

import importlib.util
import runpy
import sys
from typing import Any

import gymnasium
import numpy as np


class ClockEnds(gymnasium.Wrapper):
    """Calls it an end when the clock runs out, as CleanRL's PPO does."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, False, info


def make_env(cleanrl: str, env_id: str, gamma: float, clock_ends: bool = False) -> Any:
    """Return an environment in all the wrappers that CleanRL's own `make_env` puts around it."""
    spec = importlib.util.spec_from_file_location("cleanrl_ppo", cleanrl)
    if spec is None or spec.loader is None:
        raise ImportError(f"{cleanrl} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    env = module.make_env(env_id, 0, False, "", gamma)()
    return ClockEnds(env) if clock_ends else env


def record(cleanrl: str, target: str) -> None:
    """Run CleanRL's file to its end; write its first and last weights, its last batch, and the order of minibatches."""
    import torch

    first: dict[str, np.ndarray] = {}
    orders: list[np.ndarray] = []
    plain, shuffle = torch.optim.Adam, np.random.shuffle

    class Noted(plain):
        """Adam, after a copy of the weights it is given."""

        def __init__(self, parameters: Any, **options: Any) -> None:
            parameters = list(parameters)
            first.update({str(i): p.detach().numpy().copy() for i, p in enumerate(parameters)})
            super().__init__(parameters, **options)

    def noted(x: np.ndarray) -> None:
        shuffle(x)
        orders.append(x.copy())

    torch.optim.Adam, np.random.shuffle = Noted, noted  # type: ignore[misc]
    torch.set_num_threads(1)
    left = runpy.run_path(cleanrl, run_name="__main__")
    batch = {name: left[name].numpy() for name in ("obs", "actions", "logprobs", "rewards", "values", "dones")}
    judged = {name: left[name].numpy() for name in ("advantages", "returns")}
    agent = left["agent"]
    names = [name for name, _ in agent.named_parameters()]
    weights = {name: p.detach().numpy() for name, p in agent.named_parameters()}
    before = {f"first/{names[int(i)]}": array for i, array in first.items()}
    after = {f"last/{name}": array for name, array in weights.items()}
    np.savez(target, orders=np.stack(orders), **batch, **judged, **before, **after)


if __name__ == "__main__":
    path, out = sys.argv[1:3]
    sys.argv = [path, *sys.argv[3:]]
    record(path, out)
