"""What must be true of every batch before it is published; pure functions of small arrays.

The arrays come from the device with the states: a norm per token and state, counts of values that
are not zero, and the ids the model was given. A broken rule raises `GuardError`, whose sentence
says what differs; the batch is then quarantined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from common.checks import Check, state_names
from gpu_worker.agreement import Agreement, Tolerance
from gpu_worker.salvage import CheckError, SampleError
from gpu_worker.tokens import TokenBatch
from hiddenfeed.words import count_text

#: No decoder leaves this share of a residual stream at zero.
MAX_ZERO_FRACTION = 0.5
#: How far a batch's median norm may be from what the self-test saw. A norm applied by mistake is a factor of 14.
MAX_NORM_DRIFT = 8.0
#: Below this many tokens a median says nothing.
MIN_DRIFT_TOKENS = 64


class GuardError(CheckError):
    """The states are not what the model computes; they must not be stored."""


class SampleGuardError(GuardError, SampleError):
    """The model itself gives no usable states for a sample."""


class BatchGuard:
    """Checks one batch, chunk by chunk in order, and gathers its statistics."""

    def __init__(
        self,
        batch: TokenBatch,
        taps: Sequence[int],
        final_state: str,
        hidden_size: int,
        baseline: npt.NDArray[np.float64] | None,
        selftest: Agreement | None = None,
    ) -> None:
        """`baseline` is the median norm of each state [K'] as the self-test saw it, `selftest` what it found."""
        self._batch = batch
        self._names = state_names(taps, final_state)
        self._has_zero_tap = taps[0] == 0
        self._hidden_size = hidden_size
        self._baseline = baseline
        self._selftest = selftest
        self._norms = np.empty((batch.tokens, len(self._names)), np.float32)
        self._nonzero = np.zeros(len(self._names), np.int64)
        self._rows = 0
        self._canary: tuple[int, Agreement] | None = None

    def chunk(
        self, norms: npt.NDArray[np.float32], nonzero: npt.NDArray[np.int64], seen_ids: npt.NDArray[np.int64]
    ) -> None:
        """The next n rows: norms float32 [n, K'], nonzero int64 [K'], seen ids int64 [n]."""
        first, last = self._rows, self._rows + len(norms)
        if last > self._batch.tokens:
            raise GuardError(
                f"{self._where}: {count_text(last, 'row')} computed for {count_text(self._batch.tokens, 'token')}",
                "rows",
            )
        self._check_ids(first, seen_ids)
        self._check_norms(first, norms)
        self._check_zeros(len(norms), nonzero)
        self._norms[first:last] = norms
        self._nonzero += nonzero
        self._rows = last

    def canary(self, source_row: int, agreement: Agreement, tolerance: Tolerance) -> None:
        """A sample as it stands in the file against the same sample computed alone."""
        worst = agreement.worst(tolerance)
        if worst is not None:
            raise GuardError(
                f"{self._where}: {self._names[worst]} of the sample in source row {source_row} is not what the model "
                f"gives for it alone: cosine {agreement.cosines[worst]:.5f} (at least {tolerance.cosine}), "
                f"relative error {agreement.errors[worst]:.2g} (at most {tolerance.error})",
                "canary",
            )
        self._canary = (source_row, agreement)

    def finish(self) -> dict[str, str]:
        """The statistics to store with the batch; raises GuardError if rows are missing or norms drifted."""
        if self._rows != self._batch.tokens:
            raise GuardError(
                f"{self._where}: {count_text(self._rows, 'row')} computed for {count_text(self._batch.tokens, 'token')}",
                "rows",
            )
        statistics = {
            "zero_fraction": _listed(1 - self._nonzero / (self._rows * self._hidden_size), "{:.2g}")
        }
        # The first token of a sample is an outlier by two orders of magnitude in most models.
        inner = np.ones(self._rows, bool)
        inner[self._batch.offsets[:-1]] = False
        norms = self._norms[inner]
        if len(norms):
            medians = np.median(norms, axis=0)
            if self._baseline is not None and len(norms) >= MIN_DRIFT_TOKENS:
                self._check_drift(medians, self._baseline)
            statistics["norm_mean"] = _listed(norms.mean(axis=0, dtype=np.float64), "{:.4g}")
            statistics["norm_median"] = _listed(medians, "{:.4g}")
            statistics["norm_min"] = _listed(norms.min(axis=0), "{:.4g}")
            statistics["norm_max"] = _listed(norms.max(axis=0), "{:.4g}")
        if self._canary is not None:
            source_row, agreement = self._canary
            statistics["canary_source_row"] = str(source_row)
            statistics |= _worst("canary", agreement)
        return statistics | ({} if self._selftest is None else _worst("selftest", self._selftest))

    @property
    def _where(self) -> str:
        return f"batch {self._batch.batch_id}"

    def _source_row(self, token: int) -> int:
        return int(self._batch.source_rows[self._batch.sample_of_token(token)])

    def _check_ids(self, first: int, seen: npt.NDArray[np.int64]) -> None:
        expected = self._batch.input_ids[first : first + len(seen)]
        wrong = np.flatnonzero(seen != expected)
        if len(wrong):
            row = first + int(wrong[0])
            raise GuardError(
                f"{self._where}: {count_text(len(wrong), 'row')} of other token ids than planned, "
                f"first in source row {self._source_row(row)}",
                "ids",
            )

    def _check_norms(self, first: int, norms: npt.NDArray[np.float32]) -> None:
        checks: tuple[tuple[Check, Any, str], ...] = (
            ("finite", ~np.isfinite(norms), "not finite"),
            ("zeros", norms == 0, "all zeros"),
        )
        for check, wrong, what in checks:
            if check == "zeros" and self._has_zero_tap:
                # A padding token's embedding may be zero by design; behind the first block nothing is.
                wrong[:, 0] = False
            if wrong.any():
                row, state = (int(place[0]) for place in np.nonzero(wrong))
                raise SampleGuardError(
                    f"{self._where}: {self._names[state]} is {what} in {int(wrong[:, state].sum())} of {count_text(len(norms), 'row')}, "
                    f"first in source row {self._source_row(first + row)}",
                    check,
                )

    def _check_zeros(self, rows: int, nonzero: npt.NDArray[np.int64]) -> None:
        zero = 1 - nonzero / (rows * self._hidden_size)
        state = int(zero.argmax())
        if zero[state] > MAX_ZERO_FRACTION:
            raise SampleGuardError(
                f"{self._where}: {zero[state]:.0%} of the values of {self._names[state]} are zero "
                f"(at most {MAX_ZERO_FRACTION:.0%})",
                "zeros",
            )

    def _check_drift(self, medians: npt.NDArray[np.float32], baseline: npt.NDArray[np.float64]) -> None:
        ratio = medians / baseline
        drift = np.maximum(ratio, 1 / ratio)
        state = int(drift.argmax())
        if drift[state] > MAX_NORM_DRIFT:
            raise GuardError(
                f"{self._where}: the median norm of {self._names[state]} is {medians[state]:.4g}, and the self-test saw "
                f"{baseline[state]:.4g}",
                "drift",
            )


def _worst(name: str, agreement: Agreement) -> dict[str, str]:
    """Of the state that agrees least."""
    return {
        f"{name}_cosine": f"{min(agreement.cosines):.6f}",
        f"{name}_error": f"{max(agreement.errors):.2g}",
    }


def _listed(values: npt.NDArray[np.floating], form: str) -> str:
    return ",".join(form.format(float(value)) for value in values)
