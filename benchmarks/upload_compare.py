"""Several ways to upload the same files to one server, taking turns, and how they compare."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.upload_children import MIB, Client, Server, client, presigned, with_keys
from benchmarks.upload_ways import Cost, Order, s5cmd_put

S5CMD = "s5cmd"
#: These take many times as long as the others, so they may get fewer files and are compared by their rates.
_SLOW = ("upload_file", S5CMD)


@dataclass(frozen=True)
class Cell:
    """One way with one size of file, over all rounds."""

    megabytes: float
    costs: list[Cost] = field(default_factory=list)

    def rates(self) -> list[float]:
        """MB/s of each round."""
        return [self.megabytes / cost.seconds for cost in self.costs]


class Comparison:
    """The ways with one size of file. A size's rounds may go to one server or each to a fresh one."""

    def __init__(
        self, ways: Sequence[str], order: Order, amount_mb: int, slow_mb: int, least_files: int
    ) -> None:
        """A round puts about `amount_mb`, or `slow_mb` by a slow way, and `least_files` at least."""
        self.order = order
        size_mb = Path(order.path).stat().st_size / 1_000_000
        self._counts = {
            way: max(least_files, round((slow_mb if way in _SLOW else amount_mb) / size_mb)) for way in ways
        }
        self.cells = {way: Cell(count * size_mb) for way, count in self._counts.items()}

    def round(
        self, number: int, server: Server, clients: dict[str, Client], threads: int, *, signed: bool = False
    ) -> None:
        """One turn of each; round 0 warms up and does not count. `signed` servers want signatures of bare puts too."""
        ways = list(self.cells)
        for way in ways if number % 2 else reversed(ways):
            named = with_keys(self.order, f"{way}-{Path(self.order.path).stem}-{number}", self._counts[way])
            if way == S5CMD:
                program = s5cmd()
                assert program is not None
                cost = s5cmd_put(program, server.endpoint, threads, named)
            else:
                bare = way == "raw" and signed
                cost = clients[way].measure(presigned(server, named) if bare else named)
            if number:
                self.cells[way].costs.append(cost)

    def summary(self) -> dict[str, Any]:
        """The figures of this size."""
        cells = self.cells
        found: dict[str, Any] = {}
        for other in cells:
            if other != "ours":
                ratios = sorted(
                    a / b for a, b in zip(cells["ours"].rates(), cells[other].rates(), strict=True)
                )
                name = "vs_raw_put" if other == "raw" else f"vs_{other}"
                found[name] = statistics.median(ratios)
                found[f"{name}_min"], found[f"{name}_max"] = ratios[0], ratios[-1]
        if "raw" in cells:
            found["vs_raw_put_of_fastest"] = max(cells["ours"].rates()) / max(cells["raw"].rates())
        return found | {
            "mb_per_s": {way: statistics.median(cell.rates()) for way, cell in cells.items()},
            "cpu_s_per_gb": {
                way: 1000 * statistics.median(cost.cpu_seconds for cost in cell.costs) / cell.megabytes
                for way, cell in cells.items()
            },
            "peak_rss_mb": {way: max(cost.peak_rss_mb for cost in cell.costs) for way, cell in cells.items()},
        }


def clients_of(stack: ExitStack, ways: Sequence[str], server: Server, threads: int) -> dict[str, Client]:
    """A ready process for each way that can stay."""
    return {way: stack.enter_context(client(way, server.endpoint, threads)) for way in ways if way != S5CMD}


def s5cmd() -> Path | None:
    """The program, from the path or from beside this Python."""
    found = shutil.which(S5CMD) or shutil.which(S5CMD, path=str(Path(sys.executable).parent))
    return Path(found) if found else None


def mib_of(order: Order) -> int:
    """The size of an order's file in MiB."""
    return Path(order.path).stat().st_size // MIB
