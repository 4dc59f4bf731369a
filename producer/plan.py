"""The plan: which samples are computed together, and which of those groups share a file. Pure.

1. Samples are sorted by length over the whole dataset, longest first, and cut into *micro-batches*
   whose padded size (samples × longest) stays within a budget. Neighbours in the sort are about
   equally long, so next to nothing is padding. The budget is what the settings allow, less where a
   file would hold too few micro-batches to be like the others, or a small dataset would be padded
   too much. A large model, whose files hold few tokens, is kept busy by a few thousand as well: what
   it computes for each outweighs reading its weights once from some hundred tokens on.
2. Whole micro-batches are dealt into *batches*, one file each: always the costliest one left to the
   batch that has the least, ties broken by the seed. So batches cost the same to within one
   micro-batch, every file mixes lengths, and the first batches tell how long the rest will take.
3. Batch 0 begins with the longest micro-batch of all: memory trouble shows in the first minute.

Equal lengths, limits and seed give the equal plan, whatever machine or version of numpy computes it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

#: Fewer files than this leave workers idle at the end and cost much when one is lost, so a small run
#: gets smaller files than asked for, as long as it has the micro-batches.
MIN_BATCHES = 16

#: Micro-batches that a file holds at least, on average: so many make files alike in size, cost and mix.
MICRO_BATCHES_PER_FILE = 4
#: A micro-batch is not made smaller than this for the sake of the files.
MIN_MICRO_TOKENS = 1024
#: More padding than this and micro-batches are made smaller.
MAX_WASTE = 0.005


@dataclass(frozen=True)
class PlanLimits:
    """What the plan depends on besides the lengths."""

    #: Padded tokens of a micro-batch at most; a longer sample is a micro-batch by itself. Files that hold
    #: few tokens, and small datasets, get smaller ones.
    micro_batch_tokens: int
    #: Tokens of a file, about.
    batch_tokens: int
    #: Of the model; says from which length on attention outweighs the rest.
    hidden_size: int
    seed: int


@dataclass(frozen=True)
class Batch:
    """One batch of a plan."""

    #: int64[S]: sample numbers in file order.
    samples: Integers
    #: int64[S]: micro-batch of each sample, 0, 1, … without gaps.
    micro_batches: Integers
    tokens: int
    longest: int
    #: Sum of squared lengths: what attention costs.
    squares: int


@dataclass(frozen=True)
class Plan:
    """All batches of a run, as three arrays."""

    #: int64[N]: sample numbers, micro-batch after micro-batch, batch after batch; longest first within each micro-batch.
    order: Integers
    #: int64[M + 1]: where each micro-batch begins in `order`.
    micro_starts: Integers
    #: int64[B + 1]: first micro-batch of each batch.
    batch_starts: Integers
    #: int64[N]: tokens of each sample, by sample number.
    lengths: Integers

    @property
    def batches(self) -> int:
        """Number of batches."""
        return len(self.batch_starts) - 1

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches."""
        return len(self.micro_starts) - 1

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return int(self.lengths.sum())

    @property
    def padded_tokens(self) -> int:
        """Tokens that the forward passes see, padding included."""
        return int((np.diff(self.micro_starts) * self.lengths[self.order[self.micro_starts[:-1]]]).sum())

    @property
    def waste(self) -> float:
        """Share of the padded tokens that is padding, 0 to 1."""
        return 1 - self.tokens / self.padded_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return int(self.lengths.max())

    def batch(self, batch_id: int) -> Batch:
        """One batch; `batch_id` is below `batches`."""
        first, last = self.batch_starts[batch_id], self.batch_starts[batch_id + 1]
        samples = self.order[self.micro_starts[first] : self.micro_starts[last]]
        sizes = np.diff(self.micro_starts[first : last + 1])
        lengths = self.lengths[samples]
        micro_batches = np.repeat(np.arange(len(sizes)), sizes)
        return Batch(
            samples, micro_batches, int(lengths.sum()), int(lengths.max()), int((lengths * lengths).sum())
        )


def make_plan(lengths: Integers, limits: PlanLimits) -> Plan:
    """The plan of N >= 1 samples, `lengths` int64[N] in tokens, each >= 1."""
    # Stable, so that samples of equal length stay in the order of the input.
    by_length = np.argsort(-lengths, kind="stable")
    descending = lengths[by_length]
    starts = _cut(descending, micro_batch_budget(descending, limits))
    longest = descending[starts[:-1]]
    padded = np.diff(starts) * longest
    batches = batch_count(int(lengths.sum()), len(longest), limits.batch_tokens)
    dealt = _deal(_costs(padded, longest, limits.hidden_size), batches, limits.seed)
    # Longest first within a batch; micro-batches are numbered in descending length.
    hands = [sorted(hand) for hand in dealt]
    micros = np.array([micro for hand in hands for micro in hand], dtype=np.int64)
    micro_starts = _starts_of(np.diff(starts)[micros])
    places = np.arange(len(lengths)) + np.repeat(starts[micros] - micro_starts[:-1], np.diff(micro_starts))
    return Plan(
        order=by_length[places],
        micro_starts=micro_starts,
        batch_starts=_starts_of(np.array([len(hand) for hand in hands], dtype=np.int64)),
        lengths=lengths,
    )


def batch_tokens(target_file_bytes: int, per_token: int) -> int:
    """Tokens of a file of about `target_file_bytes`."""
    return max(1, target_file_bytes // per_token)


def batch_count(tokens: int, micro_batches: int, batch_tokens: int) -> int:
    """How many files: by size, but at least MIN_BATCHES, and never more than there are micro-batches."""
    by_size = -(-tokens // max(1, batch_tokens))
    return min(max(by_size, MIN_BATCHES), micro_batches)


def micro_batch_budget(descending: Integers, limits: PlanLimits) -> int:
    """Padded tokens of a micro-batch at most, for lengths sorted longest first."""
    tokens = int(descending.sum())
    files = max(MIN_BATCHES, -(-tokens // limits.batch_tokens))
    budget = min(limits.micro_batch_tokens, max(MIN_MICRO_TOKENS, tokens // files // MICRO_BATCHES_PER_FILE))
    while budget > MIN_MICRO_TOKENS and _padded(descending, budget) * (1 - MAX_WASTE) > tokens:
        budget = max(MIN_MICRO_TOKENS, budget // 2)
    # Somewhat smaller ones may divide evenly among the files, which then differ less.
    least = min(budget, MIN_MICRO_TOKENS)
    tried = [max(least, budget * percent // 100) for percent in range(100, 79, -4)]
    return min(tried, key=lambda tokens: _unevenness(len(_cut(descending, tokens)) - 1, files))


def _padded(descending: Integers, budget: int) -> int:
    """Tokens of all micro-batches, padding included."""
    starts = _cut(descending, budget)
    return int((np.diff(starts) * descending[starts[:-1]]).sum())


def _unevenness(micro_batches: int, files: int) -> float:
    """The fullest file over the average one, if all micro-batches were alike; two places do."""
    return round(-(-micro_batches // files) * files / micro_batches, 2)


def _cut(descending: Integers, budget: int) -> Integers:
    """Where micro-batches begin in lengths sorted longest first: int64[M + 1]."""
    starts, place = [], 0
    while place < len(descending):
        starts.append(place)
        place += max(1, budget // int(descending[place]))
    return np.array([*starts, len(descending)], dtype=np.int64)


def batch_costs(plan: Plan, hidden_size: int) -> npt.NDArray[np.float64]:
    """float64[B]: relative compute of every batch."""
    longest = plan.lengths[plan.order[plan.micro_starts[:-1]]]
    costs = _costs(np.diff(plan.micro_starts) * longest, longest, hidden_size)
    return np.add.reduceat(costs, plan.batch_starts[:-1])


def sample_costs(lengths: Integers, hidden_size: int) -> npt.NDArray[np.float64]:
    """float64[N]: relative compute of samples one by one, without padding."""
    return _costs(lengths, lengths, hidden_size)


def _costs(padded: Integers, longest: Integers, hidden_size: int) -> npt.NDArray[np.float64]:
    """Relative compute of micro-batches: per token a constant for the matrices, and attention with the length.

    A decoder block takes about 24·H² operations per token for its matrices and 2·H per token and
    position for causal attention.
    """
    costs: npt.NDArray[np.float64] = padded * (1 + longest / (12 * hidden_size))
    return costs


def _deal(costs: npt.NDArray[np.float64], batches: int, seed: int) -> list[list[int]]:
    """Micro-batches of each batch; number 0, the longest, goes to batch 0."""
    hands: list[list[int]] = [[] for _ in range(batches)]
    hands[0].append(0)
    loads = [(0.0, int(rank), batch) for batch, rank in enumerate(_ranks(batches, seed))]
    loads[0] = (float(costs[0]), *loads[0][1:])
    heapq.heapify(loads)
    others = 1 + np.lexsort((_ranks(len(costs), seed + 1)[1:], -costs[1:]))
    for micro in others:
        load, rank, batch = heapq.heappop(loads)
        hands[batch].append(int(micro))
        heapq.heappush(loads, (load + float(costs[micro]), rank, batch))
    return hands


def _ranks(count: int, seed: int) -> npt.NDArray[np.uint64]:
    """uint64[count] without order: splitmix64, which no library version will ever change."""
    with np.errstate(over="ignore"):
        mixed = (
            np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed % 2**32) * np.uint64(2**32)
        ) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _starts_of(sizes: Integers) -> Integers:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
