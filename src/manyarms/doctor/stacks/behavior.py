"""BEHAVIOR: Isaac Sim, OmniGibson and its Python, the datasets, and a GPU that can trace rays."""

from __future__ import annotations

import json
import os
from pathlib import Path

from manyarms.doctor.processes import ask
from manyarms.doctor.stacks import Trial, Where
from manyarms.simulators.about import Row, absent, fault, ok
from manyarms.simulators.base import SpecError
from manyarms.simulators.behavior import gpus
from manyarms.simulators.behavior.releases import RELEASES, Release, release_of

NEEDS = ("omnigibson", "bddl")
INSTALL = "scripts/install_behavior.sh, then --python .venvs/behavior/bin/behavior-python --timeout 600"

_DATA, _ISAAC = "OMNIGIBSON_DATA_PATH", "ISAAC_PATH"

#: Read, not imported: that takes its time, and sets signal handlers.
_ASK_VERSION = """
import importlib.util, json, re, sys
spec = importlib.util.find_spec("omnigibson")
text = open(spec.origin, encoding="utf-8").read()
told = re.search(r'^__version__ = .*?"(\\d[\\w.]*)"', text, re.MULTILINE)
print(json.dumps(["%d.%d" % sys.version_info[:2], told.group(1) if told else ""]))
"""


#: A launcher, as scripts/install_behavior.sh writes one, sets them itself.
_ASK_VARIABLES = """
import json, os
print(json.dumps([os.environ.get(name, "") for name in ("ISAAC_PATH", "OMNIGIBSON_DATA_PATH")]))
"""


def is_wanted() -> bool:
    """Tell whether the user has begun to install it."""
    return bool(os.environ.get(_ISAAC) or os.environ.get(_DATA))


def trial() -> Trial:
    """Take the shortest task of the challenge, and one small camera."""
    return Trial("turning_on_radio", {"cameras": ["head"], "image_size": 64})


def parts(where: Where) -> list[Row]:
    """Check everything that BEHAVIOR stands on."""
    version, row = omnigibson(where)
    isaac, data = variables(where)
    return [row, isaac_sim(version, where, isaac), datasets(version, data), *graphics()]


def variables(where: Where) -> tuple[str, str]:
    """Return where Isaac Sim and the datasets lie, as the interpreter sees it."""
    answer = ask([where.python, "-c", _ASK_VARIABLES], where.seconds)
    if answer.failure:
        return os.environ.get(_ISAAC, ""), os.environ.get(_DATA, "")
    isaac, data = json.loads(answer.said.splitlines()[-1])
    return isaac, data


def omnigibson(where: Where) -> tuple[Release, Row]:
    """Tell which OmniGibson there is, and whether its Python is the one that its Isaac Sim is built for."""
    name, first = "behavior: OmniGibson", next(iter(RELEASES.values()))
    answer = ask([where.python, "-c", _ASK_VERSION], where.seconds)
    if answer.failure:
        return first, fault(name, f"{where.python} does not find it: {answer.failure}", INSTALL)
    python, version = json.loads(answer.said)
    try:
        release = release_of(version)
    except SpecError as error:
        return first, fault(name, str(error), "scripts/install_behavior.sh")
    if python != release.python:
        found = f"{version} in Python {python}; its Isaac Sim {release.isaac} is built for {release.python}"
        return release, fault(name, found, f"scripts/install_behavior.sh --python python{release.python}")
    return release, ok(name, f"{version} in Python {python}")


def isaac_sim(release: Release, where: Where, root: str) -> Row:
    """Look for Isaac Sim where ISAAC_PATH says it lies, or among the packages of pip."""
    name, fix = f"behavior: {_ISAAC}", f"export {_ISAAC}=<folder of Isaac Sim {release.isaac}>"
    if not root:
        packaged = ask(
            [where.python, "-c", "import importlib.util as u; print(u.find_spec('isaacsim') is not None)"],
            where.seconds,
        )
        return (
            ok(name, "not set; the package isaacsim finds itself")
            if packaged.said == "True"
            else fault(name, "not set", fix)
        )
    file = Path(root, "VERSION")
    if not file.is_file():
        return fault(name, f"there is no file VERSION in {root}", fix)
    version = file.read_text(errors="replace").strip().partition("-")[0]
    if not version.startswith(release.isaac):
        return fault(name, f"{root} holds {version}; OmniGibson {release.version} is made for {release.isaac}", fix)
    return ok(name, f"Isaac Sim {version}, {root}")


def datasets(release: Release, root: str) -> Row:
    """Look for the three datasets."""
    name = f"behavior: {_DATA}"
    if not root:
        return fault(name, "not set", f"export {_DATA}=<folder of BEHAVIOR's datasets>")
    fix = f"scripts/install_behavior.sh --only data --data {root}"
    if not os.path.isdir(root):
        return fault(name, f"there is no folder {root}", fix)
    wanted = ("omnigibson-robot-assets", "behavior-1k-assets", release.dataset)
    missing = [each for each in wanted if not os.path.isdir(os.path.join(root, each))]
    if missing:
        return fault(name, f"{', '.join(missing)} not in {root}", fix)
    return ok(name, root)


def graphics() -> list[Row]:
    """Say what is known to go wrong on the GPUs that are here."""
    found = gpus.survey()
    if not found:
        return [fault("behavior: GPU", "nvidia-smi finds none", "Isaac Sim needs an NVIDIA GPU and its driver")]
    said = gpus.complaints(found)
    drivers = [text for text in said if "driver" in text]
    blind = [text for text in said if "ray-tracing" in text]
    names = ", ".join(dict.fromkeys(gpu.name for gpu in found))
    rows = [fault("behavior: GPU", text, "install a newer NVIDIA driver") for text in drivers]
    rows = rows or [ok("behavior: GPU", f"{names}, driver {found[0].driver}")]
    return [*rows, *(absent("behavior: ray tracing", text) for text in blind[:1])]
