"""A worker as a process of its own, for tests that kill it: python -m tests.worker_process URL QUEUE [name=value …]

What a job does is its message's text: `quick` returns, `wait` returns once the key `open` exists,
`hang` enters a native call that never returns, `crash` ends the process at once.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

import msgspec

from common.logs import setup_logging
from common.redis_client import connect
from common.settings.catalogue import LogSettings, QueueSettings, RedisSettings
from common.worker import JobContext, Worker, leave
from tests.worker_rig import FUNCTION, SETTINGS, Result


def main(url: str, queue: str, *options: str) -> None:
    """Run until told to end."""
    given: dict[str, str] = dict(option.split("=", 1) for option in options)
    role = given.pop("role", "tester")
    slots, timeout = int(given.pop("slots", "4")), float(given.pop("timeout", "600"))
    settings = msgspec.convert(
        msgspec.to_builtins(SETTINGS) | {"grace_seconds": 30} | given, QueueSettings, strict=False
    )
    setup_logging(LogSettings(log_format="human"), "tester")
    client = connect(RedisSettings(redis_url=url))

    def handler(payload: Any, context: JobContext) -> Result:
        client.rpush(f"runs:{context.job_id}", os.getpid())
        text = payload["text"]
        if text == "crash":
            os._exit(9)
        if text == "hang":
            ctypes.CDLL(None).pause()
        while text == "wait" and not client.exists("open"):
            threading.Event().wait(0.05)
        return Result(f"{text} in {os.getpid()}")

    worker = Worker(
        redis=client,
        role=role,
        queues=lambda _: queue,
        handlers={FUNCTION: handler},
        settings=settings,
        slots=lambda: slots,
        job_timeout_seconds=timeout,
    )
    leave(worker.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
