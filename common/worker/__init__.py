"""The worker both roles stand on: N jobs in flight in threads, leases, recovery, graceful stop."""

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
