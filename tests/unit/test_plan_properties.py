"""The plan, over all lengths and limits: every sample once, budgets kept, batches alike, always the same."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiddenfeed.options import MIB
from producer.plan import (
    MIN_BATCHES,
    Plan,
    PlanLimits,
    _costs,
    batch_costs,
    batch_count,
    batch_tokens,
    make_plan,
)

Lengths = npt.NDArray[np.int64]

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=400).map(
    lambda values: np.array(values, np.int64)
)
LIMITS = st.builds(
    PlanLimits,
    micro_batch_tokens=st.integers(1, 600) | st.integers(1000, 20_000),
    batch_tokens=st.integers(1, 5000),
    hidden_size=st.sampled_from([8, 576, 5120]),
    seed=st.integers(0, 2**40),
)


def micro_batches(plan: Plan, batch_id: int) -> list[Lengths]:
    """Lengths of the samples of each micro-batch of a batch, in file order."""
    batch = plan.batch(batch_id)
    return [
        plan.lengths[batch.samples[batch.micro_batches == micro]]
        for micro in range(batch.micro_batches[-1] + 1)
    ]


def _micro_costs(plan: Plan, hidden_size: int) -> npt.NDArray[np.float64]:
    longest = plan.lengths[plan.order[plan.micro_starts[:-1]]]
    return _costs(np.diff(plan.micro_starts) * longest, longest, hidden_size)


@settings(max_examples=200, deadline=None)
@given(LENGTHS, LIMITS)
def test_every_sample_is_in_exactly_one_batch(lengths: Lengths, limits: PlanLimits) -> None:
    plan = make_plan(lengths, limits)
    placed = np.concatenate([plan.batch(batch_id).samples for batch_id in range(plan.batches)])
    assert sorted(placed.tolist()) == list(range(len(lengths)))
    assert all(len(plan.batch(batch_id).samples) for batch_id in range(plan.batches))
    assert (
        plan.tokens == sum(plan.batch(batch_id).tokens for batch_id in range(plan.batches)) == lengths.sum()
    )


@settings(max_examples=200, deadline=None)
@given(LENGTHS, LIMITS)
def test_micro_batches_keep_their_budget_and_are_sorted(lengths: Lengths, limits: PlanLimits) -> None:
    plan = make_plan(lengths, limits)
    padded = count = 0
    for batch_id in range(plan.batches):
        micros = micro_batches(plan, batch_id)
        for micro in micros:
            assert micro.tolist() == sorted(micro.tolist(), reverse=True)
            size = len(micro) * int(micro[0])
            assert size <= limits.micro_batch_tokens or len(micro) == 1
            padded, count = padded + size, count + 1
        # Longest first, and no micro-batch split or empty.
        assert [int(micro[0]) for micro in micros] == sorted(
            (int(micro[0]) for micro in micros), reverse=True
        )
        assert plan.batch(batch_id).longest == micros[0][0]
    assert (plan.padded_tokens, plan.micro_batches) == (padded, count)
    assert 0 <= plan.waste < 1


@settings(max_examples=200, deadline=None)
@given(LENGTHS, LIMITS)
def test_the_longest_micro_batch_comes_first_of_all(lengths: Lengths, limits: PlanLimits) -> None:
    plan = make_plan(lengths, limits)
    assert plan.lengths[plan.batch(0).samples[0]] == lengths.max() == plan.longest


@settings(max_examples=200, deadline=None)
@given(LENGTHS, LIMITS)
def test_batches_cost_the_same_to_within_one_micro_batch(lengths: Lengths, limits: PlanLimits) -> None:
    plan = make_plan(lengths, limits)
    totals, largest = (
        batch_costs(plan, limits.hidden_size),
        float(_micro_costs(plan, limits.hidden_size).max()),
    )
    assert totals.max() - totals.min() <= largest * (1 + 1e-9)
    # A token costs one at least, so that is a limit to what a file holds too.
    assert all(
        plan.batch(batch_id).tokens <= totals.mean() + largest * (1 + 1e-9)
        for batch_id in range(plan.batches)
    )


@settings(max_examples=100, deadline=None)
@given(LENGTHS, LIMITS)
def test_the_same_facts_give_the_same_plan(lengths: Lengths, limits: PlanLimits) -> None:
    first, second = make_plan(lengths, limits), make_plan(lengths.copy(), limits)
    for name in ("order", "micro_starts", "batch_starts"):
        assert getattr(first, name).tolist() == getattr(second, name).tolist()


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(1, 10**7))
def test_the_number_of_files(tokens: int, micros: int, per_batch: int) -> None:
    count = batch_count(tokens, micros, per_batch)
    assert min(MIN_BATCHES, micros) <= count <= micros
    if MIN_BATCHES < count < micros:
        assert (count - 1) * per_batch < tokens <= count * per_batch


def lognormal(samples: int, mean: float, longest: int) -> Lengths:
    drawn = np.random.Generator(np.random.PCG64(1)).lognormal(np.log(mean) - 0.32, 0.8, samples)
    return np.clip(drawn, 4, longest).astype(np.int64)


def test_a_plan_of_known_lengths_never_changes() -> None:
    """Two producers of different versions must make the same plan of the same run."""
    lengths = np.array([place * 37 % 50 + 1 for place in range(120)], np.int64)
    plan = make_plan(lengths, PlanLimits(micro_batch_tokens=60, batch_tokens=100, hidden_size=64, seed=7))
    assert (plan.micro_batches, plan.batches, plan.padded_tokens) == (70, 31, 3106)
    assert plan.batch(1).samples.tolist() == [32, 103, 30, 80, 7, 57]
    arrays = (plan.order, plan.micro_starts, plan.batch_starts)
    assert (
        hashlib.blake2b(b"".join(array.tobytes() for array in arrays), digest_size=8).hexdigest()
        == "8333f0ed81fe39e1"
    )
    other = make_plan(lengths, PlanLimits(micro_batch_tokens=60, batch_tokens=100, hidden_size=64, seed=8))
    assert other.order.tolist() != plan.order.tolist()


#: Bytes a token of a 27B model with five taps, of an 8B one, and of a small one with three.
PER_TOKEN = (51_205, 40_965, 3_461)


@pytest.mark.parametrize("per_token", PER_TOKEN)
@pytest.mark.parametrize(
    ("samples", "mean", "longest"),
    [(100_000, 500, 4096), (100_000, 20, 4096), (2000, 500, 4096), (1000, 1000, 8192)],
)
def test_files_are_alike_in_size_and_cost_and_next_to_nothing_is_padding(
    per_token: int, samples: int, mean: float, longest: int
) -> None:
    lengths = lognormal(samples, mean, longest)
    limits = PlanLimits(16_384, batch_tokens(512 * MIB, per_token), 5120, 0)
    plan = make_plan(lengths, limits)
    assert plan.waste < 0.005
    batches = [plan.batch(batch_id) for batch_id in range(plan.batches)]
    sizes = np.array([batch.tokens for batch in batches])
    assert sizes.max() < limits.batch_tokens * 1.12
    costs = batch_costs(plan, limits.hidden_size)
    assert costs.max() < costs.mean() * 1.1
    # Each with long and short samples: the longest is at least twice the shortest.
    mixed = [batch.longest >= 2 * lengths[batch.samples].min() for batch in batches]
    assert np.mean(mixed) > 0.95


def test_a_sample_larger_than_a_file_has_one_to_itself() -> None:
    lengths = np.concatenate([lognormal(5000, 300, 4096), [60_000]])
    plan = make_plan(lengths, PlanLimits(16_384, 10_484, 5120, 0))
    assert plan.batch(0).samples.tolist() == [5000]
    assert max(plan.batch(batch_id).tokens for batch_id in range(1, plan.batches)) < 10_484 * 1.12


def test_a_small_run_still_gets_several_files() -> None:
    lengths = lognormal(450, 100, 1024)
    demo = make_plan(lengths, PlanLimits(micro_batch_tokens=1024, batch_tokens=2000, hidden_size=576, seed=0))
    assert 39_000 < demo.tokens < 42_000
    assert demo.batches >= 20
    # Files as large as asked for would be one; workers would stand idle.
    large = make_plan(
        lengths, PlanLimits(micro_batch_tokens=1024, batch_tokens=10**7, hidden_size=576, seed=0)
    )
    assert large.batches == MIN_BATCHES
