"""What a plan is made of: processes, the simulators they own, and who gives weights to whom."""

from __future__ import annotations

from dataclasses import dataclass

from manyarms.placement.topology import Slot


@dataclass(frozen=True)
class Process:
    """A process of a role, and where it is. Of env it is a share of the simulators, which rollout processes own."""

    role: str
    rank: int
    """Among those of its role."""
    slots: tuple[Slot, ...]
    rows: tuple[int, ...] = ()
    """The environments it renders or acts for; an actor has none."""
    stages: int = 0
    """rollout: in how many parts its environments really take turns."""
    stage_rows: int = 0
    """rollout: how many of them the policy serves at once, in whole lock-step groups."""
    shares_with: tuple[tuple[str, int], ...] = ()
    """Processes of other roles on its devices."""
    offloads: bool = False
    """Whether it has to leave its devices' memory while another role works there."""

    @property
    def name(self) -> str:
        return f"{self.role} {self.rank}"

    @property
    def node(self) -> int:
        return self.slots[0].node

    @property
    def kind(self) -> str:
        """gpu or cpu."""
        return self.slots[0].kind

    @property
    def devices(self) -> tuple[int, ...]:
        """Ids within the node; none where it has the node as a whole."""
        return tuple(slot.device for slot in self.slots if slot.device is not None)

    def beside(self, other: Process) -> bool:
        """Tell whether the two have a device in common."""
        return any(slot.device is not None and slot in other.slots for slot in self.slots)


@dataclass(frozen=True)
class Simulators:
    """Simulators of one rollout process that render in one place."""

    rollout: int
    env: int
    slot: Slot
    rows: tuple[int, ...]
    workers: int
    """Worker processes."""


@dataclass(frozen=True)
class Feed:
    """Who gives new weights to whom."""

    actor: int
    rollout: int
    way: str
    """same device, same node or other node."""
