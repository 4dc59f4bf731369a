"""How far off is the time that is said to be left?

In simulation, over fleets in which workers differ, die, join or wait for uploads; and, without --quick,
on this machine: a real worker and a real uploader on a run of many small batches. The samples-per-second
estimate is computed from the same looks at the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks.eta_fleet import SHARES, Look, Machine, Scenario, plan_work, record_of, simulate
from benchmarks.progress import doing
from common.batch_cost import fit
from common.eta import estimate
from common.run_state import Progress, RunRecord

_QUICK_SEEDS, _SEEDS = 10, 30


def _fleet(count: int, slowness: float = 1.0, device: str = "cuda:0", first: int = 0) -> tuple[Machine, ...]:
    return tuple(Machine(f"w{first + number}", device, slowness) for number in range(count))


SCENARIOS = (
    Scenario("one worker", _fleet(1)),
    Scenario("eight workers", _fleet(8)),
    Scenario("two kinds of device", (*_fleet(3), *_fleet(3, 2.7, "other", first=3))),
    Scenario("one worker dies", (*_fleet(5), Machine("dies", "cuda:0", leaves=0.03))),
    Scenario("one of two dies", (*_fleet(1), Machine("dies", "cuda:0", leaves=0.15)), asked=(0.20,)),
    Scenario(
        "two workers join",
        (*_fleet(4), Machine("a", "cuda:0", joins=0.02), Machine("b", "cuda:0", joins=0.03)),
    ),
    Scenario(
        "two more than double",
        (*_fleet(1), *(Machine(name, "cuda:0", joins=0.15) for name in "ab")),
        asked=(0.20,),
    ),
    Scenario("slow uploads", _fleet(6), upload_per_batch=2.0),
    Scenario("a small run", _fleet(2), samples=12_000),
)


def run(*, quick: bool) -> dict[str, Any]:
    """Errors over all scenarios and seeds: the largest median of a scenario, and the worst of all."""
    seeds = range(_QUICK_SEEDS if quick else _SEEDS)
    doing(f"{len(SCENARIOS)} simulated runs, {len(seeds)} seeds each")
    simulated = {scenario.name: _scenario(scenario, seeds) for scenario in SCENARIOS}
    found: dict[str, Any] = {"scenarios": simulated}
    runs = list(simulated.values())
    if not quick:
        from benchmarks.eta_run import Crew, real_run

        doing("a run on this machine")
        record, looks = real_run(Crew())
        found["real"] = (
            errors_of(record, looks) | oracle_errors(record, looks) | {"device_drift": drift(looks)}
        )
        # One of two is killed, another comes instead: until that is over nobody can foresee it.
        doing("a run of two workers, of which one is killed, and one more comes")
        record, looks = real_run(Crew(workers=2, dies=0.06, joins=0.08))
        found["real_fleet"] = (
            errors_of(record, looks, (0.20,))
            | oracle_errors(record, looks, (0.20,))
            | {"device_drift": drift(looks)}
        )
        runs += [found["real"], found["real_fleet"]]
    for name in ("error_at_5pct", "error_at_20pct"):
        for kind in (name, f"samples_{name}"):
            found[kind] = max(each[kind] for each in runs if kind in each)
    found["in_range_share"] = statistics.mean(each["in_range_share"] for each in simulated.values())
    return found


def describe(results: dict[str, Any]) -> list[str]:
    """The results for people."""
    columns = ("error_at_5pct", "error_at_20pct", "samples_error_at_5pct", "samples_error_at_20pct")
    rows = [
        *results["scenarios"].items(),
        *(
            (name, results[key])
            for name, key in (("this machine", "real"), ("... one dies, one joins", "real_fleet"))
            if key in results
        ),
    ]
    lines = [
        f"{'error of the time left':24} {'at 5%':>8} {'at 20%':>8}   samples/s: {'at 5%':>8} {'at 20%':>8}"
    ]
    for name, each in rows:
        cells = [f"{each[column]:8.1%}" if column in each else f"{'':8}" for column in columns]
        lines.append(f"{name:24} {cells[0]} {cells[1]}              {cells[2]} {cells[3]}")
    for name, key in (
        ("this machine", "real"),
        ("the same with one that dies and one that joins", "real_fleet"),
    ):
        if real := results.get(key):
            oracle = " and ".join(f"{real[each]:.1%}" for each in real if each.startswith("oracle"))
            lines.append(
                f"{name}: a batch took the device up to {real['device_drift']:.2f} times as long at one time as at another; who "
                f"knows from the end what each batch costs, but not how fast the machine will be, is {oracle} off"
            )
    lines.append(f"the truth was within the range said {results['in_range_share']:.0%} of the time")
    return lines


def errors_of(record: RunRecord, looks: Sequence[Look], asked: Sequence[float] = SHARES) -> dict[str, float]:
    """Errors of both estimates at each share of the work, over the time that was truly left."""
    end = looks[-1].at
    found: dict[str, float] = {}
    within = []
    for share in asked:
        look = next(look for look in looks if look.progress.tokens >= share * record.tokens)
        truth = end - look.at
        ours = estimate(record, look.progress, look.living, look.at)
        rate = look.progress.samples_per_second
        name = f"error_at_{share:.0%}".replace("%", "pct")
        found[name] = abs(ours.seconds - truth) / truth if ours else 1.0
        by_samples = (record.samples - look.progress.samples) / rate if rate else 0.0
        found[f"samples_{name}"] = abs(by_samples - truth) / truth
        within.append(ours is not None and ours.low_seconds <= truth <= ours.high_seconds)
    return {**found, "in_range_share": statistics.mean(within)}


def oracle_errors(
    record: RunRecord, looks: Sequence[Look], asked: Sequence[float] = SHARES
) -> dict[str, float]:
    """Errors of one who knows from the end what batches cost, and of the speed what was seen: what nobody can do better.

    For a run on one kind of device, on which nobody comes or goes after the looks that are asked about.
    """
    whole, end = looks[-1].progress, looks[-1].at
    cost = fit(whole.costs[0])
    assert cost is not None
    found = {}
    for share in asked:
        look = next(look for look in looks if look.progress.tokens >= share * record.tokens)
        seen = look.progress
        slowness = _device_seconds(seen) / cost.seconds(seen.tokens, seen.squares) * _clock_share(seen)
        left = cost.seconds(whole.tokens - seen.tokens, whole.squares - seen.squares)
        said, truth = slowness * left / len(look.living), end - look.at
        found[f"oracle_error_at_{share:.0%}".replace("%", "pct")] = abs(said - truth) / truth
    return found


def drift(looks: Sequence[Look], parts: int = 5) -> float:
    """Device seconds per batch in the slowest part of a run over those in the fastest: 1 on a machine of one's own.

    Where others use the machine it is larger, and no estimate can foresee what they will do.
    """
    marks = [looks[(len(looks) - 1) * part // parts].progress for part in range(parts + 1)]
    seconds = [
        (_device_seconds(after) - _device_seconds(before)) / max(1, after.batches - before.batches)
        for before, after in pairwise(marks)
    ]
    return max(seconds) / max(1e-9, min(seconds))


def _device_seconds(progress: Progress) -> float:
    return sum(worker.forward_seconds for worker in progress.workers)


def _clock_share(progress: Progress) -> float:
    """Seconds of the clock for a second of a device."""
    recent = [worker.recent_work for worker in progress.workers]
    computed = sum(each.device_seconds for each in recent)
    return sum(each.seconds for each in recent) / computed if computed else 1.0


def _scenario(scenario: Scenario, seeds: Sequence[int]) -> dict[str, float]:
    each = []
    for seed in seeds:
        work = plan_work(scenario, seed)
        each.append(errors_of(record_of(work), list(simulate(scenario, work, seed)), scenario.asked))
    found = {name: statistics.median(errors[name] for errors in each) for name in each[0]}
    for name in [name for name in found if name.startswith("error")]:
        found[f"worst_{name}"] = max(errors[name] for errors in each)
    return {**found, "in_range_share": statistics.mean(errors["in_range_share"] for errors in each)}
