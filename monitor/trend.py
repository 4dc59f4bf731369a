"""What happened of late: between the first and the last point of a run's recent history. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from common.history import Point, rates_of
from common.spool import SpoolUsage
from monitor.views import RecentView

#: Points that are older than this say nothing of now.
_STALE_SECONDS = 60.0
#: A spool whose use changes more slowly stands still, as far as people are concerned.
_STILL_BYTES_PER_SECOND = 1000.0


def recent_of(points: Sequence[Point], now: float) -> RecentView | None:
    """The last minutes of a run; None where nobody wrote points of late."""
    if len(points) < 2 or now - points[-1].at > _STALE_SECONDS:
        return None
    (rates,) = rates_of([points[0], points[-1]]) or (None,)
    if rates is None:
        return None
    return RecentView(
        seconds=points[-1].at - points[0].at,
        extract_bytes_per_second=rates.extract_bytes_per_second,
        upload_bytes_per_second=rates.upload_bytes_per_second,
        tokens_per_second=rates.tokens_per_second,
        backlog_growth=points[-1].backlog - points[0].backlog,
    )


def spool_pace(points: Sequence[Point], usage: SpoolUsage, now: float) -> float | None:
    """Bytes per second by which the spool fills; None where that was not seen."""
    seen = [point for point in points if point.spool_bytes is not None]
    if not seen or now - seen[-1].at > _STALE_SECONDS or now - seen[0].at < 5:
        return None
    before = seen[0].spool_bytes or 0
    return (usage.bytes + usage.part_bytes - before) / (now - seen[0].at)


def until(usage: SpoolUsage, pace: float | None) -> tuple[float | None, float | None]:
    """(seconds until it is full, until it is empty), at most one of them known."""
    if pace is None or abs(pace) < _STILL_BYTES_PER_SECOND:
        return None, None
    used = usage.bytes + usage.part_bytes
    if pace > 0:
        return max(0, usage.cap_bytes - used) / pace, None
    return None, used / -pace
