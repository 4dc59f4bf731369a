"""The simulated makespan, against small cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import makespan
from benchmarks.fleet_simulation import Gpu, QueueSimulation, ideal_end, static_ends


def ends(batches: list[float], gpus: list[Gpu], ahead: int = 1) -> list[float]:
    return QueueSimulation(np.array(batches), gpus, ahead=ahead, lease=45).run()


def test_a_queue_of_equal_batches() -> None:
    # 0-10 10-20 20-30 and, half as fast, 0-20 20-40: the fast one takes the fifth at 20.
    assert ends([10.0] * 5, [Gpu(1.0), Gpu(0.5)]) == [30, 40]
    assert ideal_end(np.full(5, 10.0), [Gpu(1.0), Gpu(0.5)]) == pytest.approx(50 / 1.5)


def test_what_is_held_ahead_is_not_shared_at_the_end() -> None:
    # Each holds two of the four: the fast one cannot take the slow one's second.
    assert ends([10.0] * 4, [Gpu(1.0), Gpu(0.5)], ahead=2) == [20, 40]
    assert ends([10.0] * 5, [Gpu(1.0), Gpu(0.5)], ahead=2) == [30, 40]


def test_static_shards_wait_for_the_slowest() -> None:
    assert static_ends(np.array([8.0, 4, 2, 2]), [Gpu(1.0), Gpu(0.5)]) == [12, 8]


def test_what_a_lost_gpu_had_in_hand_is_done_again_after_the_lease() -> None:
    # The first dies at 5; the other does eight batches until 80 and the lost two after them.
    dying = [Gpu(1.0, dies_at=5), Gpu(1.0)]
    assert ends([10.0] * 10, dying, ahead=2) == [100]
    # With nothing else to do it waits until the lease has run out.
    assert ends([10.0] * 2, dying) == [5 + 45 + 10]
    assert ideal_end(np.full(10, 10.0), dying) == 95
    with pytest.raises(ValueError, match="no GPU is left"):
        ends([10.0], [Gpu(1.0, dies_at=5)])


def test_the_benchmark_runs_and_our_order_is_near_the_ideal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(makespan, "QUICK_SAMPLES", 20_000)
    monkeypatch.setattr(makespan, "QUICK_FLEETS", (4, 16))
    results = makespan.run(quick=True)
    assert results["efficiency"] > 0.99
    assert results["static_spread_hours"] > 10 * results["queue_spread_hours"]
    assert results["first_minutes"] < 0.05
    assert [fleet["gpus"] for fleet in results["fleets"]] == [4, 16]
    assert len(makespan.describe(results)) == 7
