"""The search for bad samples: it finds exactly those that fail alone, and gives up where all do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.salvage import MAX_BAD, find_bad
from gpu_worker.tokens import TokenBatch


@given(st.integers(2, 300), st.sets(st.integers(0, 299), max_size=20))
def test_exactly_the_bad_ones_are_found(count: int, bad: set[int]) -> None:
    present, tried = {place for place in bad if place < count}, []

    def attempt(places: Sequence[int]) -> str | None:
        tried.append(len(places))
        culprits = present & set(places)
        return f"first is {min(culprits)}" if culprits else None

    found = find_bad(range(count), attempt)
    if found is None:
        # Only where nothing was found to be good.
        assert len(present) >= 8
        return
    assert found == {place: f"first is {place}" for place in present}
    # Twice the batch for each level, and what lies beside the bad ones.
    assert sum(tried) <= count + 2 * count * max(1, len(present)) * (count.bit_length() + 1)
    assert len(tried) <= 2 + 2 * len(present) * (count.bit_length() + 1)


def test_what_fails_together_only_is_nobodys_fault() -> None:
    assert find_bad(range(8), lambda places: "together" if len(places) > 1 else None) == {}


def test_too_many_are_given_up() -> None:
    tried: list[int] = []

    def attempt(places: Sequence[int]) -> str | None:
        tried.append(len(places))
        return "bad"

    assert find_bad(range(1000), attempt) is None
    assert tried.count(1) == 8
    every_second = find_bad(range(4 * MAX_BAD), lambda places: "bad" if any(p % 2 for p in places) else None)
    assert every_second is None


def test_a_part_of_a_batch_keeps_its_micro_batches_together() -> None:
    lengths = np.array([5, 4, 3, 3, 2])
    batch = TokenBatch(
        batch_id=1,
        source_rows=np.array([10, 11, 12, 13, 14]),
        input_ids=np.arange(17, dtype=np.int32),
        loss_mask=(np.arange(17) % 2).astype(np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        micro_batches=np.array([0, 1, 3, 5]),
    )
    part = batch.take([1, 3, 4])
    assert part.source_rows.tolist() == [11, 13, 14]
    assert part.input_ids.tolist() == [5, 6, 7, 8, 12, 13, 14, 15, 16]
    assert part.loss_mask.tolist() == [1, 0, 1, 0, 0, 1, 0, 1, 0]
    assert part.offsets.tolist() == [0, 4, 7, 9]
    assert part.micro_batches.tolist() == [0, 1, 3]
    whole = batch.take(range(5))
    assert whole.micro_batches.tolist() == [0, 1, 3, 5]
    assert whole.offsets.tolist() == batch.offsets.tolist()
