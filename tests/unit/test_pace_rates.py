"""The rate of late, from looks at a run's counters."""

from __future__ import annotations

import pytest

from common.pace import WINDOW_ARRIVALS, WINDOW_SECONDS, Pace
from common.run_state import Progress, UploaderProgress, WorkerProgress


def _look(pace: Pace, now: float, batches: int, *, last_at: float | None = None) -> None:
    at = 1000.0 + batches if last_at is None else last_at
    pace.look(now, Progress(run_id="r", batches=batches, tokens=100 * batches, last_at=at))


def test_the_rate_is_counted_between_arrivals_and_stands_still_in_between() -> None:
    pace = Pace()
    rates = []
    for second in range(60):
        _look(pace, second, second // 10)  # a batch of 100 tokens every ten seconds
        rates.append(pace.rate)
    assert rates[:20] == [None] * 20  # the first arrival only starts the clock
    assert set(rates[20:]) == {10.0}


def test_a_run_that_stands_still_slows_down() -> None:
    pace = Pace()
    for batches in range(5):
        _look(pace, 10.0 * batches, batches)
    _look(pace, 65.0, 4)
    seen = [(pace.rate, pace.late)]
    _look(pace, 110.0, 4)
    seen.append((pace.rate, pace.late))
    assert seen == [(10.0, False), (3.0, True)]


def test_what_was_found_in_the_store_has_not_arrived() -> None:
    pace = Pace()
    _look(pace, 0.0, 0, last_at=0.0)
    _look(pace, 1.0, 500, last_at=0.0)  # counted at once when a run is taken up again
    _look(pace, 11.0, 501)
    rates = [pace.rate]
    _look(pace, 21.0, 502)
    rates.append(pace.rate)
    # A Redis that was wiped counts anew.
    _look(pace, 22.0, 0, last_at=0.0)
    assert [*rates, pace.rate] == [None, 10.0, None]


def test_the_window_follows_what_happens() -> None:
    pace = Pace()
    for batches in range(100):
        _look(pace, float(batches), batches)
    assert pace.rate == 100.0
    # Slow batches: the last few of them tell, however long that is.
    for number in range(1, WINDOW_ARRIVALS + 3):
        _look(pace, 99 + number * WINDOW_SECONDS, 99 + number)
    assert pace.rate == pytest.approx(100 / WINDOW_SECONDS)


def test_averages_leave_the_first_arrival_out() -> None:
    worker = WorkerProgress(worker="w", batches=5, tokens=500, samples=50, first_at=10.0, last_at=50.0)
    assert (worker.tokens_per_second, worker.samples_per_second) == (10.0, 1.0)
    uploader = UploaderProgress(
        uploader="u", files=2, bytes=4000, upload_seconds=0.5, first_at=10.0, last_at=20.0
    )
    assert (uploader.bytes_per_second, uploader.transfer_bytes_per_second) == (200.0, 8000.0)
    alone = UploaderProgress(uploader="u", files=1, duplicates=1, first_at=10.0, last_at=10.0)
    assert (alone.bytes_per_second, alone.transfer_bytes_per_second) == (None, None)
