"""`python -m benchmarks NAME [--json] [--quick] [--only PART]`: one benchmark, its figures as ratios within one run."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import msgspec

from hiddenfeed.errors import HiddenfeedError

#: Benchmark -> the question it answers. Each is a module here with `run(quick=…)` and `describe(results)`.
BENCHMARKS = {
    "extraction": "how much of the device's speed does the worker deliver?",
    "device_loop": "is the device ever idle for the worker's sake?",
    "gpu_check": "does a GPU of this machine compute what it should, and how fast?",
    "control_plane": "what does the queue cost, and how many GPUs can one Redis feed?",
    "upload": "how much of a bare put's speed does the uploader deliver, and what does it cost?",
    "reading": "how fast does a run come back for training?",
    "monitor": "what does the monitor cost Redis?",
    "eta": "how far off is the time that is said to be left?",
    "prepare": "how fast, and in how much memory, is a run prepared?",
    "prepare_million": "the same for a million conversations",
    "makespan": "how much sooner does a queue of equal batches end than shards, and how near to the ideal?",
    "recovery": "how long until the work of a killed process goes on?",
}


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark; returns the exit code."""
    names = "\n".join(f"  {name:15} {question}" for name, question in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n\nbenchmarks:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=BENCHMARKS, metavar="NAME", help="which benchmark")
    parser.add_argument(
        "--json", action="store_true", help="print the results as one JSON object on the last line"
    )
    parser.add_argument("--quick", action="store_true", help="a minute or less, for a first idea")
    parser.add_argument(
        "--only", metavar="PART", help="one part of a benchmark that has several, as `upload` has"
    )
    chosen = parser.parse_args(arguments)
    benchmark = importlib.import_module(f"benchmarks.{chosen.name}")
    part = {}
    if chosen.only is not None:
        parts = getattr(benchmark, "PARTS", ())
        if chosen.only not in parts:
            parser.error(f"{chosen.name} has no part {chosen.only!r}; it has {', '.join(parts) or 'none'}")
        part = {"only": chosen.only}
    try:
        results = benchmark.run(quick=chosen.quick, **part)
    except HiddenfeedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for line in benchmark.describe(results):
        print(line)
    if chosen.json:
        printed = {"benchmark": chosen.name, "quick": chosen.quick, **results}
        print(msgspec.json.encode(printed).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
