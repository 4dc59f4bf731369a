"""What an upload takes from a computation beside it: the same matrix products with and without.

`python -m benchmarks.upload_share` answers each line on its standard input, a number of seconds,
with the number of products that one thread has done meanwhile, per second of its own CPU time: how
much of a core it gets is the machine's affair, how much it does with it is what an upload beside it
takes away, in caches and memory bandwidth.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

from benchmarks.upload_children import child, client, sink, with_keys
from benchmarks.upload_ways import Order

_CONNECTIONS = 8
_MB_PER_SECOND = 40.0
_SIZE = 512
#: How many rounds of how many seconds each time, quick or not.
_ROUNDS = {True: (3, 1.0), False: (7, 2.0)}


def measure_slowdown(order: Order, *, quick: bool) -> dict[str, Any]:
    """Median slowdown over rounds; the upload runs at 8 × 40 MB/s, as over a link.

    Each round computes three times: without an upload, beside one, and without again. How far the
    two times without differ is the noise that the slowdown is read in.
    """
    rounds, seconds = _ROUNDS[quick]
    files = int(seconds * 2) * _CONNECTIONS
    slowdowns, noises = [], []
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    with (
        sink("--mb-per-second", str(_MB_PER_SECOND)) as server,
        client("ours", server.endpoint, _CONNECTIONS) as uploading,
        child("benchmarks.upload_share") as computing,
    ):
        assert computing.stdin is not None
        assert computing.stdout is not None

        def rate() -> float:
            computing.stdin.write(f"{seconds}\n")  # type: ignore[union-attr]
            computing.stdin.flush()  # type: ignore[union-attr]
            return float(computing.stdout.readline())  # type: ignore[union-attr]

        rate()
        for number in range(rounds):
            before = rate()
            uploading.start(with_keys(order, f"round-{number}", files))
            beside = rate()
            uploading.finish()
            after = rate()
            slowdowns.append(1 - 2 * beside / (before + after))
            noises.append(1 - after / before)
    return {
        **_spread("slowdown", slowdowns),
        **_spread("noise", noises),
        "upload_mb_per_s": _CONNECTIONS * _MB_PER_SECOND,
    }


def _spread(name: str, values: list[float]) -> dict[str, float]:
    return {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def main() -> None:
    """Compute when told to, until standard input ends."""
    import numpy as np

    left = np.random.default_rng(0).random((_SIZE, _SIZE), dtype=np.float32)
    for line in sys.stdin:
        began, cpu, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < float(line):
            left @ left
            count += 1
        print(count / (time.process_time() - cpu), flush=True)


if __name__ == "__main__":
    main()
