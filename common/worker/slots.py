"""The jobs in hand: which there are, whose turn it is to end each, and waiting for one to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from threading import Condition

from rq.utils import now

from common.worker.context import JobContext
from common.worker.lease import Claim


class SlotState(Enum):
    """Who may end a slot's job."""

    #: Its handler runs.
    RUNNING = "running"
    #: Its own thread writes the ending.
    SETTLING = "settling"
    #: The main thread gave it away; whatever its handler returns is dropped.
    DROPPED = "dropped"


@dataclass(eq=False)
class Slot:
    """One job in hand. `state` changes under the table's lock only."""

    claim: Claim
    context: JobContext
    #: On the monotonic clock; None for no deadline.
    deadline: float | None
    state: SlotState = SlotState.RUNNING
    hung: bool = False
    started_at: datetime = field(default_factory=now)
    started: float = field(default_factory=time.monotonic)


class SlotTable:
    """All slots of one worker. Any thread may call any method."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._slots: dict[str, Slot] = {}

    def add(self, slot: Slot) -> None:
        """A job was claimed."""
        with self._changed:
            self._slots[slot.claim.execution_id] = slot

    def remove(self, slot: Slot) -> None:
        """A job's thread has ended."""
        with self._changed:
            self._slots.pop(slot.claim.execution_id, None)
            self._changed.notify_all()

    def wake(self) -> None:
        """Make all waiters look again."""
        with self._changed:
            self._changed.notify_all()

    def all(self) -> list[Slot]:
        """The slots at this instant."""
        with self._changed:
            return list(self._slots.values())

    def begin_settling(self, slot: Slot) -> bool:
        """True if the slot's own thread may write the ending; False if the job was given away."""
        return self._change(slot, SlotState.SETTLING)

    def drop(self, slot: Slot) -> bool:
        """True if the caller may write the ending; False if the job's own thread is at it."""
        return self._change(slot, SlotState.DROPPED)

    def wait_for_room(self, slots: Callable[[], int], timeout: float) -> bool:
        """True once fewer than `slots()` jobs are in hand; False after `timeout` seconds or a wake-up."""
        with self._changed:
            if len(self._slots) >= slots():
                self._changed.wait(timeout)
            return len(self._slots) < slots()

    def wait_until(
        self, done: Callable[[Iterable[Slot]], bool], timeout: float, *, or_if: Callable[[], bool]
    ) -> bool:
        """Wait until `done(slots)` or `or_if()` or `timeout` seconds have passed; returns the last `done(slots)`."""
        with self._changed:
            self._changed.wait_for(lambda: done(self._slots.values()) or or_if(), timeout)
            return done(self._slots.values())

    def mark_lost(self, execution_ids: set[str]) -> list[Slot]:
        """Note which leases are gone; returns the slots for which that is news."""
        news = [
            slot
            for slot in self.all()
            if slot.claim.execution_id in execution_ids
            and slot.state is SlotState.RUNNING
            and not slot.context.lost.is_set()
        ]
        for slot in news:
            slot.context.lost.set()
        return news

    def mark_hung(self, at: float) -> list[Slot]:
        """Note which jobs are past their deadline; returns the slots for which that is news."""
        with self._changed:
            news = [slot for slot in self._slots.values() if _overdue(slot, at)]
            for slot in news:
                slot.hung = True
        return news

    def _change(self, slot: Slot, state: SlotState) -> bool:
        with self._changed:
            if slot.state is not SlotState.RUNNING:
                return False
            slot.state = state
            self._changed.notify_all()
            return True


def _overdue(slot: Slot, at: float) -> bool:
    return (
        slot.state is SlotState.RUNNING and not slot.hung and slot.deadline is not None and at > slot.deadline
    )
