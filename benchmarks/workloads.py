"""The environments every peer is measured on; see `benchmarks/README.md`."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

ACTION = Box(-1.0, 1.0, (8,), np.float32)
STATE = Box(-np.inf, np.inf, (32,), np.float32)


class _Workload(gymnasium.Env[Any, Any]):
    """Counts steps; what a step costs is in `_work`."""

    action_space = ACTION

    def __init__(self) -> None:
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._work(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._work(), 0.0, False, False, {}

    def _work(self) -> Any:
        raise TypeError("a workload must say what it does")


class NullState(_Workload):
    """Costs nothing: what is left is the hand-over."""

    observation_space = STATE

    def __init__(self) -> None:
        super().__init__()
        self._state = np.zeros(32, np.float32)

    def _work(self) -> Any:
        self._state[0] = self._step
        return self._state


class _Images(_Workload):
    """Two cameras and a state."""

    size = 256

    def __init__(self) -> None:
        super().__init__()
        image = Box(0, 255, (self.size, self.size, 3), np.uint8)
        self.observation_space = Dict({"front_rgb": image, "wrist_rgb": image, "state": STATE})
        self._frames = {name: np.zeros(image.shape, np.uint8) for name in ("front_rgb", "wrist_rgb")}
        self._state = np.zeros(32, np.float32)

    def _observe(self) -> dict[str, Any]:
        self._state[0] = self._step
        return {**self._frames, "state": self._state}


class NullImages(_Images):
    """Fills two 256x256 images: the cost of moving pixels."""

    def _work(self) -> Any:
        for frame in self._frames.values():
            frame.fill(self._step & 255)
        return self._observe()


class Busy(_Images):
    """Sleeps 3-7 ms a step: stragglers."""

    size = 128

    def _work(self) -> Any:
        if self._step:
            time.sleep(self.np_random.uniform(0.003, 0.007))
        return self._observe()


_ARM = "".join(
    f'<body pos="0 0 {0.1 if i else 0.05}"><joint name="j{i}" axis="{i % 2} {1 - i % 2} 0" damping="1"/>'
    f'<geom type="capsule" fromto="0 0 0 0 0 .1" size=".03" rgba=".9 .9 {i / 8} 1"/>'
    for i in range(7)
)
_BOXES = "".join(
    f'<body pos=".4 {y} .05"><freejoint/><geom type="box" size=".03 .03 .03"/></body>' for y in (-0.2, 0, 0.2)
)
SCENE = f"""
<mujoco>
  <visual><global offwidth="128" offheight="128"/></visual>
  <worldbody>
    <light pos="0 0 2"/><camera name="front" pos="1.2 0 .8" xyaxes="0 1 0 -.5 0 .9"/>
    <camera name="wrist" pos="0 1.2 .8" xyaxes="-1 0 0 0 -.5 .9"/>
    <geom type="plane" size="1 1 .1" rgba=".6 .5 .4 1"/>
    {_ARM}{"</body>" * 7}
    {_BOXES}
  </worldbody>
  <actuator>{"".join(f'<motor joint="j{i}" gear="5"/>' for i in range(7))}</actuator>
</mujoco>
"""


class _Scene:
    """A real scene: seven joints, three boxes, two 128x128 cameras, as MuJoCo renders by default."""

    def __init__(self) -> None:
        os.environ.setdefault("MUJOCO_GL", "osmesa")
        mujoco: Any = importlib.import_module("mujoco")
        self._mujoco = mujoco
        self.model = mujoco.MjModel.from_xml_string(SCENE)
        self.data = mujoco.MjData(self.model)
        self.renderer = mujoco.Renderer(self.model, 128, 128)

    def reset(self) -> None:
        self._mujoco.mj_resetData(self.model, self.data)

    def advance(self, action: Any) -> None:
        self.data.ctrl[:] = action[:7]
        for _ in range(25):
            self._mujoco.mj_step(self.model, self.data)

    def state(self) -> np.ndarray:
        state = np.zeros(32, np.float32)
        state[:28] = self.data.qpos[:28]
        return state

    def render(self, camera: str, out: np.ndarray) -> None:
        self.renderer.update_scene(self.data, camera)
        self.renderer.render(out=out)


class Mujoco(_Images):
    """A real scene, used as any Gymnasium environment: every step renders."""

    size = 128

    def __init__(self) -> None:
        super().__init__()
        self._scene = _Scene()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._scene.advance(action)
        return super().step(action)

    def _work(self) -> Any:
        if not self._step:
            self._scene.reset()
        for camera, name in (("front", "front_rgb"), ("wrist", "wrist_rgb")):
            self._scene.render(camera, self._frames[name])
        return {**self._frames, "state": self._scene.state()}


WORKLOADS = {"null_state": NullState, "null_images": NullImages, "busy": Busy, "mujoco": Mujoco}

#: Workloads written as a simulator for us: `observe` is apart from `step`, so that a chunk is rendered once, and
#: writes straight into the shared memory. Rewards, states and pixels are those of the environment.
SIMULATORS = {
    "mujoco": "mujoco_simulator",
    "null_images": "null_images_simulator",
    "null_state": "null_state_simulator",
}


def _simulator(size: int, scene: Any, cameras: tuple[str, ...] = ("front", "wrist")) -> Any:
    """Make a simulator of some cameras and a state."""
    from manyarms.simulators.base import Field, Simulator, Spec, StepResult

    class Scene(Simulator):
        """Hands everything on to `scene`."""

        def __init__(self) -> None:
            images = {f"{name}_rgb": Field((size, size, 3), "uint8", 0, 255, camera=name) for name in cameras}
            self.spec = Spec({**images, "state": Field((32,))}, {"": Field((8,), "float32", -1.0, 1.0)})

        def reset(self, task: Any, seed: Any, init_state: Any) -> None:
            scene.reset()

        def step(self, action: Any) -> StepResult:
            scene.advance(action)
            return StepResult(0.0)

        def observe(self, out: dict[str, np.ndarray], cameras: Any) -> None:
            out["state"][:] = scene.state()
            for camera in cameras:
                scene.render(camera, out[camera + "_rgb"])

    return Scene()


def mujoco_simulator() -> Any:
    """Make the real scene as a simulator."""
    return _simulator(128, _Scene())


class _Fill:
    """What `NullState` and `NullImages` do."""

    def __init__(self) -> None:
        self._count = 0
        self._state = np.zeros(32, np.float32)

    def reset(self) -> None:
        self._count = 0

    def advance(self, action: Any) -> None:
        self._count += 1

    def state(self) -> np.ndarray:
        self._state[0] = self._count
        return self._state

    def render(self, camera: str, out: np.ndarray) -> None:
        out.fill(self._count & 255)


def null_images_simulator() -> Any:
    """Make the filled images as a simulator."""
    return _simulator(256, _Fill())


def null_state_simulator() -> Any:
    """Make the counter as a simulator."""
    return _simulator(0, _Fill(), cameras=())


class Plain:
    """An environment behind two methods, for libraries that run any object in a process."""

    def __init__(self, workload: str, chunk: int) -> None:
        self._env = make(workload, chunk)

    def reset(self) -> Any:
        return self._env.reset(seed=0)

    def step(self, action: Any) -> Any:
        return self._env.step(action)


class Chunked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """What a user of another library writes to send K actions in one call: a step is K steps."""

    def __init__(self, env: gymnasium.Env[Any, Any], length: int) -> None:
        super().__init__(env)
        box = env.action_space
        assert isinstance(box, Box)
        self.action_space = Box(box.low[None].repeat(length, 0), box.high[None].repeat(length, 0), dtype=np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        observation, terminated, truncated, info = None, False, False, {}
        for one in action:
            observation, reward, terminated, truncated, info = self.env.step(one)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def make(workload: str, chunk: int = 1) -> gymnasium.Env[Any, Any]:
    """Make one environment, with the chunk wrapper when a step is to be several."""
    env = WORKLOADS[workload]()
    return Chunked(env, chunk) if chunk > 1 else env


def make_from_environment() -> gymnasium.Env[Any, Any]:
    """Make the environment that two variables name: for workers, which are given a function without arguments."""
    return make(os.environ["WORKLOAD"], int(os.environ.get("WORKLOAD_CHUNK", "1")))
