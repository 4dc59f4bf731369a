"""Wires the monitor: settings in, a function that takes snapshots out."""

from __future__ import annotations

import time
from collections.abc import Callable

from common.redis_client import make_client
from common.settings.catalogue import QueueSettings, RedisSettings, SpoolSettings, StoreSettings
from common.settings.resolve import Resolved
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import open_store
from monitor.facts import read_facts
from monitor.snapshot import take_snapshot
from monitor.views import Snapshot


def snapshot_reader(settings: Resolved) -> Callable[[], Snapshot]:
    """A function that looks at everything and says what it means; nothing is connected to before it is called."""
    client = make_client(settings.group(RedisSettings))
    spool = settings.group(SpoolSettings)
    lease_seconds = float(settings.group(QueueSettings).lease_seconds)
    url = settings.group(StoreSettings).store
    store = open_store(url, settings.group(StoreOptions)) if url else None

    def read() -> Snapshot:
        return take_snapshot(read_facts(client, spool, lease_seconds, store), time.time())

    return read
