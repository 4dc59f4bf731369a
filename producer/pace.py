"""Where a run stands, in one line: a pure function of counters, pace and the time left."""

from __future__ import annotations

from common.eta import Estimate
from common.pace import Pace
from hiddenfeed.words import count_text, size_text
from producer.submission import Standing


def standing_line(
    standing: Standing, pace: Pace, left: Estimate | None, *, tokens: int, batches: int, workers: int | None
) -> str:
    """`34%, 12 of 40 batches, 1.2 GiB, 1,020 tokens/s, about 35 s left (31 s to 39 s), 8 queued, 3 running`

    `tokens` and `batches` are the run's; `workers` is how many GPU workers are alive, None if that is not known.
    `left` is said only while batches arrive.
    """
    progress, counts = standing.progress, standing.counts
    parts = [
        f"{min(1.0, progress.tokens / max(1, tokens)):.0%}",
        f"{progress.batches:,} of {count_text(batches, 'batch', 'batches')}",
        size_text(progress.bytes),
    ]
    if pace.rate is not None:
        parts.append(f"{pace.rate:,.0f} tokens/s")
    if left is not None and left.seconds and not pace.late and standing.state == "active":
        parts.append(str(left))
    queued = counts.queued + standing.pending
    parts += [
        f"{number:,} {word}" for number, word in ((queued, "queued"), (counts.started, "running")) if number
    ]
    parts += [
        f"{number:,} {word}"
        for number, word in ((counts.scheduled, "to be tried again"), (counts.failed, "failed"))
        if number
    ]
    if standing.state == "paused":
        parts.append("paused")
    elif workers == 0 and queued:
        parts.append("no GPU worker is there")
    return ", ".join(parts)
