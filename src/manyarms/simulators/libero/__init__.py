"""LIBERO on robosuite 1.4: ``libero/libero_object/0``."""

from ..about import About

about = About(
    "LIBERO: five suites of tasks on robosuite 1.4",
    factory="manyarms.simulators.libero.simulator:LiberoSimulator",
    needs=("libero", "robosuite"),
    install="scripts/install_libero.sh ENV_DIR ASSETS; manyarms doctor libero --python ENV_DIR",
    task="libero_object/0",  # of the smallest scenes
    evaluation_options={"faithful": True},
    worker_bytes=2100 << 20,
)
