"""Ending a worker: signals, the phases of a shutdown, and giving back what cannot be finished."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, NoReturn

import redis

from common.logs import get_logger
from common.rq_keys import JobField
from common.settings.catalogue import QueueSettings
from common.worker.settle import Settler
from common.worker.slots import Slot, SlotState, SlotTable
from common.worker.verdict import Fail, Return, TryLater, judge_hung
from hiddenfeed.errors import TransientError

#: For the supervisor: start me again.
HUNG_EXIT_CODE = TransientError.exit_code
#: Threads of jobs are named like this.
JOB_THREAD_PREFIX = "job "
#: After the grace, time for endings that are being written.
_SETTLING_SECONDS = 10.0

log = get_logger("worker")


class Shutdown:
    """How far the end has come: requested, then forced. Never goes back."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.requested = threading.Event()
        self.forced = threading.Event()
        self.exit_code = 0
        self._wake = wake

    def request(self) -> None:
        """First call: end gracefully. Second call: give everything back at once."""
        if self.requested.is_set():
            self.forced.set()
        self.requested.set()
        self._wake()

    def hang(self) -> None:
        """A job does not end: end gracefully, and ask the supervisor for a new process."""
        self.exit_code = HUNG_EXIT_CODE
        self.requested.set()
        self._wake()


class SignalWatch:
    """SIGTERM and SIGINT as calls of `on_signal`, made by a thread of its own.

    A handler interrupts whatever the main thread does, a lock held or a reply half read, so it
    only puts the number on a queue made for that. Outside of the main thread nothing is installed.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._arrived: SimpleQueue[int | None] = SimpleQueue()
        self._before: dict[signal.Signals, Any] = {}
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)

    def __enter__(self) -> SignalWatch:
        self._thread.start()
        if threading.current_thread() is threading.main_thread():
            for number in self._SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._arrived.put(None)
        self._thread.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._arrived.put(number)

    def _watch(self) -> None:
        while (number := self._arrived.get()) is not None:
            log.info("asked to stop", signal=signal.Signals(number).name)
            self._on_signal()


def drain(table: SlotTable, shutdown: Shutdown, settler: Settler, settings: QueueSettings) -> None:
    """Wait for running jobs as long as the grace lasts, then give the rest back."""
    for slot in table.all():
        slot.context.stopping.set()
    table.wait_until(
        lambda slots: all(slot.hung for slot in slots), settings.grace_seconds, or_if=shutdown.forced.is_set
    )
    dropped = [slot for slot in table.all() if table.drop(slot)]
    # One refusal is enough: the leases of all others lapse just the same.
    reached = all(_give_back(slot, settler, settings) for slot in dropped)
    if not reached:
        log.warning("Redis is away: jobs in hand are taken over when their leases lapse", jobs=len(dropped))
    table.wait_until(
        lambda slots: all(slot.state is SlotState.DROPPED for slot in slots),
        _SETTLING_SECONDS,
        or_if=lambda: False,
    )


def leave(exit_code: int) -> NoReturn:
    """End the process, even while threads of jobs that were given back still run in native code."""
    logging.shutdown()
    if any(thread.name.startswith(JOB_THREAD_PREFIX) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        # The interpreter's own way out would tear down what those threads use.
        os._exit(exit_code)
    sys.exit(exit_code)


def late(slot: Slot, settings: QueueSettings) -> TryLater | Fail:
    """What becomes of a job past its deadline."""
    return judge_hung(
        time.monotonic() - slot.started,
        failures=slot.claim.counter(JobField.FAILURES),
        settings=settings,
        chance=random.random(),
    )


def _give_back(slot: Slot, settler: Settler, settings: QueueSettings) -> bool:
    """False if Redis could not be told."""
    claim = slot.claim
    try:
        if slot.hung:
            verdict = late(slot, settings)
            settler.settle(claim, verdict, slot.context, slot.started_at)
            log.error("gave back a job that does not end", job=claim.job_id, why=verdict.reason)
        else:
            settler.give_back(claim, Return("given back by a process that ended"))
            log.info("gave back a job", job=claim.job_id)
    except redis.RedisError as error:
        log.warning("could not give back a job", job=claim.job_id, error=error)
        return False
    return True
