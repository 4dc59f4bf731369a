"""What every test of faults does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.conftest import Stage
from tests.faults.trial import try_faults

#: Each of which has time for one fault at least.
_MOST_RUNS = 3


def in_cases(*cases: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrise a test with names of faults; those of one case strike the same run, which saves a run each."""
    ids = [",".join(case).replace(" ", "_") for case in cases]
    return pytest.mark.parametrize("names", cases, ids=ids)


def run_case(stage: Stage, names: Sequence[str]) -> None:
    """Let the faults strike a run, one after the other; fails unless it ends as if nothing had happened.

    What a run was over before is left to the next run: on a fast machine one may be too short for all. Faults that this
    machine does not allow are left out; a test of their own says so.
    """
    left = [name for name in names if FAULTS[name].why_not(stage.site) is None]
    # The same every time, as far as a fault in a running system can be.
    random = Random(" ".join(names))
    for _ in range(_MOST_RUNS):
        run_name = f"run-{random.randrange(16**6):06x}"
        report = try_faults(stage.site, stage.reference, [FAULTS[name] for name in left], run_name, random)
        assert not report.findings.all, [*report.findings.all, f"logs are in {stage.site.keep_logs()}"]
        struck = [strike.fault for strike in report.strikes]
        assert struck == left[: len(struck)]
        left = left[len(struck) :]
        if not left:
            return
    pytest.fail(f"{_MOST_RUNS} runs were over before these had struck: {', '.join(left)}")


def skip_if_any_is_impossible(stage: Stage) -> None:
    """Skip the test, with the reasons, if faults are left out on this machine."""
    reasons = {fault.name: fault.why_not(stage.site) for fault in FAULTS.values()}
    left_out = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    if left_out:
        pytest.skip("; ".join(left_out))
