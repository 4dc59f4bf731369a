"""A simulated fleet for the benchmark of the time left: workers of several speeds on a planned run, event by event.

Batches come from the producer's own planner. The true cost of a forward pass is not of the form that is fitted: it
has an overhead, pays for padding, and is noisy.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.planned_run import mixed_lengths
from common.batch_cost import CostSums, cost_terms, device_class
from common.progress_records import RecentWork
from common.run_state import Progress, RunRecord, WorkerProgress
from producer.plan import Plan, PlanLimits, make_plan

#: Shares of the work after which the time left is asked for.
SHARES = (0.05, 0.20)


@dataclass(frozen=True)
class Machine:
    """One worker of the fleet."""

    name: str
    device: str
    #: Seconds of its device over those of the plain one.
    slowness: float = 1.0
    #: When it comes and goes, as shares of the tokens stored; by then it is known to be there, or gone.
    joins: float = 0.0
    leaves: float = 2.0


@dataclass(frozen=True)
class Scenario:
    """A fleet at work."""

    name: str
    machines: tuple[Machine, ...]
    samples: int = 60_000
    #: Seconds that a file takes the uploads of all together; 0 for next to nothing.
    upload_per_batch: float = 0.0
    #: When the time left is asked for: not before what nobody can foresee.
    asked: tuple[float, ...] = SHARES


@dataclass(frozen=True)
class Work:
    """One batch: what is known of it, and what it truly costs."""

    samples: int
    tokens: int
    squares: int
    seconds: float


@dataclass(frozen=True)
class Look:
    """What the monitor could have read right after an arrival."""

    at: float
    progress: Progress
    living: tuple[str, ...]


@dataclass
class _Worker:
    machine: Machine
    sums: dict[str, float] = field(default_factory=dict)
    recent: RecentWork = field(default_factory=RecentWork)
    gone: bool = False


def plan_work(scenario: Scenario, seed: int) -> list[Work]:
    """All batches of the scenario, in the order of the queue."""
    random = np.random.default_rng(seed)
    lengths = mixed_lengths(scenario.samples, 400, 4096, seed)
    plan = make_plan(lengths, PlanLimits(8192, 24_000, 2048, seed))
    return [_work(plan.lengths, plan, batch_id, random) for batch_id in range(plan.batches)]


def record_of(work: Sequence[Work]) -> RunRecord:
    """The run as the producer registers it."""
    return RunRecord(
        run_id="simulated",
        model="",
        samples=sum(each.samples for each in work),
        tokens=sum(each.tokens for each in work),
        batches=len(work),
        squares=sum(each.squares for each in work),
        submitted_at=0.0,
    )


def simulate(scenario: Scenario, work: Sequence[Work], seed: int) -> Iterator[Look]:
    """Looks at the run, one after each arrival in the store, the last one at its end."""
    return _Simulation(scenario, work, seed).run()


class _Simulation:
    def __init__(self, scenario: Scenario, work: Sequence[Work], seed: int) -> None:
        self._scenario, self._waiting = scenario, list(reversed(work))
        self._tokens_total = sum(each.tokens for each in work)
        self._random = np.random.default_rng(seed + 1)
        self._workers = {machine.name: _Worker(machine) for machine in scenario.machines}
        self._started: set[str] = set()
        self._idle: set[str] = set()
        self._costs: dict[str, dict[str, float]] = {}
        self._first_costs: dict[str, dict[str, float]] = {}
        self._totals = {"batches": 0, "samples": 0, "tokens": 0, "squares": 0}
        self._first_at = self._last_at = 0.0
        self._store_free = 0.0
        #: (time, number, kind, worker, work, device seconds)
        self._events: list[tuple[float, int, str, _Worker, Work, float]] = []
        self._number = 0

    def run(self) -> Iterator[Look]:
        self._come(0.0)
        while self._events:
            now, _, kind, worker, work, seconds = heapq.heappop(self._events)
            if kind == "computed":
                if worker.gone:
                    self._waiting.append(work)
                    self._wake(now)
                else:
                    self._announce(now, worker, work, seconds)
                    self._take(now, worker)
            else:
                self._store(now, worker, work, seconds)
                self._come(now)
                yield self._look(now)

    @property
    def _done(self) -> float:
        return self._totals["tokens"] / self._tokens_total

    def _come(self, now: float) -> None:
        """Let those join and leave whose time has come."""
        for name, worker in self._workers.items():
            if worker.machine.leaves <= self._done:
                worker.gone = True
            if name not in self._started and worker.machine.joins <= self._done:
                self._started.add(name)
                # It loads the model first.
                self._take(now + 20 + 10 * self._random.random(), worker)

    def _wake(self, now: float) -> None:
        """What a dead worker had is on the queue again, and those who found it empty may go on."""
        for name in list(self._idle):
            self._take(now, self._workers[name])

    def _take(self, now: float, worker: _Worker) -> None:
        if worker.gone or not self._waiting:
            self._idle.add(worker.machine.name)
            return
        self._idle.discard(worker.machine.name)
        work = self._waiting.pop()
        seconds = work.seconds * worker.machine.slowness * float(self._random.lognormal(0, 0.03))
        self._push(now + seconds * 1.02, "computed", worker, work, seconds)

    def _announce(self, now: float, worker: _Worker, work: Work, seconds: float) -> None:
        if self._scenario.upload_per_batch:
            self._store_free = max(self._store_free, now) + self._scenario.upload_per_batch
            arrives = self._store_free
        else:
            arrives = now + 2 + 2 * float(self._random.random())
        self._push(arrives, "stored", worker, work, seconds)

    def _push(self, at: float, kind: str, worker: _Worker, work: Work, seconds: float) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, self._number, kind, worker, work, seconds))

    def _store(self, now: float, worker: _Worker, work: Work, seconds: float) -> None:
        for name, amount in (
            ("batches", 1),
            ("samples", work.samples),
            ("tokens", work.tokens),
            ("squares", work.squares),
        ):
            self._totals[name] += amount
            worker.sums[name] = worker.sums.get(name, 0) + amount
        if "last_at" in worker.sums:
            worker.recent = worker.recent.after(
                now - worker.sums["last_at"], work.tokens, work.squares, seconds
            )
            kept = self._costs
        else:
            kept = self._first_costs
        costs = kept.setdefault(device_class(worker.machine.device), {})
        for name, term in cost_terms(work.tokens, work.squares, seconds).items():
            costs[name] = costs.get(name, 0) + term
        worker.sums["forward_seconds"] = worker.sums.get("forward_seconds", 0.0) + seconds
        worker.sums["active_seconds"] = worker.sums.get("active_seconds", 0.0) + (
            now - worker.sums.get("last_at", now)
        )
        worker.sums.setdefault("first_at", now)
        worker.sums["last_at"] = now
        self._first_at = self._first_at or now
        self._last_at = now

    def _look(self, now: float) -> Look:
        workers = tuple(
            msgspec.convert(
                {
                    "worker": name,
                    "device": worker.machine.device,
                    "recent": " ".join(map(str, msgspec.structs.astuple(worker.recent))),
                    **worker.sums,
                },
                WorkerProgress,
                strict=False,
            )
            for name, worker in self._workers.items()
            if worker.sums
        )
        costs, first_costs = (
            tuple(
                msgspec.convert({"device": device, **sums}, CostSums, strict=False)
                for device, sums in kept.items()
            )
            for kept in (self._costs, self._first_costs)
        )
        progress = Progress(
            run_id="simulated",
            batches=self._totals["batches"],
            samples=self._totals["samples"],
            tokens=self._totals["tokens"],
            squares=self._totals["squares"],
            first_at=self._first_at,
            last_at=self._last_at,
            workers=workers,
            costs=costs,
            first_costs=first_costs,
        )
        living = tuple(name for name in sorted(self._started) if not self._workers[name].gone)
        return Look(now, progress, living)


def _work(lengths: npt.NDArray[np.int64], plan: Plan, batch_id: int, random: np.random.Generator) -> Work:
    batch = plan.batch(batch_id)
    seconds = 0.0
    for micro in range(int(batch.micro_batches.max()) + 1):
        inside = lengths[batch.samples[batch.micro_batches == micro]]
        padded, longest = len(inside) * int(inside.max()), int(inside.max())
        # Per forward pass an overhead, then the matrices and attention over what the device sees.
        seconds += 0.2 + 2.0e-4 * padded + 1.2e-8 * padded * longest * float(random.lognormal(0, 0.1))
    return Work(len(batch.samples), batch.tokens, batch.squares, seconds * float(random.lognormal(0, 0.02)))
