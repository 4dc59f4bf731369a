"""A run that faults strike ends as if nothing had happened, and no process has ended for a fault outside of it.

The short form of the fault suite, all on one site. What is only here in a stronger or weaker form of itself
(all processes and servers killed at once, a Redis that takes no writes) is left to `make chaos`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.faults.cases import in_cases, run_case, skip_if_any_is_impossible
from tests.faults.conftest import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@in_cases(
    ["kill -9 producer, early", "kill -9 gpu_worker", "kill -9 uploader", "kill -9 producer"],
    ["SIGTERM storm", "kill -9 all"],
    ["two producers at once", "job ids pushed twice", "running jobs queued again", "frozen past the lease"],
)
def test_processes_fail_and_nothing_is_lost(stage: Stage, names: Sequence[str]) -> None:
    run_case(stage, names)


@in_cases(
    ["Redis restarted", "Redis drops connections", "Redis clock jumps", "Redis forgets lists"],
    ["Redis away", "Redis standing still", "Redis wiped", "Redis wiped, submit again"],
)
def test_redis_fails_and_nothing_is_lost(stage: Stage, names: Sequence[str]) -> None:
    run_case(stage, names)


@in_cases(
    ["S3 away", "S3 answers 503", "S3 hangs", "disk full", "spool full", "disk errors"],
    [
        "S3 resets in mid-body",
        "S3 gets other bytes",
        "S3 loses replies",
        "S3 refuses until all wait",
        "S3 cuts replies",
    ],
    [
        "object gone before HEAD",
        "object gone before delete",
        "object deleted later",
        "clock jumps ahead",
        "clock jumps back",
    ],
)
def test_a_store_or_a_host_fails_and_nothing_is_lost(stage: Stage, names: Sequence[str]) -> None:
    run_case(stage, names)


def test_no_fault_is_left_out(stage: Stage) -> None:
    skip_if_any_is_impossible(stage)
