"""Is this host's worker of a role alive? A command for container health checks: workers have no port.

python -m common.health gpu_worker
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence

from common.redis_client import clock_of, connect
from common.settings.catalogue import QueueSettings, RedisSettings
from common.settings.resolve import resolve
from common.worker.presence import WorkerInfo, list_workers
from hiddenfeed.errors import HiddenfeedError


def verdict(
    workers: Sequence[WorkerInfo], role: str, host: str, lease_seconds: float, now: float
) -> str | None:
    """None if a worker of `role` on `host` has been heard within its lease at `now`, by Redis's clock; else why not."""
    ages = [now - worker.last_heartbeat for worker in workers if worker.role == role and worker.host == host]
    if not ages:
        return f"no {role} of host {host} is registered"
    if min(ages) > lease_seconds:
        return f"the {role} of host {host} has been silent for {min(ages):.0f} s"
    return None


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if alive; 1 with one sentence if not."""
    parser = argparse.ArgumentParser(prog="python -m common.health", description=__doc__)
    parser.add_argument("role", choices=["gpu_worker", "uploader"])
    role = parser.parse_args(arguments).role
    try:
        settings = resolve((RedisSettings, QueueSettings), {}, os.environ)
        client = connect(settings.group(RedisSettings))
        lease = settings.group(QueueSettings).lease_seconds
        problem = verdict(list_workers(client), role, socket.gethostname(), lease, clock_of(client))
    except HiddenfeedError as error:
        problem = str(error)
    if problem:
        print(f"unhealthy: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
