"""What becomes of a job after its handler: a pure decision from how it ended and how often before."""

from __future__ import annotations

import traceback

import msgspec

from common.retry import backoff_seconds
from common.settings.catalogue import QueueSettings
from common.worker.context import GiveBack
from hiddenfeed.errors import ConfigError, DataError, PermanentError, TransientError

#: No second try helps these.
_FINAL = (DataError, PermanentError, ConfigError)
_LINE_LENGTH = 500


class Finish(msgspec.Struct, frozen=True):
    """Done; `result` is kept for a while."""

    result: msgspec.Struct | None


class Return(msgspec.Struct, frozen=True):
    """Back to the head of the queue as if it had never been started."""

    reason: str


class TryLater(msgspec.Struct, frozen=True):
    """Again after a delay. `uses_attempt` says which of the two counters goes up."""

    delay_seconds: float
    reason: str
    uses_attempt: bool


class Fail(msgspec.Struct, frozen=True):
    """A person must look. `reason` is one line, `details` what the dashboard shows."""

    reason: str
    details: str


Verdict = Finish | Return | TryLater | Fail


def judge(
    error: BaseException, *, failures: int, transients: int, settings: QueueSettings, chance: float
) -> Return | TryLater | Fail:
    """The verdict on an exception out of a handler; `chance` uniform in [0, 1) for the jitter."""
    if isinstance(error, GiveBack):
        return Return(str(error) or "given back by its handler")
    reason = one_line(error)
    if isinstance(error, _FINAL):
        return Fail(reason, reason)
    if isinstance(error, TransientError):
        return TryLater(_delay(transients, settings, chance), reason, uses_attempt=False)
    details = "".join(traceback.format_exception(error))
    return _after_attempt(reason, details, failures, settings, chance)


def judge_hung(seconds: float, *, failures: int, settings: QueueSettings, chance: float) -> TryLater | Fail:
    """The verdict on a job that was still running `seconds` after its start, past its deadline."""
    reason = f"no end after {seconds:.0f} s; its process was restarted"
    return _after_attempt(reason, reason, failures, settings, chance)


def one_line(error: BaseException) -> str:
    """`DataError: row 7 is empty`: the kind and the first line of the message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:_LINE_LENGTH]


def _after_attempt(
    reason: str, details: str, failures: int, settings: QueueSettings, chance: float
) -> TryLater | Fail:
    used = failures + 1
    if used < settings.job_attempts:
        return TryLater(_delay(failures, settings, chance), reason, uses_attempt=True)
    note = f"failed in all of {used} attempts" if used > 1 else "failed in its only attempt"
    return Fail(f"{reason} ({note})"[:_LINE_LENGTH], f"{details.rstrip()}\n{note}")


def _delay(failures: int, settings: QueueSettings, chance: float) -> float:
    return backoff_seconds(
        failures,
        base_seconds=settings.retry_base_seconds,
        max_seconds=settings.retry_max_seconds,
        chance=chance,
    )
