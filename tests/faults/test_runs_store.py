"""A run whose S3, disk or clock fails ends as if nothing had happened, and no process has ended for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.faults.cases import in_cases, run_case
from tests.faults.conftest import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@in_cases(
    ["S3 away", "S3 answers 503", "S3 hangs"],
    [
        "S3 resets in mid-body",
        "S3 gets other bytes",
        "S3 loses replies",
        "S3 refuses until all wait",
        "S3 cuts replies",
    ],
    ["object gone before HEAD", "object gone before delete", "object deleted later"],
)
def test_s3_fails_and_nothing_is_lost(stage: Stage, names: Sequence[str]) -> None:
    run_case(stage, names)


@in_cases(["disk full"], ["spool full", "disk errors", "clock jumps ahead", "clock jumps back"])
def test_a_host_fails_and_nothing_is_lost(stage: Stage, names: Sequence[str]) -> None:
    run_case(stage, names)
