"""The GPUs that Isaac Sim would render on, and what is known to go wrong with them."""

from __future__ import annotations

import re
import subprocess
from typing import List, NamedTuple, Sequence

#: GPUs for computing only; the architecture does not tell (an A40 has what an A100 lacks).
_WITHOUT_RAY_TRACING = re.compile(r"\b(P100|V100|A100|A800|A30|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b")

_HOPPER = 9.0
_LEAST_DRIVER = 570


class Gpu(NamedTuple):
    """What nvidia-smi says of a GPU."""

    name: str
    driver: str
    capability: float


def survey(seconds: float = 10.0) -> List[Gpu]:
    """Return the GPUs of this machine, by number."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.split(", ") for line in said.stdout.decode().splitlines()]
    return [Gpu(line[0], line[1], _number(line[2])) for line in lines if len(line) == 3]


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text.strip()) else 0.0


def complaints(gpus: Sequence[Gpu]) -> List[str]:
    """Say what is known to go wrong on these GPUs."""
    said = []
    for gpu in dict.fromkeys(gpus):
        if gpu.capability >= _HOPPER and _number(gpu.driver.partition(".")[0]) < _LEAST_DRIVER:
            said.append(
                "%s needs the NVIDIA driver %d or later for Isaac Sim, and %s is installed"
                % (gpu.name, _LEAST_DRIVER, gpu.driver)
            )
        if _WITHOUT_RAY_TRACING.search(gpu.name):
            said.append(
                "%s has no ray-tracing cores: Isaac Sim's images will be blurred or mosaic-like. Render on a GPU that "
                "has them (RTX, L40, A40), or expect policies to see badly" % gpu.name
            )
    return said


__all__ = ["Gpu", "complaints", "survey"]
