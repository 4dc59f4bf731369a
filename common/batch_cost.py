"""What a batch costs on a kind of device: sums over finished batches that only grow, and what is fitted to them.

The model is seconds = a · tokens + b · Σ length²: matrices cost by the token, attention by the pair of tokens.
"""

from __future__ import annotations

import math
import re

import msgspec

#: Units that keep the sums near 1: thousands of tokens, millions of squares.
_TOKENS, _SQUARES = 1e3, 1e6
#: What attention usually costs at most, as a share of the whole; b is believed to be beyond it only as far as the
#: batches say so more clearly than their noise.
_ATTENTION_SHARE = 0.3
#: Spread of a batch's cost before there are enough batches to see it, and the least that is believed.
_SPREAD_AT_FIRST, _SPREAD_AT_LEAST = 0.1, 0.01
#: The pull depends on the noise, which depends on the fit.
_ROUNDS = 3


class CostSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the finished batches of one kind of device: x thousand tokens, z million squares, y seconds."""

    device: str
    batches: int = 0
    x: float = 0.0
    z: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xz: float = 0.0
    zz: float = 0.0
    xy: float = 0.0
    zy: float = 0.0
    yy: float = 0.0


class Cost(msgspec.Struct, frozen=True):
    """Seconds of the device = a · thousand tokens + b · million squares."""

    a: float
    b: float
    #: Standard deviation of one batch's seconds over their mean.
    spread: float
    batches: int

    def seconds(self, tokens: float, squares: float) -> float:
        """What work of so many tokens and squared lengths costs."""
        return self.a * tokens / _TOKENS + self.b * squares / _SQUARES


def device_class(device: str, kind: str = "") -> str:
    """What devices share that are equally fast: their kind; `cuda` of `cuda:1` where no kind was said."""
    return kind or re.sub(r":\d+$", "", device)


def cost_terms(tokens: int, squares: int, seconds: float) -> dict[str, float]:
    """What one batch adds to the sums of its device, by field of `CostSums`."""
    x, z, y = tokens / _TOKENS, squares / _SQUARES, seconds
    return {
        "batches": 1,
        "x": x,
        "z": z,
        "y": y,
        "xx": x * x,
        "xz": x * z,
        "zz": z * z,
        "xy": x * y,
        "zy": z * y,
        "yy": y * y,
    }


def fit(sums: CostSums) -> Cost | None:
    """Least squares with a, b >= 0, b drawn towards 0 by the noise; None before the first batch."""
    if sums.batches < 1 or sums.y <= 0 or sums.xx <= 0:
        return None
    a, b = sums.xy / sums.xx, 0.0
    for _ in range(_ROUNDS):
        a, b = _solve(sums, _spread(sums, a, b))
    return Cost(a, b, _spread(sums, a, b), sums.batches)


def _spread(sums: CostSums, a: float, b: float) -> float:
    """Standard deviation of a batch's seconds around the model, over their mean."""
    wrong = (
        sums.yy - 2 * (a * sums.xy + b * sums.zy) + a * a * sums.xx + 2 * a * b * sums.xz + b * b * sums.zz
    )
    mean = sums.y / sums.batches
    # What is known beforehand weighs as much as three batches.
    variance = (max(0.0, wrong) / mean**2 + 3 * _SPREAD_AT_FIRST**2) / (sums.batches + 3)
    return max(_SPREAD_AT_LEAST, math.sqrt(variance))


def _solve(sums: CostSums, spread: float) -> tuple[float, float]:
    """(a, b) by ridge regression: b is drawn towards 0 by as much as the batches are noisy."""
    by_token = sums.xy / sums.xx
    if sums.zz <= 0:
        return by_token, 0.0
    pulled = sums.zz + (spread / _ATTENTION_SHARE * sums.z / sums.batches) ** 2
    determinant = sums.xx * pulled - sums.xz**2
    if determinant <= 1e-12 * sums.xx * pulled:
        return by_token, 0.0
    a = (sums.xy * pulled - sums.zy * sums.xz) / determinant
    b = (sums.zy * sums.xx - sums.xy * sums.xz) / determinant
    if b < 0:
        return by_token, 0.0
    return (a, b) if a >= 0 else (0.0, sums.zy / sums.zz)
