"""What would keep a run from starting, told before anything is started."""

from __future__ import annotations

from pathlib import Path

from manyarms.errors import ConfigError, StartError
from manyarms.learning.config import TrainConfig
from manyarms.policies.checkpoints import KINDS
from manyarms.vector.foresight import foresee


def lacks(config: TrainConfig) -> list[str]:
    """Return what a run lacks on this machine, in words; raise for names that are wrong on any."""
    found, model = [], config.actor.model
    if model.model_type in KINDS:
        if not model.model_path:
            raise ConfigError(
                f"{model.model_type} needs a checkpoint, and actor.model.model_path is not given",
                do="actor.model.model_path=/path/to/it",
            )
        if not Path(model.model_path).expanduser().is_dir():
            found.append(f"there is no folder {model.model_path} (actor.model.model_path)")
    try:
        simulators = [*config.train.simulator_configs(), *config.eval.simulator_configs()]
    except ConfigError as error:  # an interpreter that is not here
        return [*found, error.what]
    unlike = {(each.id, each.python, str(each.options.get("tasks"))): each for each in simulators}
    return [*found, *(lack for simulator in unlike.values() for lack in foresee(simulator))]


def refuse(found: list[str], config: TrainConfig) -> None:
    """Refuse a run that lacks something."""
    if found:
        names = " and ".join(sorted({simulator.partition("/")[0] for simulator in config.label.split(" and ")}))
        raise StartError("this run cannot start here", why="\n".join(found), do=f"manyarms doctor {names} tells more")
