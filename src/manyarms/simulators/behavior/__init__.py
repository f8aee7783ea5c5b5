"""BEHAVIOR-1K on OmniGibson and Isaac Sim: ``behavior/turning_on_radio``."""

from ..about import About

about = About(
    "BEHAVIOR-1K: household activities on OmniGibson and Isaac Sim",
    factory="manyarms.simulators.behavior.simulator:BehaviorSimulator",
    needs=("omnigibson", "bddl"),
    install="scripts/install_behavior.sh, then --python .venvs/behavior/bin/behavior-python --timeout 600",
    variables=("ISAAC_PATH", "OMNIGIBSON_DATA_PATH"),
    findings="manyarms.simulators.behavior.install:findings",
    task="turning_on_radio",
    options={"cameras": ["head"], "image_size": 64},
    evaluation_options={"instances": "eval", "challenge_rules": True},
    start_timeout=1200.0,  # it compiles shaders when it is first started
    renders_from_gpu_0=True,  # Isaac Sim may hang on others
)
