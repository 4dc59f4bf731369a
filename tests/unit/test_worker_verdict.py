"""What becomes of a job, from how its handler ended: a table."""

from __future__ import annotations

import pytest
from rq.job import JobStatus

from common.settings.catalogue import QueueSettings
from common.worker import GiveBack
from common.worker.settle import Standing, standing
from common.worker.verdict import Fail, Return, TryLater, judge, judge_hung, one_line
from hiddenfeed.errors import (
    ConfigError,
    DataError,
    HiddenfeedError,
    MissingObjectError,
    PermanentError,
    TransientError,
)

SETTINGS = QueueSettings(job_attempts=3, retry_base_seconds=2.0, retry_max_seconds=20.0)


def verdict(error: BaseException, failures: int = 0, transients: int = 0) -> object:
    """With all jitter gone."""
    return judge(error, failures=failures, transients=transients, settings=SETTINGS, chance=1.0)


@pytest.mark.parametrize(
    "error", [DataError("x"), PermanentError("x"), ConfigError("x"), MissingObjectError("x")]
)
def test_final_errors_fail_at_once_without_a_traceback(error: Exception) -> None:
    assert verdict(error) == Fail(f"{type(error).__name__}: x", f"{type(error).__name__}: x")


@pytest.mark.parametrize("transients", [0, 3, 10_000])
def test_transient_errors_never_fail(transients: int) -> None:
    delay = {0: 2.0, 3: 16.0}.get(transients, 20.0)
    assert verdict(TransientError("away"), failures=2, transients=transients) == TryLater(
        delay, "TransientError: away", uses_attempt=False
    )


def test_a_give_back_costs_nothing() -> None:
    assert verdict(GiveBack("no room"), failures=2) == Return("no room")
    assert verdict(GiveBack()) == Return("given back by its handler")


@pytest.mark.parametrize("error", [ValueError("odd"), HiddenfeedError("odd"), MemoryError(), SystemExit(3)])
def test_unknown_errors_use_the_attempts(error: BaseException) -> None:
    first, second, third = (verdict(error, failures=failures) for failures in range(3))
    assert first == TryLater(2.0, one_line(error), uses_attempt=True)
    assert second == TryLater(4.0, one_line(error), uses_attempt=True)
    assert isinstance(third, Fail)
    assert third.reason == f"{one_line(error)} (failed in all of 3 attempts)"
    assert type(error).__name__ in third.details


def test_a_hung_job_uses_an_attempt_too() -> None:
    assert judge_hung(61.4, failures=0, settings=SETTINGS, chance=0.5) == TryLater(
        1.0, "no end after 61 s; its process was restarted", uses_attempt=True
    )
    assert isinstance(judge_hung(61.4, failures=2, settings=SETTINGS, chance=0.5), Fail)


def test_a_reason_is_one_line_of_bounded_length() -> None:
    assert one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert one_line(ValueError()) == "ValueError: "
    assert len(one_line(ValueError("x" * 10_000))) == 500


@pytest.mark.parametrize(
    ("status", "execution", "ending", "expected"),
    [
        ("started", "me", JobStatus.FINISHED, Standing.OURS),
        ("finished", "me", JobStatus.FINISHED, Standing.SETTLED),
        ("scheduled", "me", JobStatus.SCHEDULED, Standing.SETTLED),
        # Our own retry, due meanwhile; and a job that a tool queued again while we did it.
        ("queued", "me", JobStatus.SCHEDULED, Standing.SETTLED),
        ("queued", "me", JobStatus.FINISHED, Standing.LOST),
        ("started", "other", JobStatus.FINISHED, Standing.LOST),
        ("finished", "other", JobStatus.FINISHED, Standing.LOST),
        ("queued", None, JobStatus.FINISHED, Standing.LOST),
        (None, None, JobStatus.FINISHED, Standing.GONE),
    ],
)
def test_whose_a_job_is(
    status: str | None, execution: str | None, ending: JobStatus, expected: Standing
) -> None:
    assert standing(status, execution, "me", ending) is expected
