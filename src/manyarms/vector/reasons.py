"""Why workers fail, in words that help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyarms.errors import ManyarmsError, SimulatorError, StartError, UnknownName, did_you_mean
from manyarms.simulators.registry import split_id
from manyarms.vector.config import VectorConfig
from manyarms.vector.process import WorkerProcess


def start_failure(worker: WorkerProcess, answer: Mapping[str, Any]) -> ManyarmsError:
    """Turn a worker's account of why it could not build its simulator into an error that helps."""
    simulator, task = split_id(worker.simulator.id)
    if answer["type"] == "UnknownPlugin":
        return UnknownName(
            f"there is no simulator named {simulator!r}",
            why=did_you_mean(simulator, answer["known"]),
            do="write '<simulator>/<task>' or 'package.module:factory', or install the plug-in that provides it",
        )
    if answer["type"] == "UnknownTask":
        task = answer.get("task") or task
        return UnknownName(
            f"{simulator} has no task {task!r}", why=answer["message"], do=did_you_mean(task, answer["known"])
        )
    do, why = "", answer["traceback"]
    if answer["type"] == "SpecError":
        why = ""  # its message says all there is to say
    elif answer["type"] in ("ModuleNotFoundError", "ImportError"):
        missing = answer["module"] or "it"
        do = f"{worker.interpreter} -m pip install {missing}, or name the interpreter that has it: python= (--python)"
    elif answer["type"] == "UnknownOption":
        near = did_you_mean(answer["option"], [*answer["known"], *VectorConfig.names()])
        do, why = f"{near}\ncheck the spelling of the options given to make_vec (--options)", ""
    elif answer["type"] == "TypeError" and answer["option"]:
        do, why = "check the spelling of the options given to make_vec (--options)", ""
    return StartError(
        f"{worker.simulator.id} could not be built: {answer['type']}: {answer['message']}",
        why=why,
        do=do,
        log=str(worker.log_path or ""),
        missing_module=answer["module"] if answer["type"] == "ModuleNotFoundError" else "",
        missing_part=answer["part"],
        option=answer["option"],
    )


def died_at_start(worker: WorkerProcess) -> ManyarmsError:
    """Explain a worker that ended before it was ready."""
    error = worker.death(doing="while starting")
    return StartError(error.what, why=error.why, do=error.do, log=error.log)


def one_error(failures: Sequence[ManyarmsError], workers: int) -> ManyarmsError:
    """Tell the same failure of many workers once."""
    kinds: dict[str, list[ManyarmsError]] = {}
    for failure in failures:
        # Workers differ in their numbers only.
        kinds.setdefault(failure.what.split(") ", 1)[-1], []).append(failure)
    first = next(iter(kinds.values()))[0]
    if (len(failures) == 1 and workers == 1) or (len(kinds) == 1 and isinstance(first, UnknownName)):
        return first
    note = f"{len(failures)} of {workers} workers failed to start" + (" in the same way" if len(kinds) == 1 else "")
    if len(kinds) == 1:
        why = "\n".join(filter(None, [note, first.why]))
        if isinstance(first, StartError):
            return first.with_why(why)
        return type(first)(first.what, why=why, do=first.do, log=first.log)
    return StartError(note, why="\n".join(str(group[0]) for group in kinds.values()), do=first.do)


def simulator_error(worker: WorkerProcess, row: int, seed: int | None, error: Mapping[str, Any]) -> SimulatorError:
    """Tell an exception raised inside a simulator."""
    where = f"row {row}" + (f", seed {seed}" if seed is not None else "")
    return SimulatorError(
        f"{worker.simulator.id} ({where}) raised {error['type']} in {error['phase']}: {error['message']}",
        rows=[row],
        why=error["traceback"],
        do="reset the row to go on" if error["phase"] != "reset" else "",
        log=str(worker.log_path or ""),
    )
