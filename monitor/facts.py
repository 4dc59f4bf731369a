"""What can be seen of the runs, read without changing anything: from Redis, rq, the spool and the store."""

from __future__ import annotations

from pathlib import Path

import msgspec
import redis

from common.queues import (
    UPLOAD_QUEUE_PREFIX,
    FailedJob,
    QueueCounts,
    extract_queue_name,
    failed_jobs,
    queue_counts,
    queue_names,
    upload_queue_name,
)
from common.redis_client import address_of, translated
from common.run_state import Progress, RunRecord, list_runs, read_progress
from common.settings.catalogue import SpoolSettings
from common.spool import Spool, SpoolUsage, kept_name
from common.worker.presence import WorkerInfo, list_workers
from hiddenfeed.errors import HiddenfeedError, PermanentError
from hiddenfeed.layout import complete_key
from hiddenfeed.store.base import Store

#: Failed jobs read per queue; the counts are always whole.
_MOST_FAILED = 20
#: Runs looked at in detail: those that are not over, and this many of the latest others.
_MOST_OVER = 10


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of rq."""

    name: str
    counts: QueueCounts
    failed: tuple[FailedJob, ...] = ()


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run as Redis knows it."""

    record: RunRecord
    progress: Progress
    extract: QueueFacts
    #: Whether complete.json is in the store; None if that is not known.
    proved: bool | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, at one moment."""

    #: A process that has been silent for longer has lost its jobs to others.
    lease_seconds: float
    #: Why Redis could not be read; empty if it was.
    redis_error: str = ""
    #: Why the store could not be read; empty if it was, or if none was given.
    store_error: str = ""
    #: Exit code of a look that could not see everything, 0 of one that could.
    exit_code: int = 0
    #: Where the store is, as people may see it; empty if none was given.
    store: str = ""
    runs: tuple[RunFacts, ...] = ()
    uploads: tuple[QueueFacts, ...] = ()
    workers: tuple[WorkerInfo, ...] = ()
    #: The spool of this host; None if its folder is not here.
    spool: SpoolUsage | None = None
    spool_name: str = ""
    upload_queue: str = ""


def read_facts(
    client: redis.Redis, spool_settings: SpoolSettings, lease_seconds: float, store: Store | None
) -> Facts:
    """Everything that can be seen now. What is away is named in the facts, never raised."""
    name = spool_settings.spool or kept_name(Path(spool_settings.spool_dir).expanduser())
    facts = Facts(
        lease_seconds=lease_seconds,
        store=store.url if store else "",
        spool=_read_spool(spool_settings),
        spool_name=name,
        upload_queue=upload_queue_name(name) if name else "",
    )
    facts = _with_redis(facts, client)
    return _with_proofs(facts, store) if store else facts


def _with_redis(facts: Facts, client: redis.Redis) -> Facts:
    """The same with what Redis and rq say."""
    try:
        with translated(client):
            return msgspec.structs.replace(
                facts,
                runs=tuple(_read_run(client, record) for record in _worth_showing(list_runs(client))),
                uploads=tuple(
                    _read_queue(client, name) for name in _upload_queues(client, facts.upload_queue)
                ),
                workers=tuple(list_workers(client)),
            )
    except HiddenfeedError as error:
        return msgspec.structs.replace(facts, redis_error=str(error), exit_code=error.exit_code)
    except redis.RedisError as error:
        # Another program's keys under our names, or commands that this server does not have.
        reason = f"Redis at {address_of(client)} does not hold what we expect: {error}"
        return msgspec.structs.replace(facts, redis_error=reason, exit_code=PermanentError.exit_code)


def _worth_showing(records: list[RunRecord]) -> list[RunRecord]:
    """Runs that are not over, and the latest of those that are."""
    over = [record for record in records if record.state in ("complete", "cancelled")]
    latest = sorted(over, key=lambda record: record.submitted_at)[-_MOST_OVER:]
    return [record for record in records if record not in over or record in latest]


def _read_run(client: redis.Redis, record: RunRecord) -> RunFacts:
    return RunFacts(
        record=record,
        progress=read_progress(client, record.run_id),
        extract=_read_queue(client, extract_queue_name(record.run_id)),
    )


def _upload_queues(client: redis.Redis, own: str) -> list[str]:
    """This host's queue, if it has one, known to rq yet or not, and those of all other hosts."""
    return sorted(
        {
            *filter(None, [own]),
            *(name for name in queue_names(client) if name.startswith(UPLOAD_QUEUE_PREFIX)),
        }
    )


def _read_queue(client: redis.Redis, name: str) -> QueueFacts:
    counts = queue_counts(client, name)
    failed = tuple(failed_jobs(client, name, _MOST_FAILED)) if counts.failed else ()
    return QueueFacts(name=name, counts=counts, failed=failed)


def _read_spool(settings: SpoolSettings) -> SpoolUsage | None:
    return Spool(settings).usage() if Path(settings.spool_dir).is_dir() else None


def _with_proofs(facts: Facts, store: Store) -> Facts:
    """The same with what the store says of each run: one listing that proves that it is there, one HEAD per run."""
    try:
        # A HEAD of an object cannot tell a bucket that is not there from an object that is not.
        store.check()
        runs = tuple(
            msgspec.structs.replace(run, proved=store.head(complete_key(run.record.run_id)) is not None)
            for run in facts.runs
        )
    except HiddenfeedError as error:
        return msgspec.structs.replace(
            facts, store_error=str(error), exit_code=facts.exit_code or error.exit_code
        )
    return msgspec.structs.replace(facts, runs=runs)
