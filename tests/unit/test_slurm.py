"""scripts/slurm_ray.sh: what it would run on which node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from conftest import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "slurm_ray.sh"


@pytest.fixture
def allocation(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on three nodes, with a stand-in for SLURM."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$3" = "node[1-3]" ] && printf "node1\\nnode2\\nnode3\\n"\n')
    scontrol.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[1-3]"}


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPT), *arguments], env=env, capture_output=True, text=True, check=False)


def test_every_node_joins_the_first_and_the_command_runs_there(allocation: dict[str, str]) -> None:
    done = run(allocation | {"RAY_OPTIONS": "--num-gpus=4"}, "--dry-run", "manyarms", "train", "a.yaml", "--resume")
    assert done.returncode == 0, done.stderr
    head, *others, command = done.stdout.splitlines()
    assert head.startswith("would run on node1: ray start --head --port=6379")
    assert [line.split(":")[0] for line in others] == ["would run on node2", "would run on node3"]
    assert all("--address=node1:6379" in line for line in others)
    assert all("--num-gpus=4" in line for line in (head, *others))
    assert "--nodelist=node1" in command
    assert command.endswith("RAY_ADDRESS=node1:6379 manyarms train a.yaml --resume")


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--dryrun", "x"], "no option"), ([], "no command"), (["manyarms"], "no SLURM allocation")]
)
def test_what_is_missing_is_told(arguments: list[str], says: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_NODELIST"}
    done = run(env, *arguments)
    assert done.returncode == 1
    assert says in done.stderr
