"""How fast, and in how much memory, does the producer prepare a run, held against its tokenizer alone?"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.conversations import write_conversations, write_model_folder
from benchmarks.progress import doing
from common.processors import allowed_processors

SIZES, QUICK_SIZES = (10_000, 100_000), (1000, 4000)
#: Rounds of preparation and bare tokenizer in turn: of most sizes, and of those that take minutes.
ROUNDS, LARGE_ROUNDS = 5, 3
#: Conversations from which a size is large, and above which it takes too long (and its texts too much memory) for a ratio.
_LARGE, _LARGEST = 50_000, 100_000
#: Not `-m`: the processes of a crew would begin with this module again, which they never do below `python -m producer`.
_CHILD = "import sys; from benchmarks.prepare_child import main; main(sys.argv[1:])"
_LOOK_SECONDS = 0.1


def run(*, quick: bool) -> dict[str, Any]:
    """Measure the sizes that a few minutes allow."""
    return measure(QUICK_SIZES if quick else SIZES, quick=quick)


def measure(sizes: Sequence[int], *, quick: bool) -> dict[str, Any]:
    """Prepare data of each size in a process of its own; the ratio that counts is that of the largest size with one."""
    with tempfile.TemporaryDirectory(prefix="hiddenfeed-bench-") as name:
        folder = Path(name)
        write_model_folder(folder / "model")
        found: list[dict[str, Any]] = []
        for size in sizes:
            doing(f"{size:,} conversations")
            write_conversations(folder / "data.jsonl", size)
            found.append({"rows": size, **_child(folder, "prepare", 1)})
            if size <= _LARGEST:
                found[-1] |= _ratios(folder, 1 if quick else LARGE_ROUNDS if size >= _LARGE else ROUNDS)
    compared = [size for size in found if "vs_tokenizer" in size][-1]
    last = found[-1]
    return {
        "cores": allowed_processors(),
        "sizes": found,
        "rows_per_s": last["rows"] / last["seconds"],
        "peak_rss_bytes": last["peak_rss_bytes"],
        "growth_seconds": _growth(found, "seconds"),
        "growth_memory": _growth(found, "peak_rss_bytes"),
        **{name: value for name, value in compared.items() if name.startswith("vs_tokenizer")},
        "vs_tokenizer_aim": 0.8,
    }


def _ratios(folder: Path, rounds: int) -> dict[str, float]:
    measured = _child(folder, "ratio", rounds)
    ratios, cpu_ratios = measured["ratios"], measured["cpu_ratios"]
    return {
        "vs_tokenizer": statistics.median(ratios),
        "vs_tokenizer_min": min(ratios),
        "vs_tokenizer_max": max(ratios),
        "vs_tokenizer_cpu": statistics.median(cpu_ratios),
    }


def describe(results: dict[str, Any]) -> list[str]:
    """The figures for people."""
    lines = [
        f"{size['rows']:,} conversations, {size['tokens'] / size['rows']:,.0f} tokens each: {size['seconds']:,.1f} s, "
        f"{size['rows'] / size['seconds']:,.0f} rows/s, peak {size['peak_rss_bytes'] / 2**20:,.0f} MiB in all processes, "
        f"{size['waste']:.2%} padding"
        for size in results["sizes"]
    ]
    ratios = [
        f"{size['rows']:,} conversations: {size['vs_tokenizer']:.2f} of the speed of the bare tokenizer on "
        f"{results['cores']} cores ({size['vs_tokenizer_min']:.2f} to {size['vs_tokenizer_max']:.2f}; aim "
        f"{results['vs_tokenizer_aim']}); {size['vs_tokenizer_cpu']:.2f} by processors' seconds"
        for size in results["sizes"]
        if "vs_tokenizer" in size
    ]
    growth = f"time grows with rows to the power of {results['growth_seconds']:.2f}, memory {results['growth_memory']:.2f}"
    return [*lines, growth, *ratios]


def _growth(found: list[dict[str, Any]], name: str) -> float:
    """The largest exponent between neighbouring sizes: 1 is linear."""
    return (
        max(
            math.log(larger[name] / smaller[name]) / math.log(larger["rows"] / smaller["rows"])
            for smaller, larger in pairwise(found)
        )
        if len(found) > 1
        else math.nan
    )


def _child(folder: Path, what: str, rounds: int) -> dict[str, Any]:
    """Run one measurement in a fresh process; adds the peak memory of it and all of its children."""
    words = [sys.executable, "-c", _CHILD, str(folder), what, str(rounds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        peak, ended = [0], threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peak, ended))
        watcher.start()
        output, _ = process.communicate()
        ended.set()
        watcher.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    result: dict[str, Any] = msgspec.json.decode(output.splitlines()[-1])
    return {**result, "peak_rss_bytes": peak[0]}


def _watch(pid: int, peak: list[int], ended: threading.Event) -> None:
    while not ended.wait(_LOOK_SECONDS):
        peak[0] = max(peak[0], sum(_resident(each) for each in _tree(pid)))


def _tree(pid: int) -> list[int]:
    """A process and its descendants, as far as they are still there."""
    found = [pid]
    for each in found:
        for tasks in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in tasks.read_text().split()]
            except OSError:
                continue
    return found


def _resident(pid: int) -> int:
    """Bytes of a process in memory, each shared page by its share."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
