"""Looking on while a run goes on: when each batch was first seen in the store, and how full the spool was."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from common.spool import Spool
from hiddenfeed.errors import TransientError
from hiddenfeed.layout import batches_prefix, parse_batch_key
from hiddenfeed.store import Store

_LOOK_SECONDS = 0.25


class Lookout:
    """A thread that looks until `close`."""

    def __init__(self, store: Store, spool: Spool, run_id: str) -> None:
        self._store, self._spool, self._run_id = store, spool, run_id
        #: Batch -> when it was first seen, on the monotonic clock.
        self.first_seen: dict[int, float] = {}
        #: Bytes of the spool when it was fullest.
        self.spool_peak_bytes = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout")
        self._thread.start()

    @property
    def stored(self) -> int:
        """Batches that were seen so far."""
        with self._lock:
            return len(self.first_seen)

    def seen_at(self, batches: set[int]) -> list[float]:
        """When those of `batches` that were seen were first seen."""
        with self._lock:
            return [self.first_seen[batch] for batch in batches if batch in self.first_seen]

    def close(self) -> None:
        """Look once more, and stop."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        self.spool_peak_bytes = max(self.spool_peak_bytes, spool_bytes(self._spool))
        try:
            keys = [info.key for info in self._store.list(batches_prefix(self._run_id))]
        except TransientError:
            return  # what cannot be seen now is seen later
        parsed = [parse_batch_key(key) for key in keys]
        with self._lock:
            for found in parsed:
                if found is not None:
                    self.first_seen.setdefault(found[1], time.monotonic())


@contextmanager
def spool_held(spool: Spool) -> Iterator[int]:
    """Bytes of all files of the spool, half-written ones included; nobody adds or renames one until the block ends."""
    lock = os.open(spool.root / ".lock", os.O_RDWR | os.O_CREAT, 0o660)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        usage = spool.usage()
        yield usage.bytes + usage.part_bytes
    finally:
        os.close(lock)


def spool_bytes(spool: Spool) -> int:
    """Bytes of all files of the spool at one instant."""
    with spool_held(spool) as used_bytes:
        return used_bytes
