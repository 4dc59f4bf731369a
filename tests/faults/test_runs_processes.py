"""A run whose processes are killed, told to end and frozen ends as if nothing had happened."""

from __future__ import annotations

import pytest

from tests.faults import process_faults
from tests.faults.cases import by_name, run_case
from tests.faults.conftest import Stage
from tests.faults.trial import Fault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@by_name(process_faults.FAULTS)
def test_processes_die_and_nothing_is_lost(stage: Stage, fault: Fault) -> None:
    run_case(stage, fault)
