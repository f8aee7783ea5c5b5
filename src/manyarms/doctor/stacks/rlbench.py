"""RLBench: CoppeliaSim 4.1.0 and its libraries, PyRep, one OpenCV only, and a display."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from manyarms.doctor.processes import ask
from manyarms.doctor.stacks import Trial, Where
from manyarms.errors import ManyarmsError
from manyarms.simulators.about import Row, absent, fault, ok
from manyarms.vector.xauthority import check_external

_RIGHT_VERSION = "4.1.0"

#: Commands of manyarms' repository.
_GET_COPPELIASIM = 'scripts/install_coppeliasim.sh; export COPPELIASIM_ROOT="$HOME/CoppeliaSim"'
_BUILD = "scripts/reinstall_rlbench.sh --python {python}"

NEEDS = ("rlbench", "pyrep")
INSTALL = f"{_GET_COPPELIASIM}; {_BUILD}"

_ROOT = "COPPELIASIM_ROOT"
_LIBRARIES = ("libcoppeliaSim.so.1", "libcoppeliaSim.so")

#: Where Qt looks for the plug-in that opens windows on X, below QT_QPA_PLATFORM_PLUGIN_PATH.
_X_PLUG_INS = ("libqxcb.so", "platforms/libqxcb.so")

#: OpenCV with windows of its own, that is with a Qt of its own.
_WITH_QT = ("opencv-python", "opencv-contrib-python")

_IMPORT_PYREP = """
import importlib.util, sys
found = importlib.util.find_spec("pyrep")
if found is None:
    sys.exit("it is not installed")
try:
    if found.submodule_search_locations is None or importlib.util.find_spec("pyrep.backend") is None:
        sys.exit("OTHER")
    import pyrep.backend.sim
except ImportError as error:
    sys.exit("it cannot be imported: %s" % error)
print(pyrep.__file__)
"""

_LIST_PACKAGES = """
import json
from importlib import metadata
print(json.dumps({(d.metadata["Name"] or "").lower().replace("_", "-"): d.version for d in metadata.distributions()}))
"""


def is_wanted() -> bool:
    """Tell whether the user has begun to install it."""
    return bool(os.environ.get(_ROOT))


def trial() -> Trial:
    """Take the easiest task, on an Xvfb of its own if there is one."""
    backend = "external" if shutil.which("Xvfb") is None and os.environ.get("DISPLAY") else "xvfb"
    # In this mode any action moves the arm; poses drawn at random would be refused, and nothing simulated.
    mode = {"arm_mode": "joint_velocity"}
    return Trial("reach_target", {"display": backend, "cameras": ["front"], "image_size": (64, 64), **mode})


def parts(where: Where) -> list[Row]:
    """Check everything that RLBench stands on."""
    root = Path(os.environ.get(_ROOT, ""))
    found = [the_root()]
    if found[0].status == "ok":
        found += [version(root, where), libraries(root, where), search_path(root)]
    return [*found, pyrep(where), rlbench(where), opencv(where), display()]


def the_root() -> Row:
    """Look for CoppeliaSim where COPPELIASIM_ROOT says it lies."""
    root, fix = os.environ.get(_ROOT, ""), f"{_GET_COPPELIASIM}   # or the folder where it lies"
    if not root:
        return fault(f"rlbench: {_ROOT}", "not set", fix)
    if not os.path.isdir(root):
        return fault(f"rlbench: {_ROOT}", f"{root} is no folder", fix)
    if not any((Path(root) / name).exists() for name in _LIBRARIES):
        return fault(f"rlbench: {_ROOT}", f"there is no {_LIBRARIES[0]} in {root}", fix)
    return ok(f"rlbench: {_ROOT}", root)


def version(root: Path, where: Where) -> Row:
    """Say which CoppeliaSim it is; no other than 4.1.0 will do."""
    name, found = "rlbench: CoppeliaSim", version_of(root)
    if not found:
        return absent(name, f"its version is unknown: nothing in {root} tells; it must be {_RIGHT_VERSION}")
    if found != _RIGHT_VERSION:
        return fault(
            name,
            f"version {found}, but RLBench runs on {_RIGHT_VERSION} only: its scenes find objects by names that newer "
            "versions resolve otherwise ('Handle … does not exist'), and PyRep is built for the functions of that one",
            f"{_GET_COPPELIASIM}; {_BUILD.format(python=where.python)} --force   # PyRep is linked against the old one",
        )
    return ok(name, found)


def version_of(root: Path) -> str:
    """Read CoppeliaSim's version from its headers, its readme, its library or its folder's name; "" when none tells."""
    for header in ("simConst.h", "simLib/simConst.h"):
        number = re.search(r"SIM_PROGRAM_VERSION_NB\s+(\d+)", _text(root / "programming/include" / header))
        if number:  # 40100
            major, rest = divmod(int(number[1]), 10_000)
            return f"{major}.{rest // 100}.{rest % 100}"
    told = re.search(r"\bV?(\d+\.\d+\.\d+)\b", _text(root / "readme.txt"))
    if told:
        return told[1]
    for library in (root / name for name in _LIBRARIES):
        if library.is_file():
            # As it greets ("V4.1.0 (rev. 1)"), or the bare number as a string of its own.
            data = library.read_bytes()
            numbers = re.findall(rb"V(\d+\.\d+\.\d+)\.? *\(rev", data) or re.findall(rb"\0(4\.\d{1,2}\.\d)\.?\0", data)
            if len(set(numbers)) == 1:
                return numbers[0].decode()
    # What scripts/install_coppeliasim.sh noted of the tarball, or the folder as it was unpacked.
    named = re.search(r"V(\d+)_(\d+)_(\d+)", _text(root / ".manyarms-origin") or root.resolve().name)
    return ".".join(named.groups()) if named else ""


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


def libraries(root: Path, where: Where) -> Row:
    """Have the loader resolve CoppeliaSim, and the part of Qt that draws on X."""
    name = "rlbench: libraries"
    plug_in = next((root / path for path in _X_PLUG_INS if (root / path).exists()), None)
    if plug_in is None:
        found = f"Qt's plug-in for X displays ({_X_PLUG_INS[0]}) is not in {root}"
        return fault(name, found, _GET_COPPELIASIM)
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("LD_LIBRARY_PATH", "")]))
    missing: list[str] = []
    for file in (next(root / library for library in _LIBRARIES if (root / library).exists()), plug_in):
        answer = ask(["ldd", str(file)], where.seconds / 4, {**os.environ, "LD_LIBRARY_PATH": path})
        if answer.failure:
            return fault(name, f"ldd {file}: {answer.failure}", _GET_COPPELIASIM)
        missing += re.findall(r"(\S+) => not found", answer.said)
    if missing:
        packages = " ".join(dict.fromkeys(map(debian_package, missing)))
        found = f"not on this system: {', '.join(dict.fromkeys(missing))}"
        return fault(name, found, f"apt-get install {packages}")
    return ok(name, "all of CoppeliaSim's and Qt's are found")


def debian_package(library: str) -> str:
    """Name the package that a library comes in by Debian's rule: libxcb-icccm.so.4 -> libxcb-icccm4."""
    stem, _, number = library.lower().replace("_", "-").partition(".so.")
    number = number.partition(".")[0]
    return f"{stem}-{number}" if stem[-1:].isdigit() else f"{stem}{number}"


def search_path(root: Path) -> Row:
    """Check that the loader looks into CoppeliaSim's folder: it reads its path once, when a process starts."""
    name = "rlbench: LD_LIBRARY_PATH"
    entries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if any(entry and os.path.realpath(entry) == os.path.realpath(root) for entry in entries):
        return ok(name, f"contains {_ROOT}")
    return fault(
        name, f"does not contain {root}", f'export LD_LIBRARY_PATH="${_ROOT}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"'
    )


def pyrep(where: Where) -> Row:
    """Import PyRep where workers run; the package of that name on PyPI is something else."""
    answer = ask([where.python, "-c", _IMPORT_PYREP], where.seconds)
    build = _BUILD.format(python=where.python)
    if answer.failure == "OTHER":
        found = "the package installed as pyrep is another one, from PyPI"
        return fault("rlbench: PyRep", found, f"{where.python} -m pip uninstall -y pyrep; {build}")
    if answer.failure:
        return fault("rlbench: PyRep", answer.failure, f"{build} --force")
    return ok("rlbench: PyRep", os.path.dirname(answer.said.splitlines()[-1]))


def rlbench(where: Where) -> Row:
    """Look for RLBench, without the seconds that importing it takes."""
    code = "import importlib.util as u, sys; s = u.find_spec('rlbench'); print(s.origin) if s else sys.exit(1)"
    answer = ask([where.python, "-c", code], where.seconds)
    if answer.failure:
        return fault("rlbench: RLBench", f"{where.python} does not find it", _BUILD.format(python=where.python))
    return ok("rlbench: RLBench", os.path.dirname(answer.said))


def opencv(where: Where) -> Row:
    """Look for an OpenCV that brings a Qt of its own, which CoppeliaSim's cannot live beside."""
    name = "rlbench: OpenCV"
    answer = ask([where.python, "-c", _LIST_PACKAGES], where.seconds)
    if answer.failure:
        return fault(name, answer.failure, f"{where.python} -m pip check")
    packages = json.loads(answer.said)
    clashing = [package for package in _WITH_QT if package in packages]
    if clashing:
        # Both unpack into the same folder: the other must be installed anew after one of them is removed.
        pip = f"{where.python} -m pip"
        fix = f"{pip} uninstall -y {' '.join(clashing)} opencv-python-headless; {pip} install opencv-python-headless"
        return fault(name, f"{clashing[0]} brings a Qt of its own, which clashes with CoppeliaSim's", fix)
    headless = next((package for package in packages if package.endswith("-headless")), "")
    return ok(name, f"{headless} {packages[headless]}" if headless else "none that brings a Qt of its own")


def display() -> Row:
    """Look for something to draw on: an Xvfb of each worker's own, or the display that is there."""
    if shutil.which("Xvfb") is not None:
        return ok("rlbench: display", "each worker gets an Xvfb of its own (display='xvfb')")
    fix = "apt-get install xvfb"
    shown = os.environ.get("DISPLAY", "")
    if not shown:
        return fault("rlbench: display", "DISPLAY is not set, and Xvfb is not installed", fix)
    try:
        check_external(shown)
    except ManyarmsError as error:
        return fault("rlbench: display", error.what, fix)
    return ok("rlbench: display", f"{shown}, which is there (display='external')")
