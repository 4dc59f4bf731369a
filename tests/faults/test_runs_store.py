"""A run whose S3 or host fails in any way ends as if nothing had happened, and no process has ended for it."""

from __future__ import annotations

import pytest

from tests.faults import host_faults, store_faults
from tests.faults.cases import by_name, run_case
from tests.faults.conftest import Stage
from tests.faults.trial import Fault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@by_name(store_faults.FAULTS)
def test_s3_fails_and_nothing_is_lost(stage: Stage, fault: Fault) -> None:
    run_case(stage, fault)


@by_name(host_faults.FAULTS)
def test_a_host_fails_and_nothing_is_lost(stage: Stage, fault: Fault) -> None:
    run_case(stage, fault)
