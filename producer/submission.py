"""One run on its queue: enqueues what the store lacks, a window at a time, and nothing else.

The store is the ledger. Redis may be restarted, wiped or shared with a second producer at any
moment; every step looks at the facts again. A step raises TransientError when Redis or the store is
away, has then done part of its work or none, and is simply taken again.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import redis

from common.checks import state_names
from common.messages import ExtractBatch
from common.queues import (
    LOST,
    QueueCounts,
    cancel_jobs,
    enqueue,
    extract_job_id,
    extract_queue_name,
    extract_request,
    job_states,
    queue_counts,
    upload_job_id,
)
from common.run_state import (
    FoundBatch,
    Progress,
    RunRecord,
    RunStateName,
    get_run,
    note_found,
    read_progress,
    register_run,
    set_run_state,
)
from common.settings.catalogue import QueueSettings
from hiddenfeed.inventory import Inventory, take_inventory
from hiddenfeed.layout import batch_key, quarantine_note_key
from hiddenfeed.run import RunDocument
from hiddenfeed.store import Store
from producer.decide import MAX_LOST, Decision, Missing, Verdict, decide, judge
from producer.failed import retry_failed

#: While files are on their way to the store it is listed no more often than this.
AUDIT_SECONDS = 5.0


@dataclass(frozen=True)
class Standing:
    """Where a run stands after one step."""

    state: RunStateName
    counts: QueueCounts
    progress: Progress
    #: Batches still to be put on the queue.
    pending: int
    #: Batches that failed and will not be tried again by this process.
    failed: tuple[int, ...] = ()
    #: True once the store holds every batch.
    stored: bool = False

    @property
    def stuck(self) -> bool:
        """True if nothing can happen any more but for what failed."""
        return bool(self.failed) and not self.stored


class Submission:
    """Keeps the queue of one run filled until the store holds all of its batches."""

    def __init__(
        self,
        store: Store,
        client: redis.Redis,
        document: RunDocument,
        manifests: Sequence[ExtractBatch],
        *,
        queue_settings: QueueSettings,
        window: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`window` is how many batches are queued at a time; nothing is done before the first `step`."""
        self._store, self._client, self._document, self._manifests = store, client, document, manifests
        self._queue_settings, self._window, self._clock = queue_settings, window, clock
        self._queue = extract_queue_name(document.run_id)
        self._pending: deque[int] = deque()
        self._lost: Counter[int] = Counter()
        #: Batch -> when its upload was first seen to be lost.
        self._lost_uploads: dict[int, float] = {}
        self._failed: tuple[int, ...] = ()
        self._stored = False
        #: The run as Redis had it at the last step.
        self._known: RunRecord | None = None
        #: Batches that the store lacked at the last audit; None before the first.
        self._gaps: list[int] | None = None
        self._audited_at: float | None = None

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._document.run_id

    @property
    def record(self) -> RunRecord:
        """The run as Redis had it at the last step."""
        return self._known or self._record()

    @property
    def lost(self) -> list[int]:
        """Failed batches that were extracted again and again and never arrived in the store."""
        return [batch for batch in self._failed if self._lost[batch] >= MAX_LOST]

    def open(self) -> int:
        """Make the run known and give what failed before another try; returns how many jobs that were.

        A paused run stays paused; a cancelled or complete one becomes active again.
        """
        record = register_run(self._client, self._record())
        if record.state in ("cancelled", "complete"):
            set_run_state(self._client, self.run_id, "active")
        return retry_failed(self._client, self.run_id, self._manifests, self._queue_settings)

    def step(self) -> Standing:
        """Look at everything once and enqueue what is to be enqueued now."""
        record = get_run(self._client, self.run_id)
        if record is None:
            # Wiped: nothing that was queued is there any more. A pause and a priority were somebody's wish.
            record = register_run(self._client, self.record)
            self._audited_at = None
        self._known = record
        counts = queue_counts(self._client, self._queue)
        if record.state != "cancelled" and self._audit_is_due(counts, record.state):
            self._audit(forced=self._audited_at is None)
            if record.state == "complete" and self._pending:
                # Another producer ended it, and something of it was lost since.
                record = self._known = set_run_state(self._client, self.run_id, "active")
        if record.state == "active" and self._pending and counts.queued < self._window:
            self._refill(self._window - counts.queued)
            counts = queue_counts(self._client, self._queue)
        elif record.state == "cancelled" and counts.queued:
            # What was put there while it was cancelled.
            cancel_jobs(self._client, self._queue)
        return Standing(
            state=record.state,
            counts=counts,
            progress=read_progress(self._client, self.run_id),
            pending=len(self._pending),
            failed=self._failed if not self._pending and not counts.unfinished else (),
            stored=self._stored,
        )

    def close(self) -> None:
        """Tell Redis that the run is complete; raises TransientError if it is away."""
        register_run(self._client, self._record())
        set_run_state(self._client, self.run_id, "complete")
        # What another producer queued meanwhile: all of it is stored, and no worker takes from a run that is over.
        cancel_jobs(self._client, self._queue)

    def _record(self) -> RunRecord:
        return RunRecord(
            run_id=self.run_id,
            model=self._document.model,
            samples=self._document.plan.samples,
            tokens=self._document.plan.tokens,
            batches=self._document.plan.batches,
            squares=sum(manifest.squares or 0 for manifest in self._manifests),
            states=",".join(state_names(self._document.identity.taps, self._document.identity.final_state)),
            submitted_at=time.time(),
        )

    def _audit_is_due(self, counts: QueueCounts, state: RunStateName) -> bool:
        if self._audited_at is None:
            return True
        # Where another producer has ended the run, what is queued stays there.
        idle = state == "complete" or (not self._pending and not counts.unfinished)
        return idle and self._clock() - self._audited_at >= AUDIT_SECONDS

    def _audit(self, *, forced: bool) -> None:
        """Hold the store against the queues: what is stored, on its way, failed, and to be enqueued."""
        total = len(self._manifests)
        if self._gaps is None:
            self._gaps = take_inventory(self._store, self._document).gaps(total)
        looked_at = {missing.batch_id: missing for missing in self._look(self._gaps)}
        inventory = take_inventory(self._store, self._document)
        gaps = inventory.gaps(total)
        # A file that was there before and is gone now is looked into at the next audit.
        missing = [looked_at[batch] for batch in gaps if batch in looked_at]
        if forced:
            note_found(self._client, self.run_id, self._found(inventory))
        self._take(decide(missing, self._lost), stored=not gaps)
        self._gaps, self._audited_at = gaps, self._clock()

    def _take(self, decision: Decision, *, stored: bool) -> None:
        self._pending = deque(missing.batch_id for missing in decision.enqueue)
        self._lost.update(missing.batch_id for missing in decision.enqueue if missing.lost)
        # As long as others are on their way, a failed job is not the end.
        self._failed = tuple(missing.batch_id for missing in decision.failed) if not decision.wait else ()
        self._stored = stored

    def _refill(self, count: int) -> int:
        """Enqueue the next `count` pending batches, but for those that another producer got to first."""
        chunk = [self._pending.popleft() for _ in range(min(count, len(self._pending)))]
        try:
            wanted = [
                missing.batch_id
                for missing in self._look(chunk)
                if judge(missing) is Verdict.ENQUEUE
                and not (missing.extract == "finished" and self._is_stored(missing.batch_id))
            ]
            requests = [extract_request(self._manifests[batch]) for batch in wanted]
            return enqueue(self._client, requests, self._queue_settings)
        except BaseException:
            # Enqueueing twice does nothing, so what is uncertain is simply tried again.
            self._pending.extendleft(reversed(chunk))
            raise

    def _look(self, batches: Sequence[int]) -> list[Missing]:
        """What Redis says of the jobs of batches; the extractions are asked for first, see `producer.decide`."""
        extracts = self._states(extract_job_id, batches)
        uploads = self._states(upload_job_id, batches)
        now = self._clock()
        looks = []
        for batch in batches:
            if uploads[batch] == LOST:
                since = self._lost_uploads.setdefault(batch, now)
            else:
                self._lost_uploads.pop(batch, None)
                since = now
            looks.append(Missing(batch, extracts[batch], uploads[batch], now - since))
        return looks

    def _states(self, job_id: Callable[[str, int], str], batches: Iterable[int]) -> dict[int, str | None]:
        ids = {batch: job_id(self.run_id, batch) for batch in batches}
        states = job_states(self._client, list(ids.values()))
        return {batch: states[job] for batch, job in ids.items()}

    def _is_stored(self, batch: int) -> bool:
        keys = (batch_key(self.run_id, batch), quarantine_note_key(self.run_id, batch))
        return any(self._store.head(key) is not None for key in keys)

    def _found(self, inventory: Inventory) -> Iterable[FoundBatch]:
        for batch, info in sorted({**inventory.notes, **inventory.files}.items()):
            manifest = self._manifests[batch]
            yield FoundBatch(
                batch_id=batch,
                samples=manifest.samples,
                tokens=manifest.tokens_total,
                squares=manifest.squares or 0,
                bytes=info.size_bytes,
            )
