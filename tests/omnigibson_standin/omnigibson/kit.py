"""What stands for Kit and the simulator: one a process, moody at its start.

Faults: ``launch_hang``, ``launch_crash``, ``launch_error=N`` (the first N attempts raise), ``scene_error=N`` (the
first N times that scenes are loaded raise).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import signal
import sys
import time

import omnigibson as og

from .macros import gm

_attempts = {"launch_error": 0, "scene_error": 0}
_ISAAC = {"3.7": "4.5.0", "3.9": "5.1.0"}


def note(text):
    """Write down what was done, for tests."""
    if os.environ.get("OMNIGIBSON_STANDIN_LOG"):
        with open(os.environ["OMNIGIBSON_STANDIN_LOG"], "a") as log:
            log.write("%s\n" % text)


def faults():
    """Return what was asked for: word -> number."""
    words = [word for word in os.environ.get("OMNIGIBSON_STANDIN_FAULTS", "").split(",") if word]
    return {word.partition("=")[0]: int(word.partition("=")[2] or 1) for word in words}


def fail_at(word, message):
    """Raise as often as was asked for."""
    _attempts[word] += 1
    if _attempts[word] <= faults().get(word, 0):
        raise RuntimeError(message)


class App:
    """Kit."""

    def __init__(self):
        with contextlib.suppress(ImportError):
            importlib.import_module("isaacsim")  # that of pip sets what follows
        isaac = os.environ["ISAAC_PATH"]
        assert "EXP_PATH" in os.environ, "The EXP_PATH variable is not set."
        assert os.path.isdir(os.environ["EXP_PATH"])
        with open(os.path.join(isaac, "VERSION")) as file:
            assert file.read().startswith(_ISAAC[og.__version__[:3]]), "Isaac Sim version must be another one"
        if sys.argv[1:]:
            raise RuntimeError("Kit does not know the arguments %s" % sys.argv[1:])
        sys.argv += ["--portable-root", gm.APPDATA_PATH]
        gc.disable()
        signal.signal(signal.SIGINT, og.shutdown_handler)
        os.makedirs(os.path.join(gm.APPDATA_PATH, "local"), exist_ok=True)
        self._cache = open(os.path.join(gm.APPDATA_PATH, "local", "cache"), "w")  # noqa: SIM115 (open while it runs)
        try:
            fcntl.flock(self._cache, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.abort()  # two processes in one cache
        asked = faults()
        if "launch_hang" in asked:
            time.sleep(3600)
        if "launch_crash" in asked:
            os.abort()
        fail_at("launch_error", "Failed to acquire interface: carb::windowing")
        note("data %s" % gm.DATA_PATH)
        note("launch gpu=%s headless=%s viewer=%s" % (gm.GPU_ID, gm.HEADLESS, gm.RENDER_VIEWER_CAMERA))

    def close(self):
        note("close")
        sys.stdout.flush()
        os._exit(0)  # as Kit does


class Simulator:
    """All scenes share it: what moves one on moves all."""

    def __init__(self, physics_dt, rendering_dt, sim_step_dt, device):
        self.physics_dt, self.rendering_dt, self.sim_step_dt, self.device = (
            physics_dt,
            rendering_dt,
            sim_step_dt,
            device,
        )
        self.scenes = []
        self.playing = False
        self._callbacks = {"add_obj": {}, "remove_obj": {}, "system_init": {}, "system_clear": {}}

    def play(self):
        self.playing = True

    def stop(self):
        """Stop, and with that forget where everything is."""
        for scene in self.scenes:
            if scene.robot is not None and self.playing:
                scene.forget()
        self.playing = False

    def tell(self, word, thing):
        """Tell of something that was added or removed, as OmniGibson does itself."""
        for callback in self._callbacks[word].values():
            callback(thing)

    def add_callback_on_add_obj(self, name, callback):
        self._callbacks["add_obj"][name] = callback

    def add_callback_on_remove_obj(self, name, callback):
        self._callbacks["remove_obj"][name] = callback

    def add_callback_on_system_init(self, name, callback):
        self._callbacks["system_init"][name] = callback

    def add_callback_on_system_clear(self, name, callback):
        self._callbacks["system_clear"][name] = callback

    def remove_callback_on_add_obj(self, name):
        self._callbacks["add_obj"].pop(name, None)

    def remove_callback_on_remove_obj(self, name):
        self._callbacks["remove_obj"].pop(name, None)

    def remove_callback_on_system_init(self, name):
        self._callbacks["system_init"].pop(name, None)

    def remove_callback_on_system_clear(self, name):
        self._callbacks["system_clear"].pop(name, None)

    def step(self):
        for _ in range(round(self.sim_step_dt / self.physics_dt)):
            self.step_physics()
        self.render()

    def step_physics(self):
        assert self.playing
        for scene in self.scenes:
            scene.move(self.physics_dt)

    def step_without_rendering(self):
        for _ in range(round(self.sim_step_dt / self.physics_dt)):
            self.step_physics()

    def render(self):
        note("render")
        for scene in self.scenes:
            scene.draw()


def launch(physics_dt=1 / 120, rendering_dt=1 / 30, sim_step_dt=1 / 30, device="cpu"):
    if og.app is None:
        og.app = App()
    og.sim = Simulator(physics_dt, rendering_dt, sim_step_dt, device)
    return og.sim


def relaunch():
    old = og.sim
    og.sim = Simulator(old.physics_dt, old.rendering_dt, old.sim_step_dt, old.device)
