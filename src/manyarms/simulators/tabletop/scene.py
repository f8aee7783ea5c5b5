"""The table, the light, the cameras, and what a task puts between them, as one MuJoCo model.

Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

from . import panda

#: Metres above the floor, as in RLBench.
TABLE_HEIGHT = 0.752
BASE = (-0.3, 0.0, TABLE_HEIGHT)

#: Seconds per action, and the steps of physics that it is made of.
CONTROL_PERIOD = 0.05
PHYSICS_STEPS = 15
TIMESTEP = CONTROL_PERIOD / PHYSICS_STEPS

#: Where poses may be asked for: outside, an action is invalid.
WORKSPACE_LOW = (-0.275, -0.655, TABLE_HEIGHT)
WORKSPACE_HIGH = (0.775, 0.655, 1.75)

CAMERAS = ("front", "wrist", "left_shoulder", "right_shoulder", "overhead")

NEAR, FAR = 0.02, 4.0

_TEMPLATE = """
<mujoco model="tabletop">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="%(timestep).10g" integrator="implicitfast" cone="elliptic" impratio="10"/>
  <size memory="4M"/>
  <statistic center="0.2 0 0.9" extent="1"/>
  <visual>
    <map znear="%(near)g" zfar="%(far)g"/>
    <global offwidth="1024" offheight="1024"/>
    <headlight ambient=".42 .42 .45" diffuse=".35 .35 .35" specular=".1 .1 .1"/>
    <quality shadowsize="2048" offsamples="4"/>
  </visual>
  %(defaults)s
  <asset>
    <texture name="wood" type="2d" builtin="checker" rgb1=".72 .56 .40" rgb2=".69 .53 .375" width="64" height="512"/>
    <material name="wood" texture="wood" texrepeat="14 1" texuniform="false" specular=".15" shininess=".2"/>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".86 .90 .94" rgb2=".55 .62 .70" width="64" height="384"/>
    <material name="floor" rgba=".55 .58 .62 1"/>
    <material name="metal" rgba=".62 .64 .67 1" specular=".6" shininess=".6"/>
    %(materials)s
    %(assets)s
  </asset>
  <worldbody>
    <light pos="0.4 -0.9 2.6" dir="-0.1 0.4 -1" diffuse=".55 .55 .52" castshadow="true"/>
    <light pos="0.2 0.9 2.4" dir="0 -0.4 -1" diffuse=".25 .26 .3" castshadow="false"/>
    <geom name="floor" type="plane" size="3 3 .1" material="floor" contype="1" conaffinity="3"/>
    <geom name="table" type="box" pos="0.2 0 %(table)g" size="0.62 0.72 0.02" material="wood"
          contype="1" conaffinity="3" friction="0.9 0.01 0.001"/>
    <geom type="box" pos="0.2 0 0.36" size="0.05 0.05 0.36" material="metal" contype="0" conaffinity="0"/>
    <geom type="box" pos="0.2 0 0.01" size="0.35 0.35 0.01" material="metal" contype="0" conaffinity="0"/>
    <camera name="front" pos="1.55 0 1.72" xyaxes="0 1 0 -0.436 0 0.9" fovy="43"/>
    <camera name="left_shoulder" pos="-0.35 0.72 1.62" xyaxes="-0.62 -0.785 0 0.44 -0.348 0.828" fovy="62"/>
    <camera name="right_shoulder" pos="-0.35 -0.72 1.62" xyaxes="0.62 -0.785 0 0.44 0.348 0.828" fovy="62"/>
    <camera name="overhead" pos="0.2 0 2.7" xyaxes="0 -1 0 1 0 0" fovy="34"/>
    %(arm)s
    %(bodies)s
  </worldbody>
  <actuator>%(actuators)s</actuator>
  %(rest)s
</mujoco>
"""

#: How things that can be grasped, pushed and stacked touch each other.
OBJECT = 'contype="1" conaffinity="3" condim="3" friction="1.1 0.02 0.001" solref="0.01 1"'

#: What is seen but not touched.
GHOST = 'contype="0" conaffinity="0"'


def model_xml(bodies: str, assets: str = "", rest: str = "") -> str:
    """Return the whole model with a task's own bodies, assets and further sections."""
    return _TEMPLATE % {
        "timestep": TIMESTEP,
        "near": NEAR,
        "far": FAR,
        "defaults": panda.DEFAULTS,
        "materials": panda.MATERIALS,
        "assets": assets,
        "table": TABLE_HEIGHT - 0.02,
        "arm": panda.body("%g %g %g" % BASE),
        "bodies": bodies,
        "actuators": panda.actuators(),
        "rest": rest,
    }


def block(name: str, size: float, rgba: str = ".8 .2 .2 1", mass: float = 0.05) -> str:
    """Return a cube that can be moved, of half-width `size`."""
    return (
        '<body name="%s" pos="0.3 0 %g"><freejoint name="%s"/>'
        '<geom name="%s" type="box" size="%g %g %g" rgba="%s" mass="%g" %s/></body>'
        % (name, TABLE_HEIGHT + size, name, name, size, size, size, rgba, mass, OBJECT)
    )
