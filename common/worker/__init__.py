"""The worker both roles stand on: N jobs in flight in threads, leases, recovery, graceful stop.

Names are looked up on first use: who only looks at workers, as the monitor does, loads none of what runs jobs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.worker.context import GiveBack, JobContext
    from common.worker.loop import Handler, QueueChooser, Worker
    from common.worker.presence import WorkerInfo, list_workers
    from common.worker.shutdown import leave

__all__ = [
    "GiveBack",
    "Handler",
    "JobContext",
    "QueueChooser",
    "Worker",
    "WorkerInfo",
    "leave",
    "list_workers",
]

_MODULES = {
    "GiveBack": "context",
    "JobContext": "context",
    "WorkerInfo": "presence",
    "leave": "shutdown",
    "list_workers": "presence",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'common.worker' has no attribute {name!r}")
    return getattr(importlib.import_module(f"common.worker.{_MODULES.get(name, 'loop')}"), name)
