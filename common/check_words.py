"""What was checked of a run, as sentences that people read: in the monitor, and in the report at the end. Pure."""

from __future__ import annotations

import msgspec

from common.checks import Check, Checks, Extreme, StateRange
from hiddenfeed.words import count_text

#: What a sample that was set aside had.
_FAILED: dict[Check, str] = {
    "ids": "rows of other token ids than planned",
    "rows": "rows missing or too many",
    "finite": "values that are not finite",
    "zeros": "states of zeros",
    "drift": "norms far from what the self-test saw",
    "canary": "other states when computed alone",
    "input": "tokens that the model cannot take",
    "memory": "more tokens than the device's memory holds",
    "other": "another reason",
}


#: Of a table of `state_row`s: its title, and the heads of its columns.
STATES_TITLE = "norms of tokens, without the first of each sample, and zeros: the most extreme so far"
STATE_HEAD = ("state", "smallest norm", "largest norm", "most zeros")


class Finding(msgspec.Struct, frozen=True):
    """One sentence on what was checked."""

    #: `good`, `warn`, `bad` or `unknown`.
    verdict: str
    text: str


def findings(checks: Checks, halvings: int) -> tuple[Finding, ...]:
    """A sentence for each kind of check, in the order in which they are made; what went wrong comes first.

    `halvings` are forward passes that ran out of memory and went on in halves.
    """
    found = [
        Finding("bad", f"{count_text(samples, 'sample')} set aside: {_FAILED[check]}")
        for check in _FAILED
        if (samples := checks.failed.get(check, 0))
    ]
    if halvings:
        passes = f"{count_text(halvings, 'forward pass', 'forward passes')} ran out of memory"
        found.append(Finding("warn", f"{passes} and went on in halves; nothing was lost"))
    if checks.batches:
        found.append(Finding("good", _numbers(checks)))
    if checks.canaries and checks.canary_cosine and checks.canary_error:
        found.append(Finding("good", _canaries(checks, checks.canary_cosine, checks.canary_error)))
    if checks.selftest_cosine and checks.selftest_error:
        text = "before its first batch every model was held against the whole one, sample by sample: "
        text += f"cosine {checks.selftest_cosine.value:.5f} at least, relative error {checks.selftest_error.value:.2g} at most"
        found.append(Finding("good", text))
    return tuple(found) or (Finding("unknown", "no batch has been checked yet"),)


def state_row(state: StateRange) -> tuple[str, ...]:
    """Cells under `STATE_HEAD`, such as `649 in batch 12`."""
    return (
        state.state,
        _extreme(state.norm_low, ".4g"),
        _extreme(state.norm_high, ".4g"),
        _extreme(state.zero_share, ".2%"),
    )


def _extreme(extreme: Extreme, form: str) -> str:
    return f"{extreme.value:{form}} in batch {extreme.batch:,}"


def _numbers(checks: Checks) -> str:
    batches = count_text(checks.batches, "batch", "batches")
    text = (
        f"every number of {batches} was checked before it was stored: finite, not zero, of the planned tokens"
    )
    if checks.states:
        worst = max((state.zero_share for state in checks.states), key=lambda extreme: extreme.value)
        text += f"; {worst.value:.2%} of a tap's values were zero at most"
    return text


def _canaries(checks: Checks, cosine: Extreme, error: Extreme) -> str:
    number = count_text(checks.canaries, "batch", "batches")
    return (
        f"a sample of each of {number} was computed again alone and gave the same: cosine {cosine.value:.5f} at least "
        f"(batch {cosine.batch:,}), relative error {error.value:.2g} at most (batch {error.batch:,})"
    )
