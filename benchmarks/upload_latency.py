"""How the uploader's put scales towards a store that is far away: requests in flight, and processes that share them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.upload_children import client, sink, with_keys
from benchmarks.upload_ways import Order

_DELAY_SECONDS = 0.1
_MB_PER_SECOND = 40.0
_MB = 1_000_000
#: (in flight over all processes, processes)
_CASES = ((8, 1), (8, 2), (8, 4), (32, 1), (32, 2), (32, 4), (128, 1), (128, 2), (128, 4), (500, 4))
_QUICK_CASES = ((8, 1), (32, 1), (32, 4))
_CEILING_CONNECTIONS = 8
_CEILING_FILES = 64


def measure_latency(order: Order, *, quick: bool) -> dict[str, Any]:
    """Throughput of each case against `in flight × size / (delay + size / rate)`, or this machine's ceiling if less.

    The ceiling is the best that one process reaches here, bare puts or ours, with nothing slowing them down.
    """
    size_mb = Path(order.path).stat().st_size / _MB
    ceiling = _ceiling(order, size_mb)
    rows = []
    for in_flight, replicas in _QUICK_CASES if quick else _CASES:
        took, cpu = _measure(order, in_flight, replicas)
        megabytes = _files(in_flight, replicas) * replicas * size_mb
        by_link = in_flight * size_mb / (_DELAY_SECONDS + size_mb / _MB_PER_SECOND)
        ideal = min(by_link, ceiling)
        rows.append(
            {
                "in_flight": in_flight,
                "replicas": replicas,
                "mb_per_s": megabytes / took,
                "ideal_mb_per_s": ideal,
                "limited_by": "link" if by_link <= ceiling else "cpu",
                "efficiency": megabytes / took / ideal,
                "cpu_s_per_gb": 1000 * cpu / megabytes,
            }
        )
    return {
        "delay_ms": 1000 * _DELAY_SECONDS,
        "mb_per_s_per_connection": _MB_PER_SECOND,
        "file_mb": size_mb,
        "ceiling_mb_per_s": ceiling,
        "rows": rows,
    }


def _files(in_flight: int, replicas: int) -> int:
    """Files per process: some rounds where few are in flight, so that start and end weigh little."""
    share = -(-in_flight // replicas)
    return share * (6 if in_flight <= 32 else 2 if in_flight <= 128 else 1)


def _measure(order: Order, in_flight: int, replicas: int) -> tuple[float, float]:
    """(seconds, CPU seconds of all clients) until all processes have put their files."""
    throttle = ["--delay-ms", str(1000 * _DELAY_SECONDS), "--mb-per-second", str(_MB_PER_SECOND)]
    with sink(*throttle) as endpoint, ExitStack() as stack:
        clients = []
        for number in range(replicas):
            share = in_flight // replicas + (number < in_flight % replicas)
            clients.append(stack.enter_context(client("ours", endpoint, share)))
        for number, uploading in enumerate(clients):
            uploading.measure(with_keys(order, f"first-{number}", 1))
        began = time.perf_counter()
        for number, uploading in enumerate(clients):
            uploading.start(with_keys(order, f"r{number}", _files(in_flight, replicas)))
        costs = [uploading.finish() for uploading in clients]
        return time.perf_counter() - began, sum(cost.cpu_seconds for cost in costs)


def _ceiling(order: Order, size_mb: float) -> float:
    """The better of bare puts and ours, the fastest of some rounds each."""
    rates = []
    with sink() as endpoint:
        for way in ("raw", "ours"):
            with client(way, endpoint, _CEILING_CONNECTIONS) as unhindered:
                unhindered.measure(with_keys(order, f"{way}-warm", _CEILING_CONNECTIONS))
                for number in range(3):
                    cost = unhindered.measure(with_keys(order, f"{way}-{number}", _CEILING_FILES))
                    rates.append(_CEILING_FILES * size_mb / cost.seconds)
    return max(rates)
