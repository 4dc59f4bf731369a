"""How the uploader's put scales towards a store that is far away: requests in flight, and processes that share them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.upload_children import client, sink, with_keys
from benchmarks.upload_ways import Order

_DELAY_SECONDS = 0.1
_MB = 1_000_000
#: From this share of the machine's processors on, whoever uses them, they are what is full.
_FULL = 0.9
#: From this share of the ideal on, the link is.
_LINK_FULL = 0.9


class Case(msgspec.Struct, frozen=True):
    """One row."""

    #: Over all processes.
    in_flight: int
    replicas: int
    mb_per_s_per_connection: float


def _cases(pairs: tuple[tuple[int, int], ...], rate: float) -> list[Case]:
    return [Case(in_flight, replicas, rate) for in_flight, replicas in pairs]


#: Connections as fast as those of a data centre: few of them fill a machine of two cores.
_FAST = 40.0
#: So slow that hundreds of them do not, so that what hundreds in flight cost is seen.
_SLOW = 2.0
_CASES = [
    *_cases(((8, 1), (8, 2), (8, 4), (16, 2), (32, 1), (32, 2), (32, 4)), _FAST),
    *_cases(((128, 1), (128, 2), (128, 4), (500, 1), (500, 2), (500, 4)), _FAST),
    *_cases(((125, 1), (250, 2), (500, 1), (500, 2), (500, 4)), _SLOW),
]
_QUICK_CASES = [*_cases(((8, 1), (32, 4)), _FAST), *_cases(((500, 2),), _SLOW)]
#: As many in flight for each process, over 1, 2 and 4.
_SCALINGS = {
    "8 in flight each at 40 MB/s": _cases(((8, 1), (16, 2), (32, 4)), _FAST),
    "125 in flight each at 2 MB/s": _cases(((125, 1), (250, 2), (500, 4)), _SLOW),
}


def measure_latency(large: Order, small: Order, *, quick: bool) -> dict[str, Any]:
    """Throughput of each case against `in flight × size / (delay + size / rate)`, and which part of the machine it took."""
    cases = _QUICK_CASES if quick else _CASES
    rows = {case: _row(large if case.mb_per_s_per_connection == _FAST else small, case) for case in cases}
    scaling = {
        name: [rows[case]["mb_per_s"] / rows[of[0]]["mb_per_s"] for case in of]
        for name, of in _SCALINGS.items()
        if set(of) <= set(rows)
    }
    return {"delay_ms": 1000 * _DELAY_SECONDS, "rows": list(rows.values()), "scaling": scaling}


def _row(order: Order, case: Case) -> dict[str, Any]:
    size_mb = Path(order.path).stat().st_size / _MB
    took, clients, server, busy = _measure(order, case)
    megabytes = _files(case) * case.replicas * size_mb
    ideal = case.in_flight * size_mb / (_DELAY_SECONDS + size_mb / case.mb_per_s_per_connection)
    efficiency = megabytes / took / ideal
    return {
        **msgspec.to_builtins(case),
        "file_mb": size_mb,
        "mb_per_s": megabytes / took,
        "ideal_mb_per_s": ideal,
        "efficiency": efficiency,
        "cpu_cores_clients": clients / took,
        "cpu_cores_sink": server / took,
        "cpu_busy_machine": busy,
        "limited_by": "link" if efficiency >= _LINK_FULL or busy <= _FULL else "cpu",
        "cpu_s_per_gb": 1000 * clients / megabytes,
    }


def _files(case: Case) -> int:
    """Files per process: some rounds where few are in flight, so that start and end weigh little."""
    rounds = 4 if case.in_flight <= 32 else 2 if case.in_flight == 128 else 1
    return -(-case.in_flight // case.replicas) * rounds


def _machine() -> tuple[float, float]:
    """(idle, all) CPU time of this machine's processors since it started, in ticks."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _measure(order: Order, case: Case) -> tuple[float, float, float, float]:
    """(seconds, CPU seconds of all clients, of the server, share of the machine in use) until all files are there."""
    throttle = [
        "--delay-ms",
        str(1000 * _DELAY_SECONDS),
        "--mb-per-second",
        str(case.mb_per_s_per_connection),
    ]
    with sink(*throttle) as server, ExitStack() as stack:
        clients = []
        for number in range(case.replicas):
            share = case.in_flight // case.replicas + (number < case.in_flight % case.replicas)
            clients.append(stack.enter_context(client("ours", server.endpoint, share)))
        for number, uploading in enumerate(clients):
            uploading.start(with_keys(order, f"first-{number}", 1))
        for uploading in clients:
            uploading.finish()
        idle, all_ticks = _machine()
        before, began = server.cpu_seconds(), time.perf_counter()
        for number, uploading in enumerate(clients):
            uploading.start(with_keys(order, f"r{number}", _files(case)))
        costs = [uploading.finish() for uploading in clients]
        took = time.perf_counter() - began
        idle_now, all_now = _machine()
        busy = 1 - (idle_now - idle) / max(1.0, all_now - all_ticks)
        return took, sum(cost.cpu_seconds for cost in costs), server.cpu_seconds() - before, busy
