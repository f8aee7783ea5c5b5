"""The embedded simulator: a Panda-shaped arm at a table in MuJoCo, with RLBench-style tasks, names and units.

Nothing to download and no display to set up. The tasks are written for manyarms; they are like RLBench's, not them.
"""

from ..about import About

about = About(
    "our own: RLBench-style tasks on MuJoCo, nothing to install",
    factory="manyarms.simulators.tabletop.simulator:TabletopSimulator",
    needs=("mujoco",),
    install="{python} -m pip install mujoco",
    task="reach_target",
)
