"""A Franka-Panda-shaped arm of capsules and boxes: the real arm's joints, limits and lengths, no mesh files.

Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

from typing import List, Tuple

JOINTS = tuple("panda_joint%d" % (i + 1) for i in range(7))
FINGERS = ("panda_finger_joint1", "panda_finger_joint2")

#: Radians.
JOINT_LIMITS: Tuple[Tuple[float, float], ...] = (
    (-2.8973, 2.8973),
    (-1.7628, 1.7628),
    (-2.8973, 2.8973),
    (-3.0718, -0.0698),
    (-2.8973, 2.8973),
    (-0.0175, 3.7525),
    (-2.8973, 2.8973),
)
#: Radians a second.
JOINT_SPEEDS = (2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61)

#: Where an episode begins: over the table, looking down.
HOME = (0.0, 0.1745, 0.0, -0.8727, 0.0, 1.2217, 0.7854)

#: Metres each finger travels, and from the hand to between the fingertips.
FINGER_TRAVEL = 0.04
TIP_OFFSET = 0.1034

_FORCES = (87, 87, 87, 87, 12, 12, 12)
#: Servos: stiffness and damping. With forces that are limited, more damping than this makes the solver swing.
_STIFFNESS = (2000, 2000, 2000, 2000, 600, 600, 600)
_DAMPING = (110, 110, 110, 110, 32, 32, 32)

_TURN_DOWN = "0.7071068 -0.7071068 0 0"
_TURN_UP = "0.7071068 0.7071068 0 0"

#: Where each link's frame lies in that of the link before it.
_FRAMES = (
    ("0 0 0.333", "1 0 0 0"),
    ("0 0 0", _TURN_DOWN),
    ("0 -0.316 0", _TURN_UP),
    ("0.0825 0 0", _TURN_UP),
    ("-0.0825 0.384 0", _TURN_DOWN),
    ("0 0 0", _TURN_UP),
    ("0.088 0 0", _TURN_UP),
)

#: The shape of each link: capsules as (from, to, radius, mass, material).
_SHAPES: Tuple[Tuple[Tuple[str, str, float, float, str], ...], ...] = (
    (("0 0 -0.20", "0 0 -0.04", 0.058, 2.0, "shell"), ("0 -0.05 0", "0 0.05 0", 0.058, 1.2, "joint")),
    (("0 0 -0.05", "0 0 0.05", 0.056, 1.0, "joint"), ("0 -0.05 0", "0 -0.20 0", 0.054, 2.0, "shell")),
    (("0 0 -0.10", "0 0 -0.03", 0.052, 1.3, "shell"), ("0.0825 -0.04 0", "0.0825 0.04 0", 0.052, 1.2, "joint")),
    (("0 0 -0.05", "0 0 0.05", 0.050, 1.0, "joint"), ("-0.0825 0.08 0", "-0.0825 0.16 0", 0.050, 1.6, "shell")),
    (
        ("0 0 -0.22", "0 0.02 -0.12", 0.045, 1.2, "shell"),
        ("0 0.07 -0.10", "0 0.06 -0.01", 0.030, 0.8, "shell"),
        ("0 -0.04 0", "0 0.04 0", 0.045, 0.8, "joint"),
    ),
    (("0 0 -0.05", "0 0 0.02", 0.044, 0.9, "joint"), ("0.088 -0.02 0", "0.088 0.03 0", 0.044, 0.7, "shell")),
    (("0 0 0.01", "0 0 0.08", 0.040, 0.6, "joint"),),
)

DEFAULTS = """
<default>
  <default class="arm">
    <joint damping="1" armature="0.15"/>
    <geom contype="2" conaffinity="1" friction="0.8"/>
  </default>
  <default class="finger">
    <joint type="slide" axis="0 1 0" range="0 0.04" damping="4" armature="0.02"/>
    <geom contype="2" conaffinity="1" condim="4" friction="2 0.1 0.001" solref="0.01 1" rgba=".16 .17 .2 1"/>
  </default>
</default>
"""

MATERIALS = """
<material name="shell" rgba=".93 .94 .96 1" specular=".4" shininess=".5"/>
<material name="joint" rgba=".32 .35 .40 1" specular=".3" shininess=".4"/>
<material name="hand" rgba=".88 .89 .91 1" specular=".3" shininess=".4"/>
"""


def body(position: str) -> str:
    """Return the arm, standing at `position`."""
    opening: List[str] = [
        '<body name="panda_link0" pos="%s" childclass="arm" gravcomp="1">' % position,
        '<geom type="cylinder" fromto="0 0 0 0 0 0.06" size="0.09" material="joint" mass="2"/>',
        '<geom type="capsule" fromto="0 0 0.06 0 0 0.13" size="0.062" material="shell" mass="1"/>',
    ]
    for i, ((place, turn), shapes) in enumerate(zip(_FRAMES, _SHAPES)):
        low, high = JOINT_LIMITS[i]
        opening.append('<body name="panda_link%d" pos="%s" quat="%s" gravcomp="1">' % (i + 1, place, turn))
        opening.append('<joint name="%s" axis="0 0 1" range="%g %g"/>' % (JOINTS[i], low, high))
        for start, end, radius, mass, material in shapes:
            opening.append(
                '<geom type="capsule" fromto="%s %s" size="%g" mass="%g" material="%s"/>'
                % (start, end, radius, mass, material)
            )
    return "\n".join(opening) + _HAND + "</body>" * (len(_FRAMES) + 1)


_FINGER = """
<body name="panda_%(side)s_finger" pos="0 0 0.0584" %(turn)s gravcomp="1" childclass="finger">
  <joint name="%(joint)s"/>
  <geom type="box" pos="0 0.012 0.012" size="0.010 0.008 0.014" mass="0.02"/>
  <geom name="%(side)s_pad" type="box" pos="0 0.0065 0.035" size="0.010 0.0065 0.018" mass="0.02"/>
</body>
"""

_HAND = """
<body name="panda_hand" pos="0 0 0.107" quat="0.9238795 0 0 -0.3826834" gravcomp="1">
  <geom type="box" pos="0 0 0.03" size="0.022 0.095 0.032" mass="0.5" material="hand"/>
  <geom type="capsule" fromto="0 -0.09 0.03 0 0.09 0.03" size="0.028" mass="0.1" material="hand"/>
  <site name="tip" pos="0 0 %g" size="0.004" rgba="0 0 0 0"/>
  <camera name="wrist" pos="0.07 0 0.02" xyaxes="0 1 0 0.97 0 0.25" fovy="70"/>
  %s%s
</body>
""" % (
    TIP_OFFSET,
    _FINGER % {"side": "left", "joint": FINGERS[0], "turn": ""},
    _FINGER % {"side": "right", "joint": FINGERS[1], "turn": 'quat="0 0 0 1"'},
)


def actuators() -> str:
    """Return what moves the arm: position servos, as strong as the real ones."""
    lines = [
        '<position name="%s" joint="%s" kp="%d" kv="%d" ctrlrange="%g %g" forcerange="-%d %d"/>'
        % (name, name, stiffness, damping, low, high, force, force)
        for name, stiffness, damping, (low, high), force in zip(JOINTS, _STIFFNESS, _DAMPING, JOINT_LIMITS, _FORCES)
    ]
    lines += [
        '<position name="%s" joint="%s" kp="800" kv="60" ctrlrange="0 %g" forcerange="-20 20"/>'
        % (name, name, FINGER_TRAVEL)
        for name in FINGERS
    ]
    return "\n".join(lines)
