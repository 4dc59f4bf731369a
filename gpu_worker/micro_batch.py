"""What one forward pass sees: neighbouring samples of a batch as one padded tensor, and how they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.agreement import FIT_TOKENS
from gpu_worker.tokens import TokenBatch

#: The canary is computed up to this share of the batch's tokens, and within these bounds: what follows a token
#: does not change its states, so the start of a sample proves as much and costs less. Fewer than the minimum
#: would cost no less on a GPU, and say too little where experts are routed to.
CANARY_SHARE, CANARY_MIN_TOKENS, CANARY_MAX_TOKENS = 0.002, 32, 512


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass: neighbouring samples of a batch, padded on the right."""

    #: int64 [B, L]
    ids: torch.Tensor
    #: int64 [n], places of the real tokens in the flattened ids; None if there is no padding.
    real: torch.Tensor | None
    tokens: int


def pack(batch: TokenBatch, first: int, last: int, limit: int | None = None) -> MicroBatch:
    """Samples `[first, last)` as one padded tensor, each cut after `limit` tokens."""
    lengths = batch.lengths[first:last]
    ids = batch.input_ids[batch.offsets[first] : batch.offsets[last]]
    if limit is not None and lengths.max() > limit:
        assert last - first == 1, "only a sample alone is cut"
        ids, lengths = ids[:limit], np.array([limit])
    longest = int(lengths.max())
    is_real = np.arange(longest) < lengths[:, np.newaxis]
    padded = np.zeros(is_real.shape, np.int64)
    padded[is_real] = ids
    real = None if is_real.all() else torch.from_numpy(np.flatnonzero(is_real))
    return MicroBatch(torch.from_numpy(padded), real, len(ids))


def split(
    lengths: npt.NDArray[np.int64], bounds: Sequence[tuple[int, int]], limit: int | None
) -> list[tuple[int, int]]:
    """The same samples in the same order, in pieces of `limit` padded tokens at most, or of one sample.

    `lengths` are int64 [S], `bounds` are `[first, last)` of samples; without a limit they stay as they are.
    """
    pieces: list[tuple[int, int]] = []
    for first, last in bounds:
        if limit is None or (last - first) * int(lengths[first:last].max()) <= limit:
            pieces.append((first, last))
            continue
        longest = 0
        for sample in range(first, last):
            longest = max(longest, int(lengths[sample]))
            if sample > first and (sample - first + 1) * longest > limit:
                pieces.append((first, sample))
                first, longest = sample, int(lengths[sample])
        pieces.append((first, last))
    return pieces


def canary_sample(batch: TokenBatch) -> int:
    """Which sample is computed a second time: the most padded one of `FIT_TOKENS` or more of a micro-batch that
    the batch's number picks.
    """
    bounds, lengths = batch.micro_batches, batch.lengths
    shared = np.flatnonzero(np.diff(bounds) > 1)
    if not len(shared):
        return batch.batch_id % batch.samples
    # Longest first within a micro-batch: the second sample tells whether one fits behind the first.
    fitting = shared[lengths[bounds[shared] + 1] >= FIT_TOKENS]
    among = fitting if len(fitting) else shared
    picked = among[batch.batch_id % len(among)]
    first, last = int(bounds[picked]), int(bounds[picked + 1])
    fit = np.flatnonzero(lengths[first:last] >= FIT_TOKENS)
    return first + int(fit[-1]) if len(fitting) else last - 1


def canary_tokens(batch: TokenBatch) -> int:
    """How much of the canary is computed at most."""
    return min(CANARY_MAX_TOKENS, max(CANARY_MIN_TOKENS, int(batch.tokens * CANARY_SHARE)))
