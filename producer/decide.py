"""What to do about a batch that the store does not hold: pure, from the states of its two jobs.

The states must have been read before the store was listed, the extraction's first: a batch moves
from extraction to upload to store, and so it is never overlooked on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from common.queues import LOST

#: An upload that Redis lost has its file in a spool, whose uploaders announce it again; if they have not done so for
#: this long, file and host are taken for gone.
UPLOAD_PATIENCE_SECONDS = 180.0
#: rq's words for a job that somebody will still run or is running.
_ON_ITS_WAY = ("queued", "started", "scheduled", "deferred")
#: A batch that was extracted this often and never arrived will not arrive the next time either.
MAX_LOST = 3


class Verdict(Enum):
    """What a missing batch needs."""

    ENQUEUE = "enqueue"
    WAIT = "wait"
    FAILED = "failed"


@dataclass(frozen=True)
class Missing:
    """A batch that is not in the store, with the states of its jobs as `common.queues.job_states` gives them."""

    batch_id: int
    extract: str | None
    upload: str | None
    #: How long the upload has been seen to be lost.
    upload_lost_seconds: float = 0.0

    @property
    def lost(self) -> bool:
        """True if it was extracted, and what came of it is in neither the store nor a queue."""
        return self.extract == "finished" and judge(self) is Verdict.ENQUEUE


@dataclass(frozen=True)
class Decision:
    """All missing batches by what they need, each in order."""

    enqueue: tuple[Missing, ...]
    wait: tuple[Missing, ...]
    failed: tuple[Missing, ...]


def judge(missing: Missing) -> Verdict:
    """The verdict on one batch."""
    if missing.extract in _ON_ITS_WAY or missing.upload in _ON_ITS_WAY:
        return Verdict.WAIT
    if "failed" in (missing.extract, missing.upload):
        return Verdict.FAILED
    if (
        missing.extract == "finished"
        and missing.upload == LOST
        and missing.upload_lost_seconds < UPLOAD_PATIENCE_SECONDS
    ):
        return Verdict.WAIT
    # Unknown to Redis or lost by it, cancelled, or finished without a file in the store or on its way there.
    return Verdict.ENQUEUE


def decide(missing: Sequence[Missing], lost_before: Mapping[int, int]) -> Decision:
    """Sort missing batches by verdict; one that was lost MAX_LOST times has failed.

    `lost_before` counts, by batch, how often it had to be extracted again after it was lost.
    """
    sorted_out: dict[Verdict, list[Missing]] = {verdict: [] for verdict in Verdict}
    for batch in missing:
        verdict = judge(batch)
        if batch.lost and lost_before.get(batch.batch_id, 0) >= MAX_LOST:
            verdict = Verdict.FAILED
        sorted_out[verdict].append(batch)
    return Decision(
        *(tuple(sorted_out[verdict]) for verdict in (Verdict.ENQUEUE, Verdict.WAIT, Verdict.FAILED))
    )
