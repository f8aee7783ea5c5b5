"""Things that several tasks share."""

from __future__ import annotations

from typing import Dict

from .scene import GHOST, OBJECT, TABLE_HEIGHT

#: Drawers from the bottom up: name and height of the middle above the table.
DRAWERS: Dict[str, float] = {"bottom": 0.055, "middle": 0.155, "top": 0.255}

#: How far a drawer comes out, and where its handle is in front of the cabinet's middle.
DRAWER_TRAVEL = 0.18
HANDLE_REACH = 0.155

_DRAWER = """
<body name="drawer_%(name)s" pos="0 0 %(height)g">
  <joint name="drawer_%(name)s" type="slide" axis="-1 0 0" range="0 %(travel)g" damping="4" frictionloss="1.5"
         armature="0.1"/>
  <geom type="box" pos="-0.108 0 0" size="0.006 0.122 0.044" rgba=".80 .62 .44 1" mass="0.2" %(touch)s/>
  <geom type="box" pos="0 0 -0.036" size="0.10 0.112 0.004" rgba=".66 .50 .35 1" mass="0.2" %(touch)s/>
  <geom type="box" pos="0 0.108 -0.005" size="0.10 0.004 0.03" rgba=".66 .50 .35 1" mass="0.1" %(touch)s/>
  <geom type="box" pos="0 -0.108 -0.005" size="0.10 0.004 0.03" rgba=".66 .50 .35 1" mass="0.1" %(touch)s/>
  <geom type="box" pos="0.096 0 -0.005" size="0.004 0.112 0.03" rgba=".66 .50 .35 1" mass="0.1" %(touch)s/>
  <geom type="capsule" fromto="-0.114 0 0.022 -%(reach)g 0 0.022" size="0.005" material="metal" mass="0.02" %(touch)s/>
  <geom type="capsule" fromto="-0.114 0 -0.022 -%(reach)g 0 -0.022" size="0.005" material="metal" mass="0.02"
        %(touch)s/>
  <geom type="box" pos="-%(reach)g 0 0" size="0.006 0.008 0.028" material="metal" mass="0.03" %(touch)s/>
  <site name="handle_%(name)s" pos="-%(reach)g 0 0" rgba="0 0 0 0"/>
</body>
"""

_CABINET = """
<body name="cabinet" pos="0.45 0 %(table)g">
  <geom type="box" pos="0.005 0.132 0.155" size="0.105 0.006 0.155" rgba=".58 .42 .28 1" %(touch)s/>
  <geom type="box" pos="0.005 -0.132 0.155" size="0.105 0.006 0.155" rgba=".58 .42 .28 1" %(touch)s/>
  <geom type="box" pos="0.11 0 0.155" size="0.006 0.132 0.155" rgba=".58 .42 .28 1" %(touch)s/>
  <geom type="box" pos="0.005 0 0.312" size="0.113 0.14 0.006" rgba=".62 .46 .31 1" %(touch)s/>
  %(drawers)s
</body>
"""


def cabinet() -> str:
    """Return a cabinet with three drawers, facing the robot."""
    drawers = "".join(
        _DRAWER % {"name": name, "height": height, "travel": DRAWER_TRAVEL, "reach": HANDLE_REACH, "touch": OBJECT}
        for name, height in DRAWERS.items()
    )
    return _CABINET % {"table": TABLE_HEIGHT, "touch": OBJECT, "drawers": drawers}


def cabinet_contacts() -> str:
    """Return the section that lets drawers slide in their cabinet."""
    names = ["cabinet", *("drawer_%s" % name for name in DRAWERS)]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return "<contact>%s</contact>" % "".join('<exclude body1="%s" body2="%s"/>' % pair for pair in pairs)


def zone(name: str, half: float, rgba: str) -> str:
    """Return a coloured square on the table, to put things on; it cannot be touched."""
    return '<body name="%s" pos="0.3 0 %g"><geom name="%s" type="box" size="%g %g 0.0008" rgba="%s" %s/></body>' % (
        name,
        TABLE_HEIGHT + 0.0008,
        name,
        half,
        half,
        rgba,
        GHOST,
    )
