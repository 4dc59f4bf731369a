"""Whether two computations of the same states agree, and how far apart rounding alone may put them.

Neighbouring layers are alike (cosine 0.94 to 0.98), so an off-by-one shows only against a tight limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

#: A shorter sample is compared only where there is no other: rounding alone may turn the state of an odd token far
#: (cosine 0.80 for a special token in bfloat16, 1.000000 in float32), and must not decide on a batch or a run.
FIT_TOKENS = 16

_TINY = 1e-30


@dataclass(frozen=True)
class Tolerance:
    """What still counts as the same state."""

    #: Smallest cosine, of the mean (or median) token.
    cosine: float
    #: Largest |a - b| / |b|, of the mean (or median) token.
    error: float
    #: With experts a rounding difference may route a token elsewhere: such tokens are outvoted, not averaged in.
    median: bool = False


#: dtype -> (cosine, error). Measured on a 30-layer model in bfloat16, padded against alone: cosine 0.9996 to
#: 0.99998, error 0.006 to 0.025, growing with depth. The neighbouring tap: cosine 0.82 to 0.97, error 0.24 and more.
#: The error is taken token by token, because one outlier token outweighs all others in a norm over the sample.
_TOLERANCES = {"float32": (0.9999, 1e-3), "float16": (0.999, 2e-2), "bfloat16": (0.995, 8e-2)}


@dataclass(frozen=True)
class Agreement:
    """How alike two [n, K, H] are, per state; n tokens, token by token."""

    cosines: tuple[float, ...]
    errors: tuple[float, ...]

    def worst(self, tolerance: Tolerance) -> int | None:
        """The place of the state that differs most beyond the tolerance; None if all agree."""
        wrong = [place for place in range(len(self.cosines)) if not self._agrees(place, tolerance)]
        return max(wrong, key=lambda place: _as_number(self.errors[place]), default=None)

    def _agrees(self, place: int, tolerance: Tolerance) -> bool:
        # Written so that NaN does not agree.
        return self.cosines[place] >= tolerance.cosine and self.errors[place] <= tolerance.error


def tolerance_for(dtypes: Sequence[str], *, median: bool) -> Tolerance:
    """The tolerance of the coarsest of the dtypes that the states went through."""
    cosine = min(_TOLERANCES[dtype][0] for dtype in dtypes)
    error = max(_TOLERANCES[dtype][1] for dtype in dtypes)
    return Tolerance(cosine, error, median)


def compare(ours: Floats, reference: Floats, *, median: bool) -> Agreement:
    """Agreement of float32 [n, K, H] with a reference of the same shape; sums in float64."""
    assert ours.shape == reference.shape, (ours.shape, reference.shape)
    # Values that are not finite give NaN, which agrees with nothing.
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.sqrt(_dot(ours, ours)), np.sqrt(_dot(reference, reference))
        cosines = _dot(ours, reference) / np.maximum(norms[0] * norms[1], _TINY)
        differences = ours - reference
        errors = np.sqrt(_dot(differences, differences)) / np.maximum(norms[1], _TINY)
    # Two states of zeros (the embedding of a padding token may be one) are the same state.
    cosines[(norms[0] == 0) & (norms[1] == 0)] = 1.0
    middle = np.median if median else np.mean
    return Agreement(_floats(middle(cosines, axis=0)), _floats(middle(errors, axis=0)))


def _dot(left: Floats, right: Floats) -> npt.NDArray[np.float64]:
    """float64 [n, K] over the last dimension. Without copies of its operands: it runs for every batch."""
    products: npt.NDArray[np.float64] = np.einsum("nkh,nkh->nk", left, right, dtype=np.float64)
    return products


def _floats(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _as_number(value: float) -> float:
    return float("inf") if np.isnan(value) else value
