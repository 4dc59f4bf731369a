"""Which samples make up each training batch of an epoch: pure, and the same wherever it is computed.

Batch files are taken in random order, some at a time. Their samples are sorted by length, cut into training
batches of about equal cost, and those are shuffled: little padding, and what was read of a file is used while
it is at hand. Samples were dealt into files at random when the run was planned, so a few files are a fair mix.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Samples are sorted as if each were up to this much longer or shorter, so that neighbours differ between epochs.
_JITTER = 0.05


def plan_epoch(
    lengths: npt.NDArray[np.int64],
    files: npt.NDArray[np.int32],
    *,
    tokens: int,
    mixed_files: int,
    seed: int,
    epoch: int,
) -> list[npt.NDArray[np.int64]]:
    """The epoch's training batches, each the positions of its samples; every sample is in exactly one.

    `lengths` and `files`, both [samples], are the tokens of each sample and the number of its batch file.
    A training batch has at most `tokens` tokens, padding included; a sample that is longer is one alone.
    `mixed_files` files are mixed at a time.
    """
    random = np.random.default_rng((seed, epoch))
    by_file = np.split(
        np.argsort(files, kind="stable"), np.cumsum(np.unique(files, return_counts=True)[1])[:-1]
    )
    order = random.permutation(len(by_file)).tolist()
    batches: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(order), mixed_files):
        positions = np.concatenate([by_file[file] for file in order[start : start + mixed_files]])
        key = lengths[positions] * random.uniform(1 - _JITTER, 1 + _JITTER, len(positions))
        cut = _cut(positions[np.argsort(key, kind="stable")], lengths, tokens)
        batches += [cut[place] for place in random.permutation(len(cut))]
    return batches


def _cut(
    positions: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], tokens: int
) -> list[npt.NDArray[np.int64]]:
    """Consecutive pieces, as long as the number of samples times the longest of them allows."""
    pieces, first, longest = [], 0, 0
    for place, length in enumerate(lengths[positions].tolist()):
        longest = max(longest, length)
        if place > first and (place - first + 1) * longest > tokens:
            pieces.append(positions[first:place])
            first, longest = place, length
    if first < len(positions):
        pieces.append(positions[first:])
    return pieces
