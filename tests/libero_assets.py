"""A stand-in for LIBERO's assets: boxes and cylinders of our own for the suite libero_object, nothing of LIBERO's.

LIBERO's code, task files, initial states, controller and goals run on it unchanged; pictures and contacts are not
LIBERO's. As a command: ``python tests/libero_assets.py FOLDER``.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import NamedTuple

from PIL import Image

LABEL = "Stand-ins made by manyarms' tests (tests/libero_assets.py): primitive shapes, not LIBERO's assets.\n"

CONTACT = 'solimp="0.998 0.998 0.001" solref="0.001 1" density="150" friction="0.95 0.3 0.1"'

#: LIBERO puts things on the floor 25 mm lower than their bottom site says.
SUNK = 0.025


class Thing(NamedTuple):
    """One shape that stands on the floor."""

    shape: str
    width: tuple[float, float]
    height: float
    up: str
    """Which of its own axes points up in LIBERO's initial states."""
    origin: float
    """How high above the floor its origin is there."""
    rgba: str


CAN, BOTTLE, CARTON, BAR = (0.033, 0.033), (0.025, 0.025), (0.033, 0.033), (0.05, 0.025)

THINGS = {
    "alphabet_soup": Thing("cylinder", CAN, 0.084, "y", 0.015, "0.8 0.2 0.2 1"),
    "tomato_sauce": Thing("cylinder", CAN, 0.084, "y", 0.035, "0.7 0.1 0.1 1"),
    "salad_dressing": Thing("cylinder", BOTTLE, 0.148, "y", 0.035, "0.2 0.5 0.2 1"),
    "ketchup": Thing("cylinder", BOTTLE, 0.148, "y", 0.035, "0.9 0.1 0.1 1"),
    "bbq_sauce": Thing("cylinder", BOTTLE, 0.148, "z", 0.035, "0.3 0.1 0.1 1"),
    "milk": Thing("box", CARTON, 0.16, "y", 0.035, "0.9 0.9 0.9 1"),
    "orange_juice": Thing("box", CARTON, 0.16, "y", 0.035, "1 0.6 0.1 1"),
    "cream_cheese": Thing("box", BAR, 0.034, "z", 0.0, "0.6 0.7 0.9 1"),
    "butter": Thing("box", BAR, 0.034, "z", -0.005, "0.95 0.9 0.5 1"),
    "chocolate_pudding": Thing("box", BAR, 0.034, "z", 0.035, "0.4 0.25 0.15 1"),
}

WALL, SIDE, DEEP = 0.006, 0.076, 0.06

FLOOR = """<mujoco model="stand_in_floor">
  <asset>
    <texture builtin="gradient" height="64" width="64" rgb1=".9 .9 1" rgb2=".2 .3 .4" type="skybox"/>
    <texture file="../textures/light-gray-floor-tile.png" type="2d" name="texplane"/>
    <material name="floorplane" texrepeat="3 3" texture="texplane" texuniform="true" reflectance="0.2"/>
    <texture file="../textures/light-gray-plaster.png" type="2d" name="tex-wall"/>
    <material name="walls_mat" texture="tex-wall"/>
  </asset>
  <worldbody>
    <body name="floor">
      <geom condim="3" group="1" material="floorplane" name="floor" size="3 3 .125" type="plane"/>
    </body>
    <light name="lamp" diffuse=".8 .8 .8" dir="0 -.15 -1" pos="1 1 4"/>
    <light name="sky" diffuse=".5 .5 .5" dir="0 -.15 -1" pos="-3 -3 4" castshadow="false"/>
    <camera mode="fixed" name="frontview" pos="1 0 1.45" quat="0.56 0.43 0.43 0.56"/>
    <camera mode="fixed" name="birdview" pos="-0.2 0 3" quat="0.7071 0 0 0.7071"/>
    <camera mode="fixed" name="agentview" pos="0.5 0 1.35" quat="0.653 0.271 0.271 0.653"/>
    <camera mode="fixed" name="sideview" pos="0 1.27 1.48" quat="0.0099 0.0069 0.5912 0.8064"/>
  </worldbody>
</mujoco>
"""


def solid(shape: str, rgba: str) -> str:
    """Return a shape twice: to be touched (group 0) and to be seen (group 1)."""
    seen = f'<geom {shape} contype="0" conaffinity="0" mass="0" group="1" rgba="{rgba}"/>'
    return f'<geom {shape} {CONTACT} group="0" rgba="0.8 0.8 0.8 0"/>\n{seen}'


def model(name: str, inside: str, origin: float, height: float, radius: float) -> str:
    """Return an object as robosuite wants it: a body named object, and three sites that say how big it is."""
    sites = {
        "bottom_site": f"0 0 {-origin - SUNK}",
        "top_site": f"0 0 {height}",
        "horizontal_radius_site": f"{radius} {radius} 0",
    }
    marks = "\n".join(f'<site name="{n}" pos="{at}" size="0.005" rgba="0 0 0 0"/>' for n, at in sites.items())
    body = f'<body><body name="object">\n{inside}\n</body>\n{marks}\n</body>'
    return f'<mujoco model="{name}"><asset/><worldbody>\n{body}\n</worldbody></mujoco>\n'


def thing(name: str) -> str:
    """Return a thing whose foot is on the floor when its origin is where the initial states put it."""
    shape, (x, y), height, up, origin, rgba = THINGS[name]
    half = height / 2
    size = f"{x} {half}" if shape == "cylinder" else f"{x} {y} {half}"
    lift = half - origin
    # A turn about x takes the shape's z to the object's y.
    place = f'pos="0 {lift} 0" quat="0.70710678 -0.70710678 0 0"' if up == "y" else f'pos="0 0 {lift}"'
    return model(name, solid(f'type="{shape}" size="{size}" {place}', rgba), origin, height - origin, max(x, y))


def basket() -> str:
    """Return a box without a lid, and the region that counts as inside."""
    low, origin = -0.035, 0.035
    parts = [f'type="box" size="{SIDE} {SIDE} {WALL}" pos="0 0 {low + WALL}"']
    for sign in (-1, 1):
        for x, y in ((1, 0), (0, 1)):
            size = f"{WALL if x else SIDE} {WALL if y else SIDE} {DEEP}"
            parts.append(f'type="box" size="{size}" pos="{sign * x * SIDE} {sign * y * SIDE} {low + DEEP + WALL}"')
    inside = SIDE - 2 * WALL
    region = f'type="box" pos="0 0 {low + DEEP + WALL}" quat="1 0 0 0" size="{inside} {inside} {DEEP + WALL}"'
    site = f'<site name="contain_region" {region} group="0" rgba="0.8 0 0 0"/>'
    walls = "\n".join(solid(part, "0.7 0.5 0.3 1") for part in parts)
    return model("basket", f"{site}\n{walls}", origin, 2 * DEEP, SIDE)


def write(folder: Path) -> Path:
    """Write the tree."""
    files = {f"stable_hope_objects/{name}/{name}.xml": thing(name) for name in THINGS}
    files["stable_scanned_objects/basket/basket.xml"] = basket()
    files["scenes/libero_floor_base_style.xml"] = FLOOR
    files["README"] = LABEL
    for name, text in files.items():
        put(folder / name, text.encode())
    for name, colour in (("light-gray-floor-tile", (170, 165, 160)), ("light-gray-plaster", (200, 200, 195))):
        picture = io.BytesIO()
        Image.new("RGB", (32, 32), colour).save(picture, "png")
        put(folder / "textures" / f"{name}.png", picture.getvalue())
    return folder


def put(path: Path, content: bytes) -> None:
    """Write a file, unless it is so already: tests beside this one may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
