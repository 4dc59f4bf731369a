"""What can be seen of the runs, read without changing anything: from Redis, rq, the spool and the store."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import redis

from common.queues import upload_queue_name
from common.redis_client import address_of, translated
from common.settings.catalogue import SpoolSettings
from common.settings.live import live_settings
from common.settings.resolve import parse_value
from common.spool import Spool, SpoolUsage, kept_name
from common.worker.presence import WorkerInfo
from hiddenfeed.errors import ConfigError, HiddenfeedError, TransientError
from hiddenfeed.layout import complete_key
from hiddenfeed.store.base import Store
from monitor.reading import QueueFacts, RunFacts, read_redis

__all__ = ["Facts", "QueueFacts", "RunFacts", "read_facts"]

#: Questions that the store is asked at a time.
_ASKED_AT_ONCE = 8


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, at one moment."""

    #: A process that has been silent for longer has lost its jobs to others.
    lease_seconds: float
    #: Redis's clock, in seconds since the epoch: all that Redis holds is as old as it says. 0 if Redis could not be read.
    clock: float = 0.0
    #: Why Redis could not be read; empty if it was.
    redis_error: str = ""
    #: Why the store could not be read; empty if it was, or if none was given.
    store_error: str = ""
    #: Exit code of a look that could not see everything: 75 if something is away, 2 if a person must change something.
    exit_code: int = 0
    #: Where the store is, as people may see it; empty if none was given.
    store: str = ""
    runs: tuple[RunFacts, ...] = ()
    uploads: tuple[QueueFacts, ...] = ()
    workers: tuple[WorkerInfo, ...] = ()
    #: Ids of the jobs that GPU workers have in hand, by worker; empty in a very large fleet.
    hands: dict[str, tuple[str, ...]] = {}
    #: Live settings that are set, as text.
    live: dict[str, str] = {}
    #: Keys under our names in Redis that hold something else.
    foreign: tuple[str, ...] = ()
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
    if store is None:
        return _with_redis(facts, client)
    with ThreadPoolExecutor(_ASKED_AT_ONCE, "store") as pool:
        # A store may be far away: whether it is there is asked while Redis answers, and of all runs at once.
        there = pool.submit(store.check)
        return _with_proofs(_with_redis(facts, client), store, there, pool)


def _with_redis(facts: Facts, client: redis.Redis) -> Facts:
    """The same with what Redis and rq say."""
    try:
        with translated(client):
            found = read_redis(client, facts.upload_queue)
            seen = msgspec.structs.replace(facts, **msgspec.structs.asdict(found))
            return msgspec.structs.replace(
                seen,
                spool=_with_live_cap(seen.spool, found.live),
                exit_code=ConfigError.exit_code if found.foreign else 0,
            )
    except HiddenfeedError as error:
        return msgspec.structs.replace(facts, redis_error=str(error), exit_code=_exit_code(error))
    except redis.RedisError as error:
        # Commands that this server does not have, for one.
        reason = f"Redis at {address_of(client)} does not hold what we expect: {error}"
        return msgspec.structs.replace(facts, redis_error=reason, exit_code=ConfigError.exit_code)


def _exit_code(error: HiddenfeedError) -> int:
    """Of a look that met the error: whether to look again later or to change something is all that counts."""
    return TransientError.exit_code if isinstance(error, TransientError) else ConfigError.exit_code


def _with_live_cap(spool: SpoolUsage | None, live: Mapping[str, str]) -> SpoolUsage | None:
    """The spool with the cap that workers go by: what is set in the running fleet counts more than this process's own."""
    name = "spool_cap_bytes"
    if spool is None or name not in live:
        return spool
    try:
        cap = parse_value(live_settings()[name], live[name], f"live setting {name}")
    except ConfigError:
        return spool  # as the workers take it
    return msgspec.structs.replace(spool, cap_bytes=cap)


def _read_spool(settings: SpoolSettings) -> SpoolUsage | None:
    return Spool(settings).usage() if Path(settings.spool_dir).is_dir() else None


def _with_proofs(facts: Facts, store: Store, there: Future[None], pool: ThreadPoolExecutor) -> Facts:
    """The same with what the store says of each run: one listing that proves that it is there, one HEAD per run."""

    def proved(run: RunFacts) -> RunFacts:
        found = store.head(complete_key(run.record.run_id))
        return msgspec.structs.replace(run, proved=found is not None)

    looks = pool.map(proved, facts.runs)
    try:
        # A HEAD of an object cannot tell a bucket that is not there from an object that is not.
        there.result()
        runs = tuple(looks)
    except HiddenfeedError as error:
        pool.shutdown(wait=False, cancel_futures=True)
        return msgspec.structs.replace(
            facts, store_error=str(error), exit_code=facts.exit_code or _exit_code(error)
        )
    return msgspec.structs.replace(facts, runs=runs)
