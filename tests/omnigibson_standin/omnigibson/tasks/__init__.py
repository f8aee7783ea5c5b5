from .behavior_task import BehaviorTask

__all__ = ["BehaviorTask"]
