"""How a run went over time: points in Redis, bounded and with an end, written by whoever watches the run.

The last hour is kept every ten seconds, three days every two minutes; what is older is dropped. For people
and reports; nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import redis
from redis.client import Pipeline

from common.queues import QueueCounts
from common.redis_client import text
from common.run_state import Progress
from common.spool import SpoolUsage
from hiddenfeed.layout import check_run_id

FINE_SECONDS, COARSE_SECONDS = 10.0, 120.0
_FINE_POINTS, _COARSE_POINTS = 360, 2160
_TTL_SECONDS = 7 * 24 * 3600
#: Writers' names start with one of these. A monitor, which sees the spool, takes over from a producer.
MONITOR, PRODUCER = "monitor", "producer"


class Point(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One moment of a run. Counters are totals since its start."""

    #: Seconds since the epoch.
    at: float
    batches: int
    tokens: int
    bytes: int
    #: Files that are extracted and not yet stored, of all spools.
    backlog: int
    queued: int
    started: int
    failed: int
    #: GPU workers and uploaders that are alive.
    workers: int
    uploaders: int
    #: Of the host of whoever wrote the point; None where it has no spool.
    spool_bytes: int | None = None
    spool_cap_bytes: int | None = None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What happened between two points, and how it stood at the later one."""

    at: float
    #: Extracted: stored plus what the backlog grew by, at the mean size of a file; the same of tokens.
    extract_bytes_per_second: float
    upload_bytes_per_second: float
    tokens_per_second: float
    backlog: int
    queued: int
    workers: int
    uploaders: int
    spool_bytes: int | None
    spool_cap_bytes: int | None


def point_of(
    at: float,
    progress: Progress,
    extract: QueueCounts,
    uploads: QueueCounts,
    roles: Sequence[str],
    spool: SpoolUsage | None,
) -> Point:
    """The point of what was seen at `at`; `uploads` are all upload queues together, `roles` of the living processes."""
    return Point(
        at=round(at, 1),
        batches=progress.batches,
        tokens=progress.tokens,
        bytes=progress.bytes,
        backlog=uploads.unfinished,
        queued=extract.queued,
        started=extract.started,
        failed=extract.failed + uploads.failed,
        workers=sum(role == "gpu_worker" for role in roles),
        uploaders=sum(role == "uploader" for role in roles),
        spool_bytes=spool.bytes + spool.part_bytes if spool else None,
        spool_cap_bytes=spool.cap_bytes if spool else None,
    )


#: KEYS: fine, coarse, turn. ARGV: writer, turn in ms, now, point, fine seconds, coarse seconds, points of each, ttl,
#: start of the names that give way to this writer.
#: Appends where the last point is old enough, if the turn is the writer's; returns how many lists it wrote.
_WRITE = """
local holder = redis.call('GET', KEYS[3])
local gives_way = ARGV[10] ~= '' and holder and string.sub(holder, 1, #ARGV[10]) == ARGV[10]
if holder and holder ~= ARGV[1] and not gives_way then return 0 end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
local written = 0
for i = 1, 2 do
  local last = redis.call('LINDEX', KEYS[i], -1)
  local at = last and tonumber(string.match(last, '^%[([%d.]+)')) or 0
  if math.abs(tonumber(ARGV[3]) - at) >= tonumber(ARGV[4 + i]) then
    redis.call('RPUSH', KEYS[i], ARGV[4])
    redis.call('LTRIM', KEYS[i], -tonumber(ARGV[6 + i]), -1)
    redis.call('EXPIRE', KEYS[i], ARGV[9])
    written = written + 1
  end
end
return written
"""


def write_point(client: redis.Redis, run_id: str, writer: str, point: Point) -> int:
    """Append the point if it is time for one and nobody else is writing; returns to how many lists.

    `writer` is a name that starts with MONITOR or PRODUCER and that nobody else has.

    Raises the client's errors.
    """
    keys = _keys(run_id)
    arguments: list[str | bytes | float] = [
        writer,
        int(3 * FINE_SECONDS * 1000),
        f"{point.at:.1f}",
        msgspec.json.encode(point),
        # A little less, so that a writer that looks every ten seconds does not skip every other point.
        FINE_SECONDS - 1,
        COARSE_SECONDS - 1,
        _FINE_POINTS,
        _COARSE_POINTS,
        _TTL_SECONDS,
        PRODUCER if writer.startswith(MONITOR) else "",
    ]
    return int(client.eval(_WRITE, len(keys), *keys, *arguments))


def ask_history(pipeline: Pipeline, run_id: str, latest: int | None = None) -> int:
    """Add to `pipeline` what `parse_history` reads; only the `latest` points if a number is given. Returns how many replies."""
    fine, coarse, _ = _keys(run_id)
    pipeline.lrange(fine, -latest if latest else 0, -1)
    if latest:
        return 1
    pipeline.lrange(coarse, 0, -1)
    return 2


def parse_history(replies: Sequence[Sequence[bytes | str]]) -> list[Point]:
    """The points in order of time, each once; what is no point is left out."""
    found: dict[float, Point] = {}
    for reply in replies:
        for raw in reply:
            try:
                point = msgspec.json.decode(text(raw), type=Point)
            except msgspec.MsgspecError:
                continue
            found[point.at] = point
    return [found[at] for at in sorted(found)]


def read_history(client: redis.Redis, run_id: str) -> list[Point]:
    """All points that are kept of the run; raises the client's errors."""
    with client.pipeline(transaction=False) as pipe:
        ask_history(pipe, run_id)
        return parse_history(pipe.execute())


def rates_of(points: Sequence[Point], most: int = 240) -> list[Rates]:
    """What happened between neighbours of `most + 1` points spread over time; empty for fewer than two."""
    chosen = thinned(points, most + 1)
    return [_rates(before, after) for before, after in pairwise(chosen) if after.at > before.at]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many of the points, evenly spread over time, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    step = (points[-1].at - points[0].at) / (most - 1)
    chosen, due = [], points[0].at
    for point in points[:-1]:
        if point.at >= due:
            chosen.append(point)
            due = max(due + step, point.at + step / 2)
    return [*chosen[: most - 1], points[-1]]


def _rates(before: Point, after: Point) -> Rates:
    seconds = after.at - before.at
    stored, tokens = max(0, after.bytes - before.bytes), max(0, after.tokens - before.tokens)
    grown = (after.backlog - before.backlog) / after.batches if after.batches else 0.0
    return Rates(
        at=after.at,
        extract_bytes_per_second=max(0.0, stored + grown * after.bytes) / seconds,
        upload_bytes_per_second=stored / seconds,
        tokens_per_second=max(0.0, tokens + grown * after.tokens) / seconds,
        backlog=after.backlog,
        queued=after.queued,
        workers=after.workers,
        uploaders=after.uploaders,
        spool_bytes=after.spool_bytes,
        spool_cap_bytes=after.spool_cap_bytes,
    )


def _keys(run_id: str) -> tuple[str, str, str]:
    root = f"hiddenfeed:history:{check_run_id(run_id)}"
    return f"{root}:fine", f"{root}:coarse", f"{root}:turn"
