"""What every test of faults does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.conftest import Stage
from tests.faults.trial import Report, try_faults


def in_cases(*cases: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrise a test with names of faults; those of one case strike the same run, which saves a run each."""
    ids = [",".join(case).replace(" ", "_") for case in cases]
    return pytest.mark.parametrize("names", cases, ids=ids)


def run_case(stage: Stage, names: Sequence[str]) -> Report:
    """Let the faults strike a run, one after the other; fails unless it ends as if nothing had happened."""
    faults = [FAULTS[name] for name in names]
    impossible = {reason for fault in faults if (reason := fault.why_not(stage.site))}
    if impossible:
        pytest.skip("; ".join(sorted(impossible)))
    # The same every time, as far as a fault in a running system can be.
    random = Random(" ".join(names))
    run_name = f"run-{random.randrange(16**6):06x}"
    report = try_faults(stage.site, stage.reference, faults, run_name, random)
    assert not report.findings.all, [*report.findings.all, f"logs are in {stage.site.keep_logs()}"]
    assert [strike.fault for strike in report.strikes] == list(names), (
        "the run was over before all had struck"
    )
    return report
