"""A fleet of worker processes on one queue, started and killed by the queue's benchmarks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import redis

from benchmarks.queue_worker import URL_VARIABLE
from common.settings.catalogue import QueueSettings
from common.worker import list_workers
from hiddenfeed.errors import PermanentError

_START_SECONDS = 120.0


class Fleet:
    """Processes that were started together and are killed together."""

    def __init__(self, url: str, kind: str, settings: QueueSettings, *, workers: int, slots: int) -> None:
        """`kind` as in `benchmarks.queue_jobs.handlers`; the processes may still be starting when this returns."""
        command = [sys.executable, "-m", "benchmarks.queue_worker", kind, str(workers), str(slots)]
        # A session of its own: what it forks is found again, and a Ctrl-C comes to us alone.
        self._first = subprocess.Popen(
            [*command, msgspec.json.encode(settings).decode()],
            env=os.environ | {URL_VARIABLE: url},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._killed = False

    @property
    def pid(self) -> int:
        """Of its first process, the only one of a fleet of one."""
        return self._first.pid

    def kill(self) -> None:
        """As kill -9 does; no error if it was killed before."""
        if not self._killed:
            os.killpg(self._first.pid, signal.SIGKILL)
            self._first.wait()
        self._killed = True


@contextmanager
def fleet(url: str, kind: str, settings: QueueSettings, *, workers: int, slots: int) -> Iterator[Fleet]:
    """A fleet whose workers have all signed on, killed at the end."""
    with redis.Redis.from_url(url) as client:
        before = len(list_workers(client))
        started = Fleet(url, kind, settings, workers=workers, slots=slots)
        try:
            wait_until(
                lambda: len(list_workers(client)) >= before + workers, _START_SECONDS, "workers to start"
            )
            yield started
        finally:
            started.kill()


def wait_until(true: Callable[[], bool], seconds: float, what: str, *, pause_seconds: float = 0.05) -> None:
    """Look every `pause_seconds` until it is true; raises PermanentError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise PermanentError(f"waited {seconds:.0f} s for {what} in vain")
        pause(pause_seconds)


def pause(seconds: float) -> None:
    """Let others work."""
    threading.Event().wait(seconds)
