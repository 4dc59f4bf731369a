"""A run whose processes are killed, told to end and frozen ends as if nothing had happened."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.faults.cases import in_cases, run_case
from tests.faults.conftest import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@in_cases(
    ["kill -9 producer, early", "kill -9 gpu_worker", "kill -9 uploader", "kill -9 producer"],
    ["kill -9 all", "kill -9 all and servers"],
    ["SIGTERM storm"],
    ["job ids pushed twice", "running jobs queued again", "frozen past the lease"],
)
def test_processes_fail_and_nothing_is_lost(stage: Stage, names: Sequence[str]) -> None:
    run_case(stage, names)
