"""Each guard fires on the fault it is there for, says what differs, and lets healthy batches pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gpu_worker.agreement import Agreement, Tolerance
from gpu_worker.guards import BatchGuard, GuardError
from gpu_worker.tokens import TokenBatch

LENGTHS = (60, 50, 40)
TAPS = (1, 3)
HIDDEN = 8


def _batch() -> TokenBatch:
    tokens = sum(LENGTHS)
    return TokenBatch(
        batch_id=7,
        source_rows=np.array([11, 12, 13]),
        input_ids=np.arange(tokens, dtype=np.int32),
        loss_mask=np.ones(tokens, np.uint8),
        offsets=np.array([0, 60, 110, 150]),
        micro_batches=np.array([0, 2, 3]),
    )


@dataclass
class Chunks:
    """A batch as it would come from the device, healthy until a test changes it."""

    norms: Any = field(default_factory=lambda: np.full((150, 2), 5.0, np.float32))
    nonzero: Any = field(default_factory=lambda: np.array([150 * HIDDEN, 150 * HIDDEN]))
    seen: Any = field(default_factory=lambda: np.arange(150))

    def check(
        self, taps: tuple[int, ...] = TAPS, baseline: Any = None, final_state: str = "none"
    ) -> dict[str, str]:
        guard = BatchGuard(_batch(), taps, final_state, HIDDEN, baseline)
        half = self.nonzero * 110 // 150
        guard.chunk(self.norms[:110], half, self.seen[:110])
        guard.chunk(self.norms[110:], self.nonzero - half, self.seen[110:])
        return guard.finish()


def test_healthy_batch_passes_and_leaves_statistics() -> None:
    chunks = Chunks()
    chunks.norms[:, 1] = 9.0
    # The outlier that every first token is must not show.
    chunks.norms[[0, 60, 110], 1] = 22400.0
    chunks.nonzero[0] -= 12
    assert chunks.check(baseline=np.array([5.0, 9.0])) == {
        "norm_mean": "5,9",
        "norm_median": "5,9",
        "norm_min": "5,9",
        "norm_max": "5,9",
        "zero_fraction": "0.01,0",
    }


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(value: float) -> None:
    chunks = Chunks()
    chunks.norms[115:117, 1] = value
    with pytest.raises(
        GuardError, match="batch 7: tap 3 is not finite in 2 of 40 rows, first in source row 13"
    ):
        chunks.check()


def test_rows_of_zeros() -> None:
    chunks = Chunks()
    chunks.norms[61, 0] = 0.0
    with pytest.raises(GuardError, match="tap 1 is all zeros in 1 of 110 rows, first in source row 12"):
        chunks.check()


def test_embedding_of_a_padding_token_may_be_zero() -> None:
    chunks = Chunks()
    chunks.norms[61, 0] = 0.0
    chunks.check(taps=(0, 3))
    chunks.norms[61, 1] = 0.0
    with pytest.raises(GuardError, match="tap 3 is all zeros"):
        chunks.check(taps=(0, 3))


def test_mostly_zero_values() -> None:
    chunks = Chunks()
    chunks.nonzero[1] = 150 * HIDDEN * 3 // 10
    with pytest.raises(GuardError, match=r"70% of the values of tap 3 are zero \(at most 50%\)"):
        chunks.check()


def test_rows_of_other_tokens() -> None:
    chunks = Chunks()
    chunks.seen[[108, 109]] = chunks.seen[[109, 108]]
    with pytest.raises(GuardError, match="2 rows of other token ids than planned, first in source row 12"):
        chunks.check()


def test_missing_rows() -> None:
    guard = BatchGuard(_batch(), TAPS, "none", HIDDEN, None)
    chunks = Chunks()
    guard.chunk(chunks.norms[:110], chunks.nonzero * 110 // 150, chunks.seen[:110])
    with pytest.raises(GuardError, match="110 rows computed for 150 tokens"):
        guard.finish()


def test_surplus_rows() -> None:
    guard = BatchGuard(_batch(), TAPS, "none", HIDDEN, None)
    with pytest.raises(GuardError, match="151 rows computed for 150 tokens"):
        guard.chunk(np.ones((151, 2), np.float32), np.array([1, 1]), np.arange(151))


def test_norms_far_from_the_self_test() -> None:
    chunks = Chunks()
    with pytest.raises(GuardError, match="median norm of tap 3 is 5, and the self-test saw 70"):
        chunks.check(baseline=np.array([5.0, 70.0]))
    chunks.check(baseline=np.array([20.0, 2.0]))


def test_norms_of_a_few_tokens_say_nothing() -> None:
    batch = TokenBatch(
        batch_id=0,
        source_rows=np.array([0]),
        input_ids=np.arange(5, dtype=np.int32),
        loss_mask=np.ones(5, np.uint8),
        offsets=np.array([0, 5]),
        micro_batches=np.array([0, 1]),
    )
    guard = BatchGuard(batch, TAPS, "none", HIDDEN, np.array([5.0, 500.0]))
    guard.chunk(np.full((5, 2), 5.0, np.float32), np.array([40, 40]), np.arange(5))
    assert guard.finish()["norm_median"] == "5,5"


def test_canary_that_differs() -> None:
    guard = BatchGuard(_batch(), TAPS, "pre", HIDDEN, None)
    tolerance = Tolerance(0.995, 0.08)
    guard.canary(12, Agreement((0.9999, 0.999, 0.9999), (0.01, 0.02, 0.01)), tolerance)
    with pytest.raises(
        GuardError, match=r"the final state of the sample in source row 12 .* cosine 0\.97000"
    ):
        guard.canary(12, Agreement((0.9999, 0.99, 0.97), (0.01, 0.1, 0.24)), tolerance)


def test_canary_of_nan_does_not_agree() -> None:
    guard = BatchGuard(_batch(), TAPS, "none", HIDDEN, None)
    nan = float("nan")
    with pytest.raises(GuardError, match="tap 1"):
        guard.canary(12, Agreement((nan, 1.0), (nan, 0.0)), Tolerance(0.995, 0.08))
