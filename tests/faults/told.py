"""What the roles said of a run in their logs: how much of it was computed more than once, why, and what was forgotten."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from common.queues import extract_job_id
from tests.faults.fleet import Fleet

#: What an uploader says then.
ANNOUNCED = "announced a file again that no job spoke of"


class _Line(msgspec.Struct):
    """A line of a log, as far as it matters here."""

    message: str = ""
    job: str = ""
    run: str = ""


@dataclass(frozen=True)
class Told:
    """Counts over all processes."""

    #: Extractions that finished beyond the first of each batch.
    redone: int
    #: Extractions that were taken over from a process that was silent for a lease.
    taken_over: int
    #: Files of the spool that no job spoke of, and that an uploader announced again.
    announced: int


def listen(fleet: Fleet, run_id: str) -> Told:
    """Read the logs of all members: any of them may take over jobs."""
    start = extract_job_id(run_id, 0).rpartition("-")[0]
    finished: Counter[str] = Counter()
    taken_over = announced = 0
    for log in (fleet.folder / "logs").glob("*.log"):
        for raw in log.read_bytes().splitlines():
            # Most lines are of other runs; what a dying process wrote need not be JSON.
            if run_id.encode() not in raw or not raw.startswith(b"{"):
                continue
            line = msgspec.json.decode(raw, type=_Line)
            announced += line.run == run_id and line.message == ANNOUNCED
            if line.job.startswith(start):
                finished[line.job] += line.message == "job finished"
                taken_over += line.message == "took over the job of a silent process"
    return Told(
        redone=sum(max(0, count - 1) for count in finished.values()),
        taken_over=taken_over,
        announced=announced,
    )
