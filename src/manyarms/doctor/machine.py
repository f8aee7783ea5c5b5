"""The machine itself: interpreter, processors, memory, files, GPU, videos."""

from __future__ import annotations

import glob
import importlib.util
import math
import mmap
import os
import platform
import resource
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil

from manyarms.doctor.examination import ask
from manyarms.simulators.about import Finding, absent, fault, ok
from manyarms.vector.memory import available_bytes, pretty
from manyarms.vector.topology import cpu_quota

_LEAST_MEMORY = 512 << 20
_LEAST_DISK = 256 << 20
_MEMFD_BYTES = 16 << 20

#: As `vector/supervisor.py` counts them: files that a worker costs the main process, and those it needs anyway.
_FILES_PER_WORKER, _OTHER_FILES = 4, 128
_LEAST_WORKERS = 16

_TORCH = """
import torch
print(torch.__version__, torch.version.cuda or "none", torch.cuda.is_available())
if torch.cuda.is_available():
    x = torch.ones(64, 64, device="cuda")
    assert float((x @ x).sum()) == 64.0 ** 3, "the GPU multiplies wrongly"
    print(torch.cuda.get_device_name(0))
"""

#: Of the video that is written.
_FRAMES = 8

_OTHER_PYTHON = "import sys, numpy; print('%d.%d.%d' % sys.version_info[:3], numpy.__version__)"


def findings(seconds: float, python: str | None = None) -> list[Finding]:
    """Look at what every run needs, whatever the simulator."""
    found = [interpreter()]
    if python is not None:
        found.append(other_interpreter(python, seconds))
    return [*found, processors(), memory(), shared_memory(), dev_shm(), open_files(), temporary_files()]


def interpreter() -> Finding:
    """Say which Python this is."""
    where = "virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    return ok("Python", f"{platform.python_version()}, {where} {sys.prefix}")


def other_interpreter(python: str, seconds: float) -> Finding:
    """Start the interpreter that simulators are to run in; workers need Python 3.8 and numpy there."""
    name = "Python of simulators"
    answer = ask([python, "-c", _OTHER_PYTHON], seconds / 2)
    if answer.failure:
        return fault(name, f"{python}: {answer.failure}", f"{python} -m pip install numpy")
    version, numpy = answer.said.split()
    if tuple(map(int, version.split(".")[:2])) < (3, 8):
        return fault(name, f"{python} is {version}; workers need 3.8 or later", "give another with --python")
    return ok(name, f"{version} with numpy {numpy}, {python}")


def processors() -> Finding:
    """Count the processors that this process may use."""
    allowed, present, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, cpu_quota()
    parts = [f"{allowed}" if allowed == present else f"{allowed} of {present} (the rest is kept from this process)"]
    if math.isfinite(quota):
        parts.append(f"the container may use the time of {quota:g}")
    return ok("CPUs", ", ".join(parts))


def memory() -> Finding:
    """Say how much memory can be had."""
    machine, room = psutil.virtual_memory(), available_bytes()
    limited = ", limited by the container" if room < 0.98 * machine.available else ""
    found = f"{pretty(room)} free of {pretty(machine.total)}{limited}"
    if room < _LEAST_MEMORY:
        return fault("memory", f"{found}: too little for any run", "ps aux --sort=-rss | head   # what holds it")
    return ok("memory", found)


def shared_memory() -> Finding:
    """Make a memfd, as observations and actions travel in, and map it twice."""
    fix = "run on Linux 3.17 or later, in a container whose seccomp profile allows memfd_create"
    try:
        fd = os.memfd_create("manyarms-doctor")
    except OSError as error:
        return fault("memfd", f"cannot be made: {error.strerror}", fix)
    try:
        os.posix_fallocate(fd, 0, _MEMFD_BYTES)
        with mmap.mmap(fd, _MEMFD_BYTES) as one, mmap.mmap(fd, _MEMFD_BYTES) as other:
            one[-1] = 7
            if other[-1] != 7:
                return fault("memfd", "what one mapping writes another does not see", fix)
    except (OSError, ValueError) as error:
        return fault("memfd", f"{pretty(_MEMFD_BYTES)} cannot be mapped: {error}", "free memory, or raise its limit")
    finally:
        os.close(fd)
    return ok("memfd", f"{pretty(_MEMFD_BYTES)} made, mapped twice and read back")


def dev_shm() -> Finding:
    """Look at the shared memory of others: we need none of it, data loaders of PyTorch do."""
    path = Path("/dev/shm")
    if not path.is_dir() or not os.access(path, os.W_OK):
        return absent("/dev/shm", "not there or not writable; manyarms does without", "docker run --shm-size=8g …")
    return ok("/dev/shm", f"{pretty(shutil.disk_usage(path).free)} free (manyarms itself does without)")


def open_files() -> Finding:
    """Work out how many workers the limit on open files allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    workers = max(0, hard - _OTHER_FILES) // _FILES_PER_WORKER
    found = f"{soft}, and up to {hard} when asked for: enough for {workers:,} workers"
    if workers < _LEAST_WORKERS:
        return fault("open files", found, "ulimit -n 65536   # in a container: docker run --ulimit nofile=65536 …")
    return ok("open files", found)


def temporary_files() -> Finding:
    """Write a file where temporary files go."""
    fix = "export TMPDIR=<a folder with room>"
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile() as file:
            file.write(bytes(1 << 20))
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return fault("temporary files", f"cannot be written: {error}", fix)
    if free < _LEAST_DISK:
        return fault("temporary files", f"only {pretty(free)} free in {folder}", fix)
    return ok("temporary files", f"{pretty(free)} free in {folder}")


def graphics_card(seconds: float) -> list[Finding]:
    """Ask the driver for its GPUs, and PyTorch whether it can use them."""
    driver = _driver(seconds)
    return [driver, _torch(seconds, driver.status == "ok")]


def _driver(seconds: float) -> Finding:
    devices = glob.glob("/dev/nvidia[0-9]*")
    program = shutil.which("nvidia-smi")
    if program is None:
        if not devices:
            return absent("GPU", "no NVIDIA GPU; simulators and small policies do without")
        return fault(
            "GPU",
            f"{len(devices)} of them here, but no nvidia-smi",
            "apt-get install nvidia-utils-<the driver's version>   # in a container: docker run --gpus all …",
        )
    answer = ask(
        [program, "--query-gpu=name,driver_version,memory.total,memory.free", "--format=csv,noheader"], seconds / 3
    )
    if answer.failure:
        fix = "reboot, or install the NVIDIA driver again; in a container: docker run --gpus all …"
        return fault("GPU", f"nvidia-smi: {answer.failure}", fix)
    cards = [[part.strip() for part in line.split(",")] for line in answer.said.splitlines()]
    if not cards:
        return absent("GPU", "nvidia-smi lists none")
    name, version, total, free = cards[0][:4]
    count = f"{len(cards)} × " if len(cards) > 1 else ""
    return ok("GPU", f"{count}{name}, {free} free of {total}, driver {version}")


def _torch(seconds: float, has_gpu: bool) -> Finding:
    """Multiply on the GPU with PyTorch, in a process of its own: importing it takes seconds."""
    if importlib.util.find_spec("torch") is None:
        return absent("PyTorch", "not installed; training and learnt policies need it", "pip install 'manyarms[torch]'")
    answer = ask([sys.executable, "-P", "-c", _TORCH], seconds / 2)
    if answer.failure:
        return fault("PyTorch", answer.failure, "pip install --force-reinstall torch")
    (version, built_for, works), *device = (line.split() for line in answer.said.splitlines())
    if works == "True":
        return ok("PyTorch", f"{version}, CUDA {built_for} on {' '.join(device[0])}")
    if not has_gpu:
        return ok("PyTorch", f"{version}, on the CPU")
    why = "built without CUDA" if built_for == "none" else f"its CUDA {built_for} does not fit the driver"
    return fault(
        "PyTorch",
        f"{version} does not see the GPU: {why}",
        "pip install --force-reinstall torch   # a build for the driver's CUDA: pytorch.org/get-started",
    )


def video() -> list[Finding]:
    """Write a video as episodes are filmed, and read it back."""
    fix = "pip install --force-reinstall av"
    try:
        import av
        from av.error import FFmpegError

        from manyarms.reporting.video import VideoWriter
    except ImportError as error:
        return [fault("video", f"PyAV cannot be imported: {error}", fix)]
    with tempfile.TemporaryDirectory(prefix="manyarms-doctor-") as folder:
        path = Path(folder) / "grey.mp4"
        try:
            with VideoWriter(path) as writer:
                for i in range(_FRAMES):
                    writer.add(np.full((48, 64, 3), 20 * i + 40, np.uint8))
            with av.open(str(path)) as container:
                read = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        except (FFmpegError, OSError, ValueError) as error:
            return [fault("video", f"{type(error).__name__}: {error}", fix)]
    wrong = [i for i, frame in enumerate(read) if abs(float(frame.mean()) - (20 * i + 40)) > 8]
    if len(read) != _FRAMES or wrong:
        return [fault("video", f"{len(read)} of {_FRAMES} frames came back, {len(wrong)} of them changed", fix)]
    return [ok("video", f"{_FRAMES} frames written as H.264 and read back, PyAV {av.__version__}")]
