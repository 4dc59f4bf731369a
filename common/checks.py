"""What was checked of a run's batches, gathered: counts, and the worst of each kind with its batch. A fixed number of fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from common.messages import UploadFile

#: What a batch or a sample can fail.
Check = Literal["ids", "rows", "finite", "zeros", "drift", "canary", "input", "memory", "other"]
CHECKS: tuple[Check, ...] = get_args(Check)

#: States whose extremes are kept; a run with more taps shows the first ones.
_MOST_STATES = 64
#: Field -> what a batch's report calls it, and which of two is kept: `<` the smaller one, `>` the larger one.
_EXTREMES = {
    "canary_cosine": ("canary_cosine", "<"),
    "canary_error": ("canary_error", ">"),
    "selftest_cosine": ("selftest_cosine", "<"),
    "selftest_error": ("selftest_error", ">"),
    "norm_low": ("norm_min", "<"),
    "norm_high": ("norm_max", ">"),
    "zero_share": ("zero_fraction", ">"),
}
_FAILED = "failed "


class Extreme(msgspec.Struct, frozen=True):
    """The smallest or largest value so far, and the batch that it is of."""

    value: float
    batch: int


class StateRange(msgspec.Struct, frozen=True, kw_only=True):
    """One state (a tap, or the final one) over all batches; norms of tokens, the first of a sample left out."""

    #: `tap 15` or `the final state`.
    state: str
    norm_low: Extreme
    norm_high: Extreme
    #: Largest share of values of a batch that are zero, 0 to 1.
    zero_share: Extreme


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked of the batches that are stored."""

    #: Batches of which every number was checked.
    batches: int = 0
    #: Batches of which a sample was computed a second time, alone.
    canaries: int = 0
    #: How alike the two were, of the state and the batch where they were least alike.
    canary_cosine: Extreme | None = None
    canary_error: Extreme | None = None
    #: The same of the self-tests with which workers began.
    selftest_cosine: Extreme | None = None
    selftest_error: Extreme | None = None
    states: tuple[StateRange, ...] = ()
    #: Samples set aside, by what they failed.
    failed: dict[str, int] = {}


def state_names(taps: Sequence[int], final_state: str) -> list[str]:
    """What to call each state in a sentence."""
    return [f"tap {tap}" for tap in taps] + ([] if final_state == "none" else ["the final state"])


def check_entries(message: UploadFile) -> list[tuple[str, Any]]:
    """(field, amount) of what a batch adds, for `common.run_progress`; values that are no numbers are left out."""
    report, batch = message.report, message.batch.batch_id
    entries: list[tuple[str, Any]] = [
        (f"{_FAILED}{check}", samples)
        for check, samples in (report.failed_checks or {}).items()
        if check in CHECKS
    ]
    guards = report.guards or {}
    found = {field: _numbers(guards.get(name, "")) for field, (name, _) in _EXTREMES.items()}
    if found["norm_low"] or found["zero_share"]:
        entries.append(("batches", 1))
    if found["canary_cosine"]:
        entries.append(("canaries", 1))
    for field, values in found.items():
        if values:
            listed = ",".join(f"{value:.6g} {batch}" for value in values)
            entries.append((field, f"{_EXTREMES[field][1]}{listed}"))
    return entries


def parse_checks(raw: Mapping[str, str], names: Sequence[str] = ()) -> Checks:
    """From the hash that `check_entries` filled; `names` are those of the states, where they are known."""
    found = {field: _extremes(raw.get(field, "")) for field in _EXTREMES}
    states = zip(found["norm_low"], found["norm_high"], found["zero_share"], strict=False)
    first = {field: values[0] if values else None for field, values in found.items()}
    return Checks(
        batches=_count(raw.get("batches")),
        canaries=_count(raw.get("canaries")),
        canary_cosine=first["canary_cosine"],
        canary_error=first["canary_error"],
        selftest_cosine=first["selftest_cosine"],
        selftest_error=first["selftest_error"],
        states=tuple(
            StateRange(
                state=names[place] if place < len(names) else f"state {place + 1}",
                norm_low=low,
                norm_high=high,
                zero_share=zero,
            )
            for place, (low, high, zero) in enumerate(states)
        ),
        failed={check: samples for check in CHECKS if (samples := _count(raw.get(f"{_FAILED}{check}")))},
    )


def _numbers(text: str) -> list[float]:
    """Of `5.1,9`; none if one of them is no finite number: a message is not trusted."""
    try:
        values = [float(part) for part in text.split(",")[:_MOST_STATES]]
    except ValueError:
        return []
    return values if all(map(math.isfinite, values)) else []


def _extremes(text: str) -> list[Extreme]:
    """Of `5.1 3,9 7`; none if it is anything else."""
    found = []
    for part in text.split(",") if text else ():
        try:
            value, batch = part.split(" ")
            found.append(Extreme(float(value), int(batch)))
        except ValueError:
            return []
    return found


def _count(text: str | None) -> int:
    try:
        return int(float(text or 0))
    except (ValueError, OverflowError):
        return 0
