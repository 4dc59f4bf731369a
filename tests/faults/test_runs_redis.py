"""A run whose Redis is killed, wiped, away or slow ends as if nothing had happened, and no process has ended for it."""

from __future__ import annotations

import pytest

from tests.faults import job_faults, redis_faults
from tests.faults.cases import by_name, run_case
from tests.faults.conftest import Stage
from tests.faults.trial import Fault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@by_name(redis_faults.FAULTS)
def test_redis_fails_and_nothing_is_lost(stage: Stage, fault: Fault) -> None:
    run_case(stage, fault)


@by_name(job_faults.FAULTS)
def test_jobs_are_given_out_twice_and_stored_once(stage: Stage, fault: Fault) -> None:
    run_case(stage, fault)
