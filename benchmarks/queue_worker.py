"""Workers as processes, for the queue's benchmarks: python -m benchmarks.queue_worker KIND COUNT SLOTS SETTINGS

The Redis URL is in the environment, where its password is no one else's to see. Imports are done once
and the processes forked, so that sixty-four of them start in seconds.
"""

from __future__ import annotations

import os
import sys

import msgspec

from benchmarks.queue_jobs import chooser, handlers
from common.logs import setup_logging
from common.redis_client import connect
from common.settings.catalogue import LogSettings, QueueSettings, RedisSettings
from common.worker import Worker, leave

URL_VARIABLE = "BENCHMARK_REDIS_URL"


def main(kind: str, count: int, slots: int, settings: QueueSettings) -> None:
    """`count` processes, this one among them, serve until they are told to end."""
    for _ in range(count - 1):
        if os.fork() == 0:
            break
    setup_logging(LogSettings(log_level="error"), "benchmark")
    client = connect(RedisSettings(redis_url=os.environ[URL_VARIABLE]))
    worker = Worker(
        redis=client,
        role="benchmark",
        queues=chooser(kind, client),
        handlers=handlers(kind, client),
        settings=settings,
        slots=lambda: slots,
    )
    leave(worker.run())


if __name__ == "__main__":
    main(
        sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), msgspec.json.decode(sys.argv[4], type=QueueSettings)
    )
