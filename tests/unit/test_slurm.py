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


#: As many nodes are there as it was asked for before: the first is active, the others are idle.
STATUS = """#!/bin/sh
[ "$1" = status ] || exit 0
echo x >> "{asked}"
come=$(($(wc -l < "{asked}") - 1))
[ "$come" -gt {most} ] && come={most}
[ "$come" -eq 0 ] && exit 1
printf "======== Autoscaler status ========\nNode status\n-----\nActive:\n 1 node_a\nIdle:\n"
[ "$come" -gt 1 ] && printf " %s node_b\n" $((come - 1)) || printf " (no idle nodes)\n"
printf "Pending:\n 7 node_c, launching\nRecent failures:\n (no failures)\n\nResources\n-----\nTotal Usage:\n"
printf " 0.0/8.0 CPU\n 3 GPU\n"
"""


def stand_in(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(("most", "comes"), [(3, True), (2, False)])
def test_the_command_waits_until_all_nodes_are_there(
    most: int, comes: bool, allocation: dict[str, str], tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    stand_in(tmp_path, "ray", STATUS.format(asked=asked, most=most))
    stand_in(tmp_path, "sleep", "#!/bin/sh\n")
    # The last step, which runs the command, says how often Ray had been asked by then.
    stand_in(tmp_path, "srun", f'#!/bin/sh\ncase "$*" in *"ray start"*) ;; *) wc -l < "{asked}";; esac\n')
    done = run(allocation, "manyarms", "train")
    if comes:
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == 4, "none, one, two, three"
    else:
        assert done.returncode == 1
        assert "2 of 3 nodes came up" in done.stderr
        assert not done.stdout, "and nothing was run"


@pytest.mark.parametrize(
    ("arguments", "says"), [(["--dryrun", "x"], "no option"), ([], "no command"), (["manyarms"], "no SLURM allocation")]
)
def test_what_is_missing_is_told(arguments: list[str], says: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_NODELIST"}
    done = run(env, *arguments)
    assert done.returncode == 1
    assert says in done.stderr
