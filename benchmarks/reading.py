"""How fast does a run come back for training?

A run of random states is put into a folder and into a real S3 server. Measured in turn, for each of the two: an
epoch of training batches in shuffled order, all batch files read whole by as many threads, and samples drawn at
random one after the other.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.planned_run import RunSpec, mixed_lengths, put_run
from benchmarks.progress import doing
from benchmarks.scratch import scratch
from hiddenfeed.batch_layout import BatchFacts, BatchLayout, encode_header
from hiddenfeed.checksum import checksum_of
from hiddenfeed.inventory import load_document
from hiddenfeed.layout import batch_key
from hiddenfeed.options import StoreOptions
from hiddenfeed.parallel import map_bounded
from hiddenfeed.plan_file import PlanFile
from hiddenfeed.reader import RunReader, open_run
from hiddenfeed.store import Store, open_store
from hiddenfeed.training import TrainingBatches
from standalone.servers import start_s3

_THREADS = 8


@dataclass(frozen=True)
class Scale:
    """How much is read."""

    samples: int
    rounds: int
    drawn: int


_FULL, _QUICK = Scale(samples=800, rounds=5, drawn=400), Scale(samples=200, rounds=3, drawn=100)


def run(*, quick: bool) -> dict[str, Any]:
    """Measure; `epoch_efficiency` of each store is an epoch's bytes per second over those of whole files."""
    scale = _QUICK if quick else _FULL
    spec = RunSpec(
        model="bench",
        model_identity="bench",
        hidden_size=1024,
        num_blocks=12,
        vocabulary=1000,
        taps=(2, 6, 10),
        batch_tokens=4096,
    )
    with ExitStack() as stack:
        folder = stack.enter_context(scratch(scale.samples * 10_000_000))
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hfbench-")))
        server = start_s3(home / "s3", "bench")
        stack.callback(server.stop)
        stack.enter_context(patch.dict(os.environ, server.environment()))
        places = {
            "folder": (str(folder / "runs"), StoreOptions()),
            "s3": ("s3://bench/runs", StoreOptions(s3_endpoint=server.endpoint)),
        }
        return {name: _measure(*place, spec, scale) for name, place in places.items()}


def describe(results: dict[str, Any]) -> list[str]:
    """The results for people."""
    return [
        f"{name}: an epoch {found['epoch_mb_per_s']:,.0f} MB/s, {found['epoch_efficiency']:.2f} "
        f"({found['epoch_efficiency_min']:.2f} to {found['epoch_efficiency_max']:.2f}) of whole files; "
        f"a sample at random {found['sample_ms']:.1f} ms, {found['sample_mb_per_s']:,.0f} MB/s"
        for name, found in results.items()
    ]


def _measure(url: str, options: StoreOptions, spec: RunSpec, scale: Scale) -> dict[str, Any]:
    store = open_store(url, options)
    store.check(create=True)
    document, manifests = put_run(store, spec, mixed_lengths(scale.samples, 200, 2000))
    for manifest in manifests:
        _put_batch(store, document.run_id, manifest.batch_id)
    reader = open_run(url, document.run_id, options)
    batches = TrainingBatches(reader, tokens=8192, threads=_THREADS)
    taken: dict[str, list[float]] = {"epoch": [], "whole": [], "drawn": []}
    ways: dict[str, Callable[[int], float]] = {
        "epoch": lambda number: float(sum(int(batch.lengths.sum()) for batch in batches.epoch(number))),
        "whole": lambda number: float(_read_whole(reader)),
        "drawn": lambda number: float(_draw(reader, number, scale.drawn)),
    }
    for number in range(scale.rounds + 1):
        doing(f"{url}: round {number} of {scale.rounds}")
        for name in sorted(ways, reverse=number % 2 == 1):
            began = time.perf_counter()
            tokens = ways[name](number)
            # The first round fills caches.
            if number:
                taken[name].append(tokens / (time.perf_counter() - began))
    per_token = reader.info().size_bytes / reader.info().tokens_stored / 1e6
    ratios = [epoch / whole for epoch, whole in zip(taken["epoch"], taken["whole"], strict=True)]
    drawn = statistics.median(taken["drawn"])
    return {
        "epoch_efficiency": statistics.median(ratios),
        "epoch_efficiency_min": min(ratios),
        "epoch_efficiency_max": max(ratios),
        "epoch_mb_per_s": statistics.median(taken["epoch"]) * per_token,
        "whole_mb_per_s": statistics.median(taken["whole"]) * per_token,
        "sample_mb_per_s": drawn * per_token,
        "sample_ms": 1000 * float(reader.lengths.mean()) / drawn,
        "sample_mb": float(reader.lengths.mean()) * per_token,
        "files": len(manifests),
        "size_mb": reader.info().size_bytes / 1e6,
    }


def _read_whole(reader: RunReader) -> int:
    """Every batch file, checked as training does: by its header alone. Returns the tokens."""
    keys = [batch_key(reader.run_id, batch) for batch in reader.batch_ids]
    for _ in map_bounded(reader.store.read, keys, _THREADS):
        pass
    return int(reader.lengths.sum())


def _draw(reader: RunReader, seed: int, count: int) -> int:
    """Samples at random, one after the other; returns the tokens."""
    positions = np.random.default_rng(seed).integers(0, len(reader), count).tolist()
    return sum(len(reader.read(position)) for position in positions)


def _put_batch(store: Store, run_id: str, batch_id: int) -> None:
    """A batch file of random bits."""
    planned = PlanFile(store, run_id).batch(batch_id)
    document = load_document(store, run_id)
    layout = BatchLayout(
        BatchFacts.of_run(document, batch_id, tokens=planned.tokens, samples=planned.samples)
    )
    random = np.random.default_rng(batch_id)
    known = {
        "offsets": np.concatenate([[0], np.cumsum(planned.lengths)]).astype(np.int64).tobytes(),
        "sample_index": planned.source_rows.astype(np.int64).tobytes(),
    }
    body = {place.name: known.get(place.name) or random.bytes(place.size_bytes) for place in layout.tensors}
    checksums = {name: checksum_of(data) for name, data in body.items()}
    store.write(batch_key(run_id, batch_id), encode_header(layout, checksums, {}) + b"".join(body.values()))
