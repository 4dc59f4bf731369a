"""Keeping the spool free of what no job will ever come for: a quiet thread beside the worker."""

from __future__ import annotations

import threading
import time

import redis

from common.logs import get_logger
from common.queues import job_states
from common.spool import Spool
from hiddenfeed.errors import ConfigError, TransientError
from uploader.decide import job_ids, leftovers

_log = get_logger("uploader")

#: How often the spool is looked through.
_INTERVAL_SECONDS = 60.0


def tidy(spool: Spool, client: redis.Redis, *, least_age_seconds: float, now: float) -> list[str]:
    """Remove half-written files of dead writers and files without a job; returns their paths.

    Raises TransientError when Redis is away: then nothing is known, and no finished file is touched.
    """
    removed = spool.sweep()
    files = spool.files()
    states = job_states(client, job_ids(files))
    for file in leftovers(files, states, now=now, least_age_seconds=least_age_seconds):
        if spool.remove(file.path):
            removed.append(file.path)
    for path in removed:
        _log.warning("removed a file that no job speaks of", path=path)
    return removed


class Tidier:
    """Calls `tidy` now and then until stopped."""

    def __init__(self, spool: Spool, client: redis.Redis, least_age_seconds: float) -> None:
        self._spool, self._client, self._least_age_seconds = spool, client, least_age_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidy", daemon=True)

    def __enter__(self) -> Tidier:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                tidy(self._spool, self._client, least_age_seconds=self._least_age_seconds, now=time.time())
            except (TransientError, ConfigError) as error:
                _log.warning("the spool could not be tidied", reason=str(error))
            self._stopped.wait(_INTERVAL_SECONDS)
