"""A stand-in for rlbench.utils."""

from __future__ import annotations

from .tasks import NAMES, make_task


class InvalidTaskName(Exception):
    pass


def name_to_task_class(task_file):
    if task_file not in NAMES:
        raise InvalidTaskName("The task file '%s' does not exist or cannot be compiled." % task_file)
    return make_task(task_file)
