"""RLBench on CoppeliaSim: ``rlbench/reach_target``."""

from ..about import About
from .install import BUILD, GET_COPPELIASIM

about = About(
    "RLBench: 106 tasks on CoppeliaSim 4.1",
    factory="manyarms.simulators.rlbench.simulator:RLBenchSimulator",
    needs=("rlbench", "pyrep"),
    install="%s; %s" % (GET_COPPELIASIM, BUILD),
    variables=("COPPELIASIM_ROOT",),
    findings="manyarms.simulators.rlbench.install:findings",
    task="reach_target",
    # In this mode any action moves the arm; poses drawn at random would be refused, and nothing simulated.
    options={"cameras": ["front"], "image_size": (64, 64), "arm_mode": "joint_velocity"},
    needs_display=True,
)
