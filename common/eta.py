"""When a run will be done: what is left, what it costs on each kind of device, and who is there to do it. Pure.

Batches are cut to cost the same, but devices, lengths and fleets differ. So the cost of what is left comes from
a fit over the batches that are done (`common.batch_cost`), and the speed of each living worker from the cost of
what it has delivered over the time it took. A worker that dies takes its speed with it; one that joins is taken
for an average one until it has shown better.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from common.batch_cost import Cost, CostSums, fit
from common.run_state import Progress, RunRecord, WorkerProgress
from hiddenfeed.words import time_left_text

#: What is known of the fleet weighs as much as so many batches of one worker; that a device is never idle, as much as
#: so many batches of the whole fleet; that its kind is equally fast, as much as one batch.
_FLEET_BATCHES, _BUSY_BATCHES, _KIND_BATCHES = 3.0, 1.5, 1.0
#: By how much, as a standard deviation, machines may be faster or slower from now on than they were: nobody can know.
_DRIFT = 0.025
#: Standard deviation, in batches, of when a worker's first and last arrivals are seen.
_ARRIVAL_SPREAD = 0.4
#: The range is so many standard deviations wide on either side.
_DEVIATIONS = 2.0


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until the store holds the last batch, and the range in which that is likely (19 times in 20)."""

    seconds: float
    low_seconds: float
    high_seconds: float

    def __str__(self) -> str:
        """`about 2 h 05 min left (1 h 58 min to 2 h 12 min)`"""
        return time_left_text(self.seconds, self.low_seconds, self.high_seconds)


@dataclass(frozen=True)
class _Left:
    """What remains, and a batch of it on average."""

    batches: int
    tokens: float
    squares: float


@dataclass(frozen=True)
class _Pooled:
    """What the fleet as a whole has shown."""

    costs: dict[str, Cost]
    #: Share of the time in which a device computes: 1 unless uploads or reading hold it up.
    busy: float
    #: Seconds that a batch costs on average.
    batch_seconds: float


def estimate(record: RunRecord, progress: Progress, living: Collection[str], now: float) -> Estimate | None:
    """The time left of a run at `now` (seconds since the epoch), with the workers named in `living`.

    None if nobody works on it or nothing is known yet.
    """
    left = _left(record, progress)
    if left.batches <= 0:
        return Estimate(seconds=0.0, low_seconds=0.0, high_seconds=0.0)
    sums = _sums(progress)
    costs = {each.device: cost for each in sums if (cost := fit(each)) is not None}
    if not living or not costs:
        return None
    workers = {worker.worker: worker for worker in progress.workers}
    pooled = _pool(progress, sums, costs)
    known = [_rate(workers[name], pooled, left) for name in living if name in workers]
    usual = sum(known) / len(known) if known else _usual_rate(progress, pooled, left)
    rate = sum(known) + usual * (len(living) - len(known))
    if rate <= 0:
        return None
    seconds = left.batches / rate
    # Between two arrivals the clock goes on, but no further than to the next arrival.
    waited = min(max(0.0, now - progress.last_at), 1 / rate) if progress.last_at else 0.0
    return _ranged(max(0.0, seconds - waited), left, pooled, [workers.get(name) for name in living], rate)


def _left(record: RunRecord, progress: Progress) -> _Left:
    batches = record.batches - progress.batches
    if batches <= 0:
        return _Left(0, 0.0, 0.0)
    tokens = max(0, record.tokens - progress.tokens)
    if record.squares:
        squares = float(max(0, record.squares - progress.squares))
    else:
        # A producer that did not say: as in what is done.
        squares = tokens * progress.squares / max(1, progress.tokens)
    return _Left(batches, tokens / batches, squares / batches)


def _sums(progress: Progress) -> list[CostSums]:
    """Of each kind of device; of one that has not done more, what its workers' first batches cost."""
    known = {sums.device for sums in progress.costs}
    return [*progress.costs, *(sums for sums in progress.first_costs if sums.device not in known)]


def _pool(progress: Progress, sums: Sequence[CostSums], costs: dict[str, Cost]) -> _Pooled:
    batch_seconds = sum(each.y for each in sums) / sum(cost.batches for cost in costs.values())
    # How long the devices computed what came after each worker's first batch, and how long it took.
    computed = taken = _BUSY_BATCHES * batch_seconds
    for worker in progress.workers:
        recent = worker.recent_work
        if _cost_of(worker, costs) is not None:
            computed += recent.device_seconds
            taken += recent.clock_seconds
    return _Pooled(costs, min(1.0, computed / taken), batch_seconds)


def _rate(worker: WorkerProgress, pooled: _Pooled, left: _Left) -> float:
    """Batches of what is left that this worker does per second."""
    cost = _cost_of(worker, pooled.costs)
    if cost is None:
        return pooled.busy / pooled.batch_seconds
    recent, usual = worker.recent_work, pooled.batch_seconds
    done, kind = cost.seconds(recent.tokens, recent.squares), _KIND_BATCHES * usual
    # Of one kind one device may still be faster than another.
    speed = (kind + done) / (kind + recent.device_seconds)
    believed = _FLEET_BATCHES * usual
    speed_of_clock = (believed + done) / (believed / (pooled.busy * speed) + recent.clock_seconds)
    return speed_of_clock / max(1e-9, cost.seconds(left.tokens, left.squares))


def _usual_rate(progress: Progress, pooled: _Pooled, left: _Left) -> float:
    """Of a worker of which nothing is known, in a fleet that is gone: the mean over those that were."""
    rates = [_rate(worker, pooled, left) for worker in progress.workers if worker.batches]
    return sum(rates) / len(rates) if rates else pooled.busy / pooled.batch_seconds


def _ranged(
    seconds: float, left: _Left, pooled: _Pooled, workers: list[WorkerProgress | None], rate: float
) -> Estimate:
    """The estimate with its range."""
    batches = sum(cost.batches for cost in pooled.costs.values())
    spread = sum(cost.spread * cost.batches for cost in pooled.costs.values()) / batches
    shown = [worker.batches if worker else 0 for worker in workers]
    # Of a worker that has shown nothing yet, its speed is known to within a fifth.
    clocks = [_ARRIVAL_SPREAD / (_FLEET_BATCHES + count) if count else max(0.2, spread) for count in shown]
    variance = _DRIFT**2 + spread**2 * (1 / batches + 1 / left.batches)
    variance += sum(clock**2 for clock in clocks) / len(clocks) ** 2
    half = _DEVIATIONS * seconds * math.sqrt(variance) + 0.5 * len(workers) / rate
    return Estimate(seconds=seconds, low_seconds=max(0.0, seconds - half), high_seconds=seconds + half)


def _cost_of(worker: WorkerProgress, costs: dict[str, Cost]) -> Cost | None:
    return costs.get(worker.device_class) if worker.batches else None
