"""The worker: takes jobs one by one while it has room, runs each in a thread, ends them in order.

Threads: the main one pops, one beats, one does chores, one listens for signals, one per job.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import redis

from common.logs import get_logger
from common.redis_client import is_away
from common.rq_keys import JobField
from common.safe_job import parse_call
from common.settings.catalogue import QueueSettings
from common.settings.combinations import check_lease
from common.worker import presence as presences
from common.worker.chores import Chores
from common.worker.context import JobContext
from common.worker.lease import Claim, Leases, Popped
from common.worker.presence import Presence
from common.worker.pulse import Pulse
from common.worker.settle import Settler, Standing
from common.worker.shutdown import JOB_THREAD_PREFIX, Shutdown, SignalWatch, drain, late
from common.worker.slots import Slot, SlotTable
from common.worker.turn import Turn
from common.worker.verdict import Fail, Finish, Return, Verdict, judge
from hiddenfeed.errors import HiddenfeedError, TransientError

#: Runs one job: gets its message as plain JSON values, not validated, and its context; what it returns is kept a while.
Handler = Callable[[Any, JobContext], msgspec.Struct | None]
#: From the queue served so far to the one to serve now; None when there is nothing to do.
QueueChooser = Callable[[str | None], str | None]

#: Endings written at a time: keeps hundreds of jobs that end at once from opening hundreds of connections.
_WRITERS = 16
_LONGEST_PAUSE_SECONDS = 5.0

log = get_logger("worker")


class Worker:
    """One process's worker. `run` is called once."""

    def __init__(
        self,
        *,
        redis: redis.Redis,
        role: str,
        queues: QueueChooser,
        handlers: Mapping[str, Handler],
        settings: QueueSettings,
        slots: Callable[[], int],
        may_take: Callable[[], str | None] = lambda: None,
        why_idle: Callable[[], str] = lambda: "",
        job_timeout_seconds: float | None = None,
    ) -> None:
        """`slots` is asked before every pop, so it may change; `may_take` says why not, or None; `why_idle` says, for
        people, why `queues` chose none.

        A job running for longer than `job_timeout_seconds` is taken for hung: the process drains
        and `run` returns 75. Raises ConfigError for settings that cannot work together.
        """
        check_lease(settings)
        self._client, self._settings = redis, settings
        self._choose, self._handlers = queues, dict(handlers)
        self._slots, self._may_take, self._timeout = slots, may_take, job_timeout_seconds
        self._why_idle = why_idle
        self.name = presences.worker_name(role)
        self._table = SlotTable()
        self._shutdown = Shutdown(self._table.wake)
        self._presence = Presence(self.name, role)
        self._leases = Leases(redis, self.name, settings)
        self._settler = Settler(redis, self.name, settings)
        self._turn = Turn(redis, self.name)
        self._writers = threading.BoundedSemaphore(_WRITERS)
        self._ended = threading.Event()
        self._queue: str | None = None
        self._served: set[str] = set()
        self._popped: Popped | None = None
        self._returned_in_a_row = 0

    def run(self) -> int:
        """Serve until a signal or `stop`; returns the process's exit code."""
        pulse = Pulse(self._leases, self._table, self._presence, self._shutdown, self._settings)
        chores = Chores(self._client, self._settler, self._turn, self._settings)
        threads = [
            threading.Thread(target=pulse.run, args=(self._ended,), name="heartbeat", daemon=True),
            threading.Thread(target=chores.run, args=(self._ended,), name="chores", daemon=True),
        ]
        log.info("worker started", worker=self.name)
        with SignalWatch(self._shutdown.request):
            for thread in threads:
                thread.start()
            try:
                self._serve()
            finally:
                self._shutdown.requested.set()
                drain(self._table, self._shutdown, self._settler, self._settings)
                self._ended.set()
                for thread in threads:
                    thread.join()
                self._sign_off()
        log.info("worker ended", worker=self.name, exit_code=self._shutdown.exit_code)
        return self._shutdown.exit_code

    def stop(self) -> None:
        """What a SIGTERM does; a second call gives running jobs back at once. From any thread."""
        self._shutdown.request()

    # -- taking jobs ------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Steps until the end is requested; while Redis is away, one warning and ever longer pauses."""
        failures = 0
        while not self._shutdown.requested.is_set():
            try:
                self._step()
                if failures:
                    log.info("Redis is back")
                failures = 0
            except (redis.RedisError, TransientError) as error:
                if isinstance(error, redis.RedisError) and not is_away(error):
                    # Another's key under one of our names, a right taken away: a person can mend it meanwhile.
                    log.exception("Redis refuses a command; trying again")
                elif not failures:
                    log.warning("waiting for Redis", error=error)
                self._shutdown.requested.wait(min(_LONGEST_PAUSE_SECONDS, 0.25 * 2**failures))
                failures = min(failures + 1, 10)

    def _step(self) -> None:
        """Take at most one job; waits a second or so if there is none to take."""
        stop = self._shutdown.requested.is_set
        if self._popped is None:
            if not self._table.wait_for_room(self._slots, timeout=1.0):
                # Busy, and seen with the room it has by now: the setting may have changed.
                self._presence.serve(self._queue, "", self._slots())
                return
            if stop() or not self._ready():
                return
            assert self._queue is not None
            self._popped = self._leases.pop(self._queue, self._settings.poll_seconds)
        if self._popped is not None and not stop():
            claim = self._leases.claim(self._popped)
            self._popped = None
            if claim is not None:
                self._start(claim)

    def _ready(self) -> bool:
        """True if a job may be taken from `self._queue`; else says why not and waits for a poll."""
        if self._returned_in_a_row:
            # What its handler gave back would be popped again at once, and given back, and popped again.
            self._shutdown.requested.wait(
                min(self._settings.poll_seconds, 0.025 * 2 ** min(self._returned_in_a_row, 10))
            )
        why_not = self._may_take()
        queue = self._queue if why_not else self._choose(self._queue)
        if queue != self._queue:
            if self._queue is not None:
                presences.move(self._client, self.name, self._queue)
            log.info("serving another queue", queue=queue)
            self._queue = queue
            self._served |= {queue} if queue is not None else set()
        waiting = why_not or (self._why_idle() if queue is None else "")
        self._presence.serve(queue, waiting, self._slots())
        if why_not is None and queue is not None:
            return True
        self._shutdown.requested.wait(self._settings.poll_seconds)
        return False

    def _start(self, claim: Claim) -> None:
        """Run the job in a thread of its own."""
        context = JobContext(
            job_id=claim.job_id,
            worker_name=self.name,
            attempt=claim.counter(JobField.STARTS),
            queue=claim.queue,
            queued_at=claim.queued_at,
        )
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        slot = Slot(claim, context, deadline)
        self._table.add(slot)
        thread = threading.Thread(
            target=self._work, args=(slot,), name=f"{JOB_THREAD_PREFIX}{claim.job_id}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            # The system has no threads left; another process may have.
            log.exception("could not start a thread", job=claim.job_id)
            self._table.remove(slot)
            self._settler.give_back(claim, Return(f"no thread for it: {error}"))
            self._shutdown.requested.wait(self._settings.poll_seconds)

    # -- running and ending one job ---------------------------------------------------------------

    def _work(self, slot: Slot) -> None:
        """A job's thread: run the handler, write how it ended, make room."""
        try:
            verdict = self._perform(slot)
            if self._table.begin_settling(slot):
                self._end(slot, verdict)
            else:
                self._lose(slot)
        finally:
            self._table.remove(slot)

    def _perform(self, slot: Slot) -> Verdict:
        """Check the job's call and run its handler; every way in which that ends is a verdict."""
        claim = slot.claim
        try:
            call = parse_call(claim.raw, self._handlers.keys())
            return Finish(self._handlers[call.function](call.payload, slot.context))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises ends its job, never the worker
            return self._judge(slot, error)

    def _judge(self, slot: Slot, error: BaseException) -> Verdict:
        claim = slot.claim
        return judge(
            error,
            failures=claim.counter(JobField.FAILURES),
            transients=claim.counter(JobField.TRANSIENTS),
            settings=self._settings,
            chance=random.random(),
        )

    def _end(self, slot: Slot, verdict: Verdict) -> None:
        """Write the ending, through outages; then say it and count it."""
        if slot.hung and isinstance(verdict, Return):
            # Given back only because it was told that it is late: that is an attempt, or it goes on for ever.
            verdict = late(slot, self._settings)
        try:
            standing = self._persist(slot, verdict)
        except Exception as error:
            # A result that is not JSON, or a finisher that raises: the job's own fault, so it fails by its error.
            log.exception("could not write how a job ended", job=slot.claim.job_id)
            if not isinstance(verdict, Finish):
                return
            verdict = self._judge(slot, error)
            standing = self._persist(slot, verdict)
        if standing is Standing.LOST:
            self._lose(slot)
        elif standing is not None:
            self._returned_in_a_row = self._returned_in_a_row + 1 if isinstance(verdict, Return) else 0
            seconds = time.monotonic() - slot.started
            self._presence.count(failed=isinstance(verdict, Fail), seconds=seconds)
            _say(slot, verdict, seconds)

    def _persist(self, slot: Slot, verdict: Verdict) -> Standing | None:
        """Settle the job, again and again while Redis is away; None if the process ends before that."""
        failures = 0
        while True:
            try:
                with self._writers:
                    return self._settler.settle(slot.claim, verdict, slot.context, slot.started_at)
            except redis.RedisError as error:
                if not is_away(error):
                    raise
                if not failures:
                    log.warning("a job has ended and Redis is away", job=slot.claim.job_id, error=error)
                if self._ended.wait(min(_LONGEST_PAUSE_SECONDS, 0.25 * 2**failures)):
                    log.warning("left a job that ended to the next worker", job=slot.claim.job_id)
                    return None
                failures = min(failures + 1, 10)

    def _lose(self, slot: Slot) -> None:
        """The job is another's by now: drop the result and clean up."""
        log.warning("dropped the result of a job that is no longer ours", job=slot.claim.job_id)
        for clean_up in slot.context.losers:
            try:
                clean_up()
            except (OSError, HiddenfeedError) as error:
                log.warning("could not clean up after a lost job", job=slot.claim.job_id, error=error)

    def _sign_off(self) -> None:
        """Leave no trace but the jobs; if Redis is away, everything expires by itself."""
        try:
            if self._popped is not None:
                self._leases.unpop(self._popped)
            self._turn.end()
            presences.unregister(self._client, self.name, self._served)
        except redis.RedisError as error:
            log.warning("could not sign off", error=error)


def _say(slot: Slot, verdict: Verdict, seconds: float) -> None:
    job, took = slot.claim.job_id, f"{seconds:.2f}"
    if isinstance(verdict, Finish):
        # The job itself has said more about its batch.
        log.debug("job finished", job=job, seconds=took)
    elif isinstance(verdict, Fail):
        log.error("job failed", job=job, why=verdict.reason)
    elif isinstance(verdict, Return):
        log.info("job given back", job=job, why=verdict.reason)
    else:
        log.warning(
            "job will be tried again", job=job, why=verdict.reason, in_seconds=f"{verdict.delay_seconds:.1f}"
        )
