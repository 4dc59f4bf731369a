"""How the uploader's put scales towards a store that is far away: requests in flight, and processes that share them.

Measured is what is sustained. The first files of all begin as fast as a process can begin them, and
the last end alone: both are left out, as a run of hours has them once.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.progress import doing
from benchmarks.upload_children import Client, Server, client, sink, with_keys
from benchmarks.upload_sink import PUTS_PATH
from benchmarks.upload_ways import Order

_DELAY_SECONDS = 0.1
_MB = 1_000_000
#: From this share of what a link, a machine or its processors can do on, they are what is full.
_FULL = 0.9
#: With as many in flight it may be this machine that cannot carry the ideal: bare puts show what it carries.
_MANY = 128
_BARE_PROCESSES = 2
#: How often the sink is asked how many puts it has replied to, and when it is given up.
_LOOK_SECONDS = 0.1
_PATIENCE_SECONDS = 300.0


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


class Measured(msgspec.Struct, frozen=True):
    """What was sustained."""

    mb_per_s: float
    #: Cores that all uploaders, and the sink, had busy.
    clients: float
    sink: float
    #: Share of the machine's processors in use, whoever used them.
    busy: float


def measure_latency(large: Order, small: Order, *, quick: bool) -> dict[str, Any]:
    """Throughput of each case against `in flight × size / (delay + size / rate)`, and against bare puts where there are many."""
    cases = _QUICK_CASES if quick else _CASES
    carried: dict[tuple[int, float], Measured] = {}
    rows: dict[Case, dict[str, Any]] = {}
    for case in cases:
        doing(
            f"latency: {case.in_flight} requests in flight over {case.replicas} processes, {case.mb_per_s_per_connection:g} MB/s each"
        )
        order = large if case.mb_per_s_per_connection == _FAST else small
        kind = (case.in_flight, case.mb_per_s_per_connection)
        if case.in_flight >= _MANY and kind not in carried:
            bare = msgspec.structs.replace(case, replicas=_BARE_PROCESSES)
            carried[kind] = _measure("raw", order, bare)
        rows[case] = _row(order, case, _measure("ours", order, case), carried.get(kind))
    scaling = {
        name: [rows[case]["mb_per_s"] / rows[of[0]]["mb_per_s"] for case in of]
        for name, of in _SCALINGS.items()
        if set(of) <= set(rows)
    }
    return {"delay_ms": 1000 * _DELAY_SECONDS, "rows": list(rows.values()), "scaling": scaling}


def _row(order: Order, case: Case, ours: Measured, bare: Measured | None) -> dict[str, Any]:
    size_mb = _size_mb(order)
    ideal = case.in_flight * size_mb / _cycle_seconds(order, case)
    carried = None if bare is None else bare.mb_per_s
    return {
        **msgspec.to_builtins(case),
        "file_mb": size_mb,
        "mb_per_s": ours.mb_per_s,
        "ideal_mb_per_s": ideal,
        "efficiency": ours.mb_per_s / ideal,
        "bare_puts_mb_per_s": carried,
        "efficiency_of_possible": ours.mb_per_s / min(ideal, carried or ideal),
        "cpu_cores_clients": ours.clients,
        "cpu_cores_sink": ours.sink,
        "cpu_busy_machine": ours.busy,
        "limited_by": limited_by(ours.mb_per_s, ideal, carried, ours.busy),
        "cpu_s_per_gb": 1000 * ours.clients / ours.mb_per_s,
    }


def limited_by(mb_per_s: float, ideal: float, carried: float | None, busy: float) -> str:
    """What keeps a row from carrying more: `link`, `cpu`, `machine` (memory, the sink) or `uploader`.

    `carried` is what bare puts carry with as many in flight; None where that was not measured.
    """
    if mb_per_s >= _FULL * ideal:
        return "link"
    if carried is None or mb_per_s < _FULL * carried:
        return "uploader"
    return "cpu" if busy >= _FULL else "machine"


def _size_mb(order: Order) -> float:
    return Path(order.path).stat().st_size / _MB


def _cycle_seconds(order: Order, case: Case) -> float:
    """How long a file has its connection, at least."""
    return _DELAY_SECONDS + _size_mb(order) / case.mb_per_s_per_connection


def _generations(case: Case) -> tuple[int, int]:
    """(how many files of each connection are let pass, how many are measured): long enough, and not for ever."""
    if case.mb_per_s_per_connection != _FAST or case.in_flight > _MANY:
        return 1, 1
    return 2, 3


def _measure(way: str, order: Order, case: Case) -> Measured:
    throttle = [
        "--delay-ms",
        str(1000 * _DELAY_SECONDS),
        "--mb-per-second",
        str(case.mb_per_s_per_connection),
    ]
    passed, measured = _generations(case)
    with sink(*throttle) as server, ExitStack() as stack:
        shares = [
            case.in_flight // case.replicas + (number < case.in_flight % case.replicas)
            for number in range(case.replicas)
        ]
        clients = [stack.enter_context(client(way, server.endpoint, share)) for share in shares]
        for number, uploading in enumerate(clients):
            uploading.measure(with_keys(order, f"first-{number}", 1))
        for number, (uploading, share) in enumerate(zip(clients, shares, strict=True)):
            # A file more for each than is measured, so that none is without work before the end.
            uploading.start(with_keys(order, f"r{number}", share * (passed + measured + 1)))
            stack.callback(uploading.stop)
        begin = len(clients) + passed * case.in_flight
        end = begin + measured * case.in_flight
        return _between(server, clients, begin, end, _size_mb(order))


def _between(server: Server, clients: list[Client], begin: int, end: int, size_mb: float) -> Measured:
    """What is done from the reply to one put to the reply to a later one, by their numbers."""
    connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"))

    def replied_at() -> list[float]:
        connection.request("GET", PUTS_PATH)
        times: list[float] = msgspec.json.decode(connection.getresponse().read())
        return times

    def used() -> list[float]:
        return [
            time.monotonic(),
            *_machine(),
            server.cpu_seconds(),
            sum(uploading.cpu_seconds() for uploading in clients),
        ]

    _until(lambda: len(replied_at()) >= begin)
    before = used()
    _until(lambda: len(replied_at()) >= end)
    took, idle, ticks, served, sent = (b - a for a, b in zip(before, used(), strict=True))
    times = sorted(replied_at())
    connection.close()
    return Measured(
        mb_per_s=(end - begin) * size_mb / (times[end - 1] - times[begin - 1]),
        clients=sent / took,
        sink=served / took,
        busy=1 - idle / max(1.0, ticks),
    )


def _until(true: Callable[[], bool]) -> None:
    """Look again and again whether it is."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("the uploaders did not get through their files")
        time.sleep(_LOOK_SECONDS)


def _machine() -> tuple[float, float]:
    """(idle, all) CPU time of this machine's processors since it started, in ticks."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)
