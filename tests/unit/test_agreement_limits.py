"""The limits of agreement: rounding passes, a neighbouring layer does not."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_worker.agreement import Tolerance, compare, tolerance_for


def _states(tokens: int = 50, states: int = 2) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal((tokens, states, 64)).astype(np.float32)


def test_equal_states_agree_exactly() -> None:
    states = _states()
    agreement = compare(states, states.copy(), median=False)
    assert agreement.cosines == pytest.approx((1.0, 1.0))
    assert agreement.errors == (0.0, 0.0)


def test_two_zero_states_are_the_same() -> None:
    states = _states()
    states[3, 0] = 0.0
    agreement = compare(states, states.copy(), median=False)
    assert agreement.worst(tolerance_for(["float32"], median=False)) is None


def test_neighbouring_layer_is_noticed_where_a_loose_cosine_would_not() -> None:
    reference = _states()
    # Cosine 0.97, as two layers in the middle of a model have.
    other = reference + 0.25 * np.random.default_rng(1).standard_normal(reference.shape).astype(np.float32)
    agreement = compare(other, reference, median=False)
    assert min(agreement.cosines) > 0.95
    assert agreement.worst(tolerance_for(["bfloat16"], median=False)) is not None


def test_wrong_scale_is_noticed_though_the_cosine_is_one() -> None:
    states = _states()
    agreement = compare(states * 1.5, states, median=False)
    assert min(agreement.cosines) > 0.9999
    assert agreement.worst(tolerance_for(["bfloat16"], median=False)) is not None


def test_one_outlier_token_does_not_hide_the_others() -> None:
    reference = _states(states=1)
    wrong = np.random.default_rng(2).standard_normal(reference.shape).astype(np.float32)
    wrong[0] = reference[0] = 1e4
    assert compare(wrong, reference, median=False).worst(tolerance_for(["bfloat16"], median=False)) == 0


def test_median_outvotes_a_few_routed_elsewhere() -> None:
    reference = _states(states=1)
    ours = reference.copy()
    ours[:5] = -ours[:5]
    assert compare(ours, reference, median=False).worst(Tolerance(0.995, 0.08)) == 0
    assert compare(ours, reference, median=True).worst(Tolerance(0.995, 0.08, median=True)) is None


def test_coarsest_dtype_decides() -> None:
    assert tolerance_for(["float32", "bfloat16"], median=False) == tolerance_for(["bfloat16"], median=False)
    assert tolerance_for(["float32"], median=True).median
