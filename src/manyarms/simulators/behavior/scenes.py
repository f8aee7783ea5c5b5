"""Scenes that share one Isaac Sim: each is put back as it was loaded, and hears of its own things only."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Sequence

from .instances import put_robot


class Clean:
    """A scene as it was loaded: what an episode leaves behind must not be in the next one's start."""

    def __init__(self, env: Any) -> None:
        self._env, self._scene = env, env.scene
        self._scene.reset()
        put_robot(env)
        file = self._scene.save(as_dict=True)
        # It holds the scene's own table, into which every instance is written.
        self._file: Dict[str, Any] = {**file, "metadata": copy.deepcopy(file["metadata"])}
        self._contents = self._names()

    def _names(self) -> Sequence[str]:
        return sorted(thing.name for thing in self._scene.objects)

    @property
    def complete(self) -> bool:
        """Whether nothing was cut up, cooked or otherwise made into something else."""
        return self._names() == self._contents

    def restore(self) -> None:
        """Put everything back: joints, furniture, what was held, and things that are gone."""
        self._scene.restore(self._file)


def part(sim: Any, envs: Sequence[Any]) -> None:
    """Tell each task of what comes and goes in its own scene: OmniGibson tells the last one, of all scenes."""
    if len(envs) < 2:
        return
    for event, method in (
        ("add_obj", "added_obj"),
        ("remove_obj", "removed_obj"),
        ("system_init", "system_init"),
        ("system_clear", "system_clear"),
    ):
        add = getattr(sim, "add_callback_on_" + event)
        for row, env in enumerate(envs):
            name = env.task.activity_name + "_refresh"
            getattr(sim, "remove_callback_on_" + event)(name=name)
            callback = getattr(env.task, "_update_bddl_scope_from_" + method)
            add(name="%s_%d" % (name, row), callback=_of(env.scene, callback))


def _of(scene: Any, callback: Callable[[Any], None]) -> Callable[[Any], None]:
    def hear(thing: Any) -> None:
        if thing.scene is scene:
            callback(thing)

    return hear


__all__ = ["Clean", "part"]
