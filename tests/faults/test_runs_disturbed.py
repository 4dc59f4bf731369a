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


# Those during which work goes on come last, so that enough of it is left for all.
@in_cases(
    [
        "kill -9 producer, early",
        "kill -9 gpu_worker",
        "kill -9 uploader",
        "kill -9 producer",
        "frozen past the lease",
    ],
    [
        "two producers at once",
        "running jobs queued again",
        "job ids pushed twice",
        "SIGTERM storm",
        "kill -9 all",
    ],
    [
        "Redis restarted",
        "Redis away",
        "Redis standing still",
        "Redis forgets lists",
        "Redis wiped",
        "Redis wiped, submit again",
        "Redis drops connections",
        "Redis clock jumps",
    ],
    [
        "S3 away",
        "S3 answers 503",
        "S3 hangs",
        "disk full",
        "spool full",
        "disk errors",
        "clock jumps ahead",
        "clock jumps back",
    ],
    [
        "S3 resets in mid-body",
        "S3 gets other bytes",
        "S3 loses replies",
        "object gone before HEAD",
        "object gone before delete",
        "object deleted later",
        "S3 refuses until all wait",
        "S3 cuts replies",
    ],
)
def test_faults_strike_a_run_and_nothing_is_lost(stage: Stage, names: Sequence[str]) -> None:
    run_case(stage, names)


def test_no_fault_is_left_out(stage: Stage) -> None:
    skip_if_any_is_impossible(stage)
