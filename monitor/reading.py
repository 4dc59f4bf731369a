"""Reads all that the monitor shows of Redis and rq in a few round trips, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import redis
from redis.client import Pipeline

from common import rq_keys
from common.history import Point, ask_history, parse_history
from common.queues import (
    UPLOAD_QUEUE_PREFIX,
    FailedJob,
    QueueCounts,
    ask_counts,
    extract_queue_name,
    failed_jobs,
    parse_counts,
    retrying_jobs,
)
from common.redis_client import parse_clock, text
from common.run_state import (
    RUNS_INDEX,
    Progress,
    RunRecord,
    ask_progress,
    decode_record,
    in_order,
    parse_progress,
    run_key,
)
from common.settings.live import LIVE_KEY
from common.worker.presence import WorkerInfo, worker_of
from monitor.trip import Trip

#: Failed jobs read per queue; the counts are always whole.
_MOST_FAILED = 20
#: Jobs whose reason to be tried again is read, of a queue; and upload queues, one per host, that it is read of.
_MOST_RETRYING, _MOST_RETRYING_QUEUES = 3, 4
#: Runs looked at in detail: those that are not over, and this many of the latest others.
_MOST_OVER = 10
#: In a larger fleet it is not read which batches each worker has in hand.
_MOST_HANDS = 200
#: Points of a run's history that tell what goes on now: two minutes.
_RECENT_POINTS = 13


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of rq."""

    name: str
    counts: QueueCounts
    failed: tuple[FailedJob, ...] = ()
    #: The latest of those that will be tried again by themselves.
    retrying: tuple[FailedJob, ...] = ()


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run as Redis knows it."""

    record: RunRecord
    progress: Progress
    extract: QueueFacts
    #: Whether complete.json is in the store; None if that is not known.
    proved: bool | None = None
    #: The last two minutes, as far as somebody watched.
    recent: tuple[Point, ...] = ()


class RedisFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    #: Redis's clock when it was asked, in seconds since the epoch.
    clock: float
    runs: tuple[RunFacts, ...]
    uploads: tuple[QueueFacts, ...]
    workers: tuple[WorkerInfo, ...]
    #: Ids of the jobs that GPU workers have in hand, by worker.
    hands: dict[str, tuple[str, ...]]
    #: Live settings that are set, as text.
    live: dict[str, str]
    #: Keys under our names that hold something else: what they should tell is read as nothing.
    foreign: tuple[str, ...] = ()


def read_redis(client: redis.Redis, own_upload_queue: str) -> RedisFacts:
    """What Redis and rq say now; raises the client's errors."""
    foreign: set[str] = set()
    clock, run_ids, queues, worker_keys, live = _members(client, foreign)
    uploads = sorted({*filter(None, [own_upload_queue]), *queues})
    trip = Trip(client, foreign)
    asked = [trip.ask(partial(_ask_hash, run_key(run_id)), _decode_record) for run_id in run_ids]
    counted = [(name, trip.ask(partial(ask_counts, name=name), parse_counts)) for name in uploads]
    present = [trip.ask(partial(_ask_hash, key), partial(_decode_worker, key)) for key in worker_keys]
    held = _ask_hands(trip, worker_keys)
    trip.go()
    records = in_order(record for record in (part() for part in asked) if record is not None)
    workers = [worker for worker in (part() for part in present) if worker is not None]
    runs = _read_runs(client, _worth_showing(records), foreign)
    return RedisFacts(
        clock=clock,
        runs=runs,
        uploads=_read_uploads(client, [(name, part()) for name, part in counted]),
        workers=tuple(sorted(workers, key=lambda worker: (worker.role, worker.name))),
        hands={name: part() for name, part in held.items()},
        live=live,
        foreign=tuple(sorted(foreign)),
    )


def _members(
    client: redis.Redis, foreign: set[str]
) -> tuple[float, list[str], list[str], list[str], dict[str, str]]:
    """Redis's clock; ids of runs, names of upload queues, keys of workers; and the live settings."""
    trip = Trip(client, foreign)
    members = trip.ask(_ask_members, tuple)
    trip.go()
    clock, runs, queues, workers, live = members()
    names = (text(key).removeprefix(rq_keys.queue_key("")) for key in queues)
    return (
        parse_clock(clock),
        sorted(map(text, runs)),
        [name for name in names if name.startswith(UPLOAD_QUEUE_PREFIX)],
        sorted(map(text, workers)),
        {text(name): text(value) for name, value in live.items()},
    )


def _ask_members(pipe: Pipeline) -> int:
    pipe.time()
    for key in (RUNS_INDEX, rq_keys.QUEUES, rq_keys.WORKERS):
        pipe.smembers(key)
    pipe.hgetall(LIVE_KEY)
    return 5


def _ask_hash(key: str, pipe: Pipeline) -> int:
    pipe.hgetall(key)
    return 1


def _decode_record(replies: Sequence[Any]) -> RunRecord | None:
    return decode_record(replies[0])


def _decode_worker(key: str, replies: Sequence[Any]) -> WorkerInfo | None:
    return worker_of(key, replies[0])


def _ask_hands(trip: Trip, worker_keys: Sequence[str]) -> dict[str, Callable[[], tuple[str, ...]]]:
    names = [key.removeprefix(rq_keys.worker_key("")) for key in worker_keys]
    names = [name for name in names if name.startswith("gpu_worker")]
    if len(names) > _MOST_HANDS:
        return {}
    return {name: trip.ask(partial(_ask_executions, name), _decode_executions) for name in names}


def _ask_executions(worker: str, pipe: Pipeline) -> int:
    pipe.smembers(rq_keys.worker_executions_key(worker))
    return 1


def _decode_executions(replies: Sequence[Any]) -> tuple[str, ...]:
    """Job ids out of `job:execution`."""
    return tuple(sorted(text(each).rpartition(":")[0] for each in replies[0]))


def _worth_showing(records: list[RunRecord]) -> list[RunRecord]:
    """Runs that are not over, and the latest of those that are."""
    over = [record for record in records if record.state in ("complete", "cancelled")]
    latest = sorted(over, key=lambda record: record.submitted_at)[-_MOST_OVER:]
    return [record for record in records if record not in over or record in latest]


def _read_runs(client: redis.Redis, records: Sequence[RunRecord], foreign: set[str]) -> tuple[RunFacts, ...]:
    trip = Trip(client, foreign)
    asked = []
    for record in records:
        run_id = record.run_id
        asked.append(
            (
                trip.ask(
                    partial(ask_progress, run_id=run_id),
                    partial(parse_progress, run_id, states=record.states.split(",") if record.states else ()),
                ),
                trip.ask(partial(ask_counts, name=extract_queue_name(run_id)), parse_counts),
                trip.ask(partial(ask_history, run_id=run_id, latest=_RECENT_POINTS), parse_history),
            )
        )
    trip.go()
    return tuple(
        RunFacts(
            record=record,
            progress=progress(),
            extract=_queue(client, extract_queue_name(record.run_id), counts()),
            recent=tuple(recent()),
        )
        for record, (progress, counts, recent) in zip(records, asked, strict=True)
    )


def _read_uploads(client: redis.Redis, counted: Sequence[tuple[str, QueueCounts]]) -> tuple[QueueFacts, ...]:
    """When a store is away the files of every host wait for it, for one and the same reason."""
    told = [name for name, counts in counted if counts.scheduled][:_MOST_RETRYING_QUEUES]
    return tuple(_queue(client, name, counts, reasons=name in told) for name, counts in counted)


def _queue(client: redis.Redis, name: str, counts: QueueCounts, *, reasons: bool = True) -> QueueFacts:
    """With its failed jobs, and why others are tried again; the rare case of any is worth a trip of its own."""
    failed = tuple(failed_jobs(client, name, _MOST_FAILED)) if counts.failed else ()
    asked = counts.scheduled and reasons
    retrying = tuple(retrying_jobs(client, name, _MOST_RETRYING)) if asked else ()
    return QueueFacts(name=name, counts=counts, failed=failed, retrying=retrying)
