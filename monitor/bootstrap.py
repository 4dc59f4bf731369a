"""Wires the monitor: settings in, a function that takes snapshots out."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from common.redis_client import make_client
from common.settings.catalogue import QueueSettings, RedisSettings, SpoolSettings, StoreSettings
from common.settings.resolve import Resolved
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import open_store
from monitor.facts import read_facts
from monitor.snapshot import take_snapshot
from monitor.views import Snapshot

#: Of one call to the store.
_MOST_SECONDS = 5.0
_MOST_ATTEMPTS = 2


def snapshot_reader(settings: Resolved) -> Callable[[], Snapshot]:
    """A function that looks at everything and says what it means; nothing is connected to before it is called."""
    client = make_client(settings.group(RedisSettings))
    spool = settings.group(SpoolSettings)
    lease_seconds = float(settings.group(QueueSettings).lease_seconds)
    url = settings.group(StoreSettings).store
    store = open_store(url, _impatient(settings.group(StoreOptions))) if url else None

    def read() -> Snapshot:
        return take_snapshot(read_facts(client, spool, lease_seconds, store), time.time())

    return read


def _impatient(options: StoreOptions) -> StoreOptions:
    """The same, but for a person who waits: a store that does not answer soon is said to be away."""
    return msgspec.structs.replace(
        options,
        s3_connect_timeout_seconds=min(options.s3_connect_timeout_seconds, _MOST_SECONDS),
        s3_read_timeout_seconds=min(options.s3_read_timeout_seconds, _MOST_SECONDS),
        s3_max_attempts=min(options.s3_max_attempts, _MOST_ATTEMPTS),
    )
