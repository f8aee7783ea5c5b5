"""The challenge's score of an episode that may have reached only a part of its goal."""

from __future__ import annotations

from typing import Any, List


class QScore:
    """Compares what is true of a task's goal with what was true at the start."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._before = self._evaluate()

    def _evaluate(self) -> List[List[bool]]:
        """Return, for each way to reach the goal, which of its conditions hold."""
        judge = getattr(self._task, "_evaluate_predicate", None)  # from 3.9 on conditions must be told who judges
        arguments = () if judge is None else (judge,)
        return [
            [bool(condition.evaluate(*arguments)) for condition in option]
            for option in self._task.ground_goal_state_options
        ]

    def now(self, success: bool) -> float:
        """Return 1 on success, else the best share of conditions that have become true, over all ways to the goal."""
        if success:
            return 1.0
        shares = [
            sum(after and not before for before, after in zip(start, option)) / len(option)
            for start, option in zip(self._before, self._evaluate())
        ]
        return max(shares, default=0.0)


__all__ = ["QScore"]
