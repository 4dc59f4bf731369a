"""What the worker spends beside forward passes in the extraction benchmark, by the clocks of its own threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from common.worker import Worker
from common.worker.slots import Slot
from gpu_worker.device_loop import DeviceLoop, LoopReport
from gpu_worker.host_ring import ChunkTensors
from gpu_worker.micro_batch import MicroBatch
from gpu_worker.transfer import Landing
from gpu_worker.writer import BatchFile

#: What the names of threads begin with: of those that check, sum and write, and of all that live as long as the worker.
_WRITING = ("writer", "checksum")
_LASTING = ("worker", "heartbeat", "chores", *_WRITING)


@dataclass(frozen=True)
class Spent:
    """Seconds since the account was opened."""

    #: Of the device, in passes over a sample that is computed a second time.
    canary: float
    #: Of the processors: of the threads that check, sum and write; and of all threads but those that compute, and of these
    #: what they do outside of forward passes.
    writer: float
    beside: float

    def __sub__(self, before: Spent) -> Spent:
        return Spent(self.canary - before.canary, self.writer - before.writer, self.beside - before.beside)


class Account:
    """Watches one device loop and the threads of the worker around it, of which there is one in this process."""

    def __init__(self, loop: DeviceLoop) -> None:
        self._lock = threading.Lock()
        self._canary = self._jobs = self._passes = 0.0
        self._extract, self._ask = loop.extract, loop._ask
        loop.extract = self._watched_extract  # type: ignore[method-assign]
        loop._ask = self._watched_ask  # type: ignore[method-assign]

    def spent(self) -> Spent:
        """Until now; of jobs that run, nothing yet."""
        threads = [thread for thread in threading.enumerate() if thread.name.startswith(_LASTING)]
        lasting = sum(map(_processor_seconds, threads))
        writer = sum(_processor_seconds(thread) for thread in threads if thread.name.startswith(_WRITING))
        with self._lock:
            return Spent(self._canary, writer, lasting + self._jobs - self._passes)

    @contextmanager
    def job(self) -> Iterator[None]:
        """A job's thread is in it for all of its life."""
        yield
        with self._lock:
            self._jobs += time.thread_time()

    def _watched_extract(self, file: BatchFile, stopping: Callable[[], bool] = lambda: False) -> LoopReport:
        report = self._extract(file, stopping)
        with self._lock:
            self._canary += report.canary_seconds
        return report

    def _watched_ask(self, micro_batch: MicroBatch, host: ChunkTensors) -> Landing | None:
        begin = time.thread_time()
        landing = self._ask(micro_batch, host)
        with self._lock:
            self._passes += time.thread_time() - begin
        return landing


class CountedWorker(Worker):
    """The worker, its jobs' threads in an account from their first moment to their last."""

    def __init__(self, account: Account, **arguments: Any) -> None:
        """`arguments` are the worker's."""
        super().__init__(**arguments)
        self._account = account

    def _work(self, slot: Slot) -> None:
        with self._account.job():
            super()._work(slot)


def _processor_seconds(thread: threading.Thread) -> float:
    """Of a thread that lives."""
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
