"""Which run this worker serves next: the oldest active one with work, one of the loaded model first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import redis

from common.logs import get_logger
from common.queues import EXTRACT_QUEUE_PREFIX, extract_queue_name, queue_counts
from common.run_state import RunRecord, list_runs
from gpu_worker.service import RunService
from hiddenfeed.errors import HiddenfeedError, TransientError

log = get_logger("runs")

#: A run that could not be prepared is tried again after this: somebody may have mended it.
RETRY_SECONDS = 30.0
#: Longest reason that is shown with a worker that cannot serve a run.
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Candidate:
    """A run as the chooser sees it."""

    record: RunRecord
    #: Batches that wait to be taken.
    queued: int


def choose_run(
    candidates: Sequence[Candidate],
    *,
    current: str | None,
    loaded_model: str | None,
    pinned: str | None = None,
) -> str | None:
    """The run to serve; None if there is nothing to do. `candidates` come in order of priority, then age.

    The current run is left only when it has no work, is not active, or one of a higher priority waits.
    """
    active = [
        candidate
        for candidate in candidates
        if candidate.record.state == "active" and pinned in (None, candidate.record.run_id)
    ]
    waiting = [candidate.record for candidate in active if candidate.queued]
    if not waiting:
        # Stay near: jobs of the current run may come back.
        return next((current for candidate in active if candidate.record.run_id == current), None)
    first = [record for record in waiting if record.priority == waiting[0].priority]
    if any(record.run_id == current for record in first):
        return current
    same_model = [record for record in first if record.model == loaded_model]
    return (same_model or first)[0].run_id


class RunChooser:
    """The queue chooser of the GPU worker. Called between two pops, in the worker's main thread."""

    def __init__(
        self,
        client: redis.Redis,
        service: RunService,
        *,
        pinned: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pinned` is the one run to serve, if there is only one."""
        self._client, self._service, self._pinned, self._clock = client, service, pinned, clock
        #: Run -> (not before, reason).
        self._refused: dict[str, tuple[float, str]] = {}

    def choose_queue(self, current: str | None) -> str | None:
        """The queue to pop from next, its run in service; None while there is none.

        A run that cannot be served is passed over for a while, its reason logged once. Raises
        ConfigError or DataError if that is the pinned one, and TransientError when Redis is away.
        """
        served = self._service.served
        run_id = choose_run(
            [self._candidate(record) for record in list_runs(self._client) if self._may_serve(record)],
            current=current.removeprefix(EXTRACT_QUEUE_PREFIX) if current else None,
            loaded_model=served.document.model if served else None,
            pinned=self._pinned,
        )
        if run_id is None or not self._prepare(run_id):
            return None
        return extract_queue_name(run_id)

    def why_idle(self) -> str:
        """Why no queue was chosen although there may be a run; empty if none was refused of late."""
        now = self._clock()
        refused = [
            f"cannot serve {run_id}: {reason}"
            for run_id, (not_before, reason) in self._refused.items()
            if not_before > now
        ]
        return refused[-1][:_LONGEST_REASON] if refused else ""

    def _may_serve(self, record: RunRecord) -> bool:
        not_before, _ = self._refused.get(record.run_id, (0.0, ""))
        return record.state == "active" and self._clock() >= not_before

    def _candidate(self, record: RunRecord) -> Candidate:
        return Candidate(record, queue_counts(self._client, extract_queue_name(record.run_id)).queued)

    def _prepare(self, run_id: str) -> bool:
        try:
            ready = self._service.prepare(run_id)
        except HiddenfeedError as error:
            if run_id == self._pinned and not isinstance(error, TransientError):
                raise
            reason = str(error)
        else:
            if ready:
                self._refused.pop(run_id, None)
            return ready
        _, known = self._refused.get(run_id, (0.0, ""))
        self._refused[run_id] = (self._clock() + RETRY_SECONDS, reason)
        if reason != known:
            log.error("cannot serve a run", run=run_id, why=reason, again_in_seconds=int(RETRY_SECONDS))
        return False
