"""Small jobs, small leases and running workers, for tests of the queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import redis

from common.queues import JobRequest, job_states
from common.settings.catalogue import QueueSettings
from common.worker import Handler, JobContext, Worker

QUEUE = "extract-test"
FUNCTION = "tests.work"
SETTINGS = QueueSettings(
    lease_seconds=3,
    heartbeat_seconds=1,
    maintenance_seconds=1,
    grace_seconds=10,
    retry_base_seconds=0.1,
    retry_max_seconds=0.2,
    job_attempts=3,
)


class Work(msgspec.Struct, frozen=True):
    """The message of a test's job."""

    text: str = ""


class Result(msgspec.Struct, frozen=True):
    """What a test's job returns."""

    text: str


def work(number: int, text: str = "", *, queue: str = QUEUE, function: str = FUNCTION) -> JobRequest:
    """The request of one job."""
    return JobRequest(
        queue=queue,
        function=function,
        job_id=f"{queue}-{number:06d}",
        payload=Work(text),
        description=f"work {number}",
    )


def make_worker(
    client: redis.Redis,
    handler: Handler | Mapping[str, Handler],
    *,
    settings: QueueSettings = SETTINGS,
    slots: int = 2,
    queue: str = QUEUE,
    **options: Any,
) -> Worker:
    """A worker on one queue."""
    handlers = {FUNCTION: handler} if callable(handler) else handler
    options.setdefault("queues", lambda _: queue)
    return Worker(
        redis=client, role="tester", handlers=handlers, settings=settings, slots=lambda: slots, **options
    )


@contextmanager
def running(worker: Worker) -> Iterator[list[int]]:
    """`worker` runs in a thread and is stopped at the end; its exit code is then in the list."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(worker.run()), name="worker under test")
    thread.start()
    try:
        yield codes
    finally:
        worker.stop()
        thread.join(30)
        assert not thread.is_alive(), "the worker did not stop"


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll an outside fact; fails the test when it does not come true."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not true():
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        pause.wait(0.02)


def state(client: redis.Redis, request: JobRequest) -> str | None:
    """The job's status word."""
    return job_states(client, [request.job_id])[request.job_id]


def returns(text: str) -> Handler:
    """A handler that does nothing else."""

    def handler(payload: Any, context: JobContext) -> Result:
        return Result(text)

    return handler


class Gate:
    """A handler that tells when it runs and goes on when told."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.left = threading.Event()
        self.contexts: list[JobContext] = []

    def __call__(self, payload: Any, context: JobContext) -> Result:
        """Wait for `open`."""
        self.contexts.append(context)
        self.entered.release()
        assert self.opened.wait(30), "nobody opened the gate"
        self.left.set()
        return Result("through the gate")

    def wait_entered(self) -> None:
        """Until one more job is inside."""
        assert self.entered.acquire(timeout=20), "no job came to the gate"

    def open(self) -> None:
        """Let all through."""
        self.opened.set()
