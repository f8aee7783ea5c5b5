"""A stand-in for rlbench.backend.exceptions."""


class InvalidActionError(Exception):
    pass


class TaskEnvironmentError(Exception):
    pass
