"""What every test of a fault does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tests.faults.conftest import Stage
from tests.faults.trial import Fault, Report, try_fault


def by_name(faults: Sequence[Fault]) -> pytest.MarkDecorator:
    """Parametrise a test with faults; their names become the cases' ids."""
    return pytest.mark.parametrize("fault", faults, ids=[fault.name.replace(" ", "_") for fault in faults])


def run_case(stage: Stage, fault: Fault) -> Report:
    """Let the fault strike a run, short form; fails unless the run is as if nothing had happened."""
    if reason := fault.why_not(stage.site):
        pytest.skip(reason)
    # The same every time, as far as a fault in a running system can be.
    random = Random(fault.name)
    name = f"run-{random.randrange(16**6):06x}"
    report = try_fault(stage.site, stage.reference, fault, name, random, times=fault.times[0])
    assert report.findings.all == []
    assert report.strikes, "the run was over before the fault could strike"
    return report
