"""The plan, over all lengths and limits: every sample once, budgets kept, batches alike, always the same."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from producer.plan import MIN_BATCHES, Plan, PlanLimits, _costs, batch_count, make_plan

Lengths = npt.NDArray[np.int64]

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=400).map(
    lambda values: np.array(values, np.int64)
)
LIMITS = st.builds(
    PlanLimits,
    micro_batch_tokens=st.integers(1, 600),
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
    costs = []
    for batch_id in range(plan.batches):
        sizes = [(len(micro) * int(micro[0]), int(micro[0])) for micro in micro_batches(plan, batch_id)]
        padded, longest = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
        costs.append(_costs(padded, longest, limits.hidden_size))
    totals = [float(cost.sum()) for cost in costs]
    assert max(totals) - min(totals) <= max(float(cost.max()) for cost in costs) * (1 + 1e-9)


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


def test_padding_is_next_to_nothing_and_files_mix_lengths() -> None:
    lengths = lognormal(20_000, 500, 4096)
    plan = make_plan(lengths, PlanLimits(16_384, 40_000, 5120, 0))
    assert plan.waste < 0.005
    batches = [plan.batch(batch_id) for batch_id in range(plan.batches)]
    tokens = np.array([batch.tokens for batch in batches])
    assert plan.batches == -(-lengths.sum() // 40_000)
    # Within one micro-batch of each other, and each with long and short samples.
    assert tokens.max() - tokens.min() <= 16_384 * 1.1
    spread = [np.ptp(lengths[batch.samples]) / np.ptp(lengths) for batch in batches]
    assert np.median(spread) > 0.05


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
