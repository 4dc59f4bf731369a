"""Whether this worker may take another batch now; asked before every pop."""

from __future__ import annotations

from collections.abc import Callable

import redis

from common.queues import queue_counts, upload_queue_name
from common.spool import Spool
from gpu_worker.service import RunService
from hiddenfeed.batch_file import bytes_per_token
from hiddenfeed.run import RunDocument


def batch_bytes(document: RunDocument) -> int:
    """Bytes of a batch file of the run, about; batches are planned to be equally large."""
    identity, plan = document.identity, document.plan
    per_token = bytes_per_token(
        taps=len(identity.taps),
        hidden_size=document.hidden_size,
        dtype=identity.dtype,
        final=identity.final_state != "none",
    )
    return per_token * -(-plan.tokens // max(1, plan.batches))


class Admission:
    """Says why no batch may be taken: the words are shown by the monitor."""

    def __init__(
        self, client: redis.Redis, spool: Spool, runs: RunService, backlog_max: Callable[[], int]
    ) -> None:
        """`backlog_max` is asked every time: the setting may change while we run."""
        self._client, self._spool, self._runs, self._backlog_max = client, spool, runs, backlog_max

    def why_not(self) -> str | None:
        """`spool full`, `upload backlog`, or None; raises TransientError when Redis is away."""
        run = self._runs.served
        if run is not None:
            size = batch_bytes(run.document)
            if size > self._spool.usage().cap_bytes:
                return f"spool cap below a batch file of {size} bytes"
            if not self._spool.has_room(size):
                return "spool full"
        waiting = queue_counts(self._client, upload_queue_name(self._spool.name)).unfinished
        return "upload backlog" if waiting >= self._backlog_max() else None
