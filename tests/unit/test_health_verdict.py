"""Health of a host's worker: a pure function of what Redis says and the clock."""

from __future__ import annotations

import msgspec
import pytest

from common.health import verdict
from common.worker.presence import WorkerInfo

WORKER = WorkerInfo(
    name="uploader-a-1-x", role="uploader", queue=None, state="idle", waiting="", running=0, slots=8, finished=0,
    failed=0, working_seconds=0.0, host="a", pid=1, started_at=0.0, last_heartbeat=1000.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("now", "role", "host", "expected"),
    [
        (1044.0, "uploader", "a", None),
        (1046.0, "uploader", "a", "silent for 46 s"),
        (1001.0, "uploader", "b", "no uploader of host b"),
        (1001.0, "gpu_worker", "a", "no gpu_worker of host a"),
    ],
)
def test_alive_means_heard_within_the_lease(now: float, role: str, host: str, expected: str | None) -> None:
    answer = verdict([WORKER], role, host, 45, now)
    assert (answer is None) if expected is None else (answer is not None and expected in answer)


def test_one_living_worker_is_enough() -> None:
    dead = msgspec.structs.replace(WORKER, last_heartbeat=0.0)
    assert verdict([dead, WORKER], "uploader", "a", 45, 1001.0) is None
