"""How much sooner do GPUs of unequal speed end with our queue than with static shards, and how near to the ideal?

A simulation: what a device takes for a micro-batch is its cost as the plan reckons it over the device's
speed. The plan, its order and its costs are the producer's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.fleet_simulation import Gpu, QueueSimulation, Seconds, ideal_end, static_ends
from benchmarks.planned_run import mixed_lengths
from common.settings.catalogue import ExtractSettings, PlanSettings, QueueSettings
from hiddenfeed.batch_layout import bytes_per_token
from producer.plan import Plan, PlanLimits, batch_costs, batch_tokens, make_plan, sample_costs

#: The reference run: 913,786 conversations, five taps of a model 5,120 wide.
SAMPLES, QUICK_SAMPLES = 913_786, 100_000
MEAN_TOKENS, LONGEST, HIDDEN, TAPS = 500, 4096, 5120, 5
TOKENS_PER_SECOND = 10_000.0
#: Relative speeds of four GPUs as one finds them in one host.
SPEEDS = (1.0, 0.95, 0.8, 0.55)
FLEETS, QUICK_FLEETS = (4, 16, 64, 256, 1024), (4, 64, 1024)


def run(*, quick: bool) -> dict[str, Any]:
    """Simulate the reference run and fleets of growing size."""
    lengths = mixed_lengths(QUICK_SAMPLES if quick else SAMPLES, MEAN_TOKENS, LONGEST)
    plan = _plan(lengths)
    # In seconds of a device of speed 1.
    batches = _seconds(batch_costs(plan, HIDDEN), plan)
    samples = _seconds(sample_costs(np.sort(lengths)[::-1], HIDDEN), plan)
    healthy = [Gpu(speed) for speed in SPEEDS]
    half = float(batches.sum()) / sum(SPEEDS) / 2
    dying = [Gpu(SPEEDS[0], dies_at=half), *healthy[1:]]
    static, queue = static_ends(samples, healthy), queue_ends(batches, healthy)
    with_death = queue_ends(batches, dying)
    fleets = [_fleet(batches, count) for count in (QUICK_FLEETS if quick else FLEETS)]
    return {
        "samples": len(lengths),
        "tokens": int(lengths.sum()),
        "batches": plan.batches,
        "speeds": list(SPEEDS),
        "static_hours": max(static) / 3600,
        "queue_hours": max(queue) / 3600,
        "static_spread_hours": (max(static) - min(static)) / 3600,
        "queue_spread_hours": (max(queue) - min(queue)) / 3600,
        "efficiency": ideal_end(batches, healthy) / max(queue),
        "static_efficiency": ideal_end(batches, healthy) / max(static),
        "death_efficiency": ideal_end(batches, dying) / max(with_death),
        "death_hours": max(with_death) / 3600,
        "first_minutes": _first_minutes(batches),
        "fleets": fleets,
        "efficiency_aim": 0.99,
    }


def describe(results: dict[str, Any]) -> list[str]:
    """The figures for people."""
    return [
        f"{results['samples']:,} samples, {results['tokens']:,} tokens, {results['batches']:,} batches; GPUs of speeds "
        f"{', '.join(map(str, results['speeds']))}",
        f"static shards: {results['static_hours']:.2f} h, the first GPU is idle for the last {results['static_spread_hours']:.2f} h; "
        f"efficiency {results['static_efficiency']:.3f}",
        f"queue: {results['queue_hours']:.2f} h, all end within {results['queue_spread_hours'] * 3600:.1f} s; "
        f"efficiency {results['efficiency']:.4f} (aim {results['efficiency_aim']})",
        f"queue with one GPU lost half-way: {results['death_hours']:.2f} h, efficiency {results['death_efficiency']:.4f}; "
        "static shards never end",
        f"hours foretold from the first 1% of the batches are off by {results['first_minutes']:.2%}",
        *(
            f"{fleet['gpus']:,} GPUs: {fleet['hours']:.3f} h, efficiency {fleet['efficiency']:.4f}, {fleet['batches_each']:,.0f} "
            "batches each"
            for fleet in results["fleets"]
        ),
    ]


def queue_ends(batches: Seconds, gpus: Sequence[Gpu]) -> list[float]:
    """When each GPU that lasts computes no more, with the settings that a fleet has."""
    ahead, lease = ExtractSettings().batches_in_flight, QueueSettings().lease_seconds
    return QueueSimulation(batches, gpus, ahead=ahead, lease=lease).run()


def _fleet(batches: Seconds, count: int) -> dict[str, Any]:
    gpus = [Gpu(SPEEDS[number % len(SPEEDS)]) for number in range(count)]
    ends = queue_ends(batches, gpus)
    return {
        "gpus": count,
        "hours": max(ends) / 3600,
        "spread_seconds": max(ends) - min(ends),
        "batches_each": len(batches) / count,
        "efficiency": ideal_end(batches, gpus) / max(ends),
    }


def _first_minutes(batches: Seconds) -> float:
    """How far the mean of the first hundredth of the batches is from that of all."""
    first = batches[: max(1, len(batches) // 100)]
    return float(abs(first.mean() / batches.mean() - 1))


def _plan(lengths: npt.NDArray[np.int64]) -> Plan:
    settings = PlanSettings()
    per_token = bytes_per_token(taps=TAPS, hidden_size=HIDDEN, dtype="bfloat16", final=False)
    tokens = batch_tokens(settings.target_file_bytes, per_token)
    return make_plan(lengths, PlanLimits(settings.micro_batch_tokens, tokens, HIDDEN, settings.seed))


def _seconds(costs: Seconds, plan: Plan) -> Seconds:
    """Costs as seconds of a device of speed 1, which does TOKENS_PER_SECOND on this data."""
    factor = plan.tokens / TOKENS_PER_SECOND / float(batch_costs(plan, HIDDEN).sum())
    return np.asarray(costs * factor, np.float64)
