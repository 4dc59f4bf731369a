"""Host memory of the device loop does not grow with the file: buffers are handed round, and nothing is kept of a file."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from gpu_worker.guards import BatchGuard
from gpu_worker.service import ServedRun
from gpu_worker.tokens import TokenBatch
from gpu_worker.writer import BatchFile
from hiddenfeed.batch_file import BatchFacts, BatchLayout
from tests.extraction import TinyRun, tiny_run
from tests.tiny_models import HIDDEN, VOCABULARY

#: Samples of one micro-batch, and their length.
ROWS, LENGTH = 8, 64
TAPS = (0, 1, 2, 3, 4)


class _HeapFacts(ctypes.Structure):
    """glibc's `struct mallinfo2`; malloc(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]  # fmt: skip


def _heap() -> Callable[[], int]:
    """How many bytes are allocated, by whomever: tensors and arrays alike. Skips where the C library does not say."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("the C library does not tell how much is allocated")
    ask.restype = _HeapFacts

    def taken() -> int:
        facts = ask()
        return int(facts.uordblks) + int(facts.hblkhd)

    return taken


@dataclass
class _Peak:
    """Most bytes while a file was written, beyond those before."""

    bytes: int = 0


@contextmanager
def _measured(file: BatchFile) -> Iterator[_Peak]:
    """Looks at every write of a chunk."""
    taken, peak, write_at = _heap(), _Peak(), file.part.write_at
    before = taken()

    def write(data: Any, offset: int) -> None:
        write_at(data, offset)
        peak.bytes = max(peak.bytes, taken() - before)

    file.part.write_at = write  # type: ignore[method-assign]
    yield peak


def _batch(micro_batches: int) -> TokenBatch:
    samples = micro_batches * ROWS
    tokens = samples * LENGTH
    return TokenBatch(
        batch_id=0,
        source_rows=np.arange(samples),
        input_ids=np.random.default_rng(0).integers(3, VOCABULARY, tokens).astype(np.int32),
        loss_mask=np.ones(tokens, np.uint8),
        offsets=np.arange(0, tokens + 1, LENGTH),
        micro_batches=np.arange(0, samples + 1, ROWS),
    )


def _written(run: TinyRun, served: ServedRun, micro_batches: int) -> tuple[int, tuple[int, int], int]:
    """Peak bytes, number and largest size of the ring's buffers, and bytes of the file, of so many micro-batches."""
    batch, document = _batch(micro_batches), run.document
    layout = BatchLayout(BatchFacts.of_run(document, 0, tokens=batch.tokens, samples=batch.samples))
    part = run.spool().reserve(run.run_id, 0, uuid4().hex, layout.file_size)
    assert part is not None
    with part:
        guard = BatchGuard(batch, TAPS, "none", HIDDEN, served.engine.baseline)
        file = BatchFile(part, layout, batch, guard)
        with _measured(file) as peak:
            served.engine.loop.extract(file)
        file.finish()
    # How many of them are in use, and so have a size, depends on how far the writer is behind.
    buffers = [slot.size_bytes for slot in served.engine.loop._ring._all]
    return peak.bytes, (len(buffers), max(buffers)), layout.file_size


def test_a_file_of_four_times_as_many_micro_batches_takes_no_more_memory(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, taps=TAPS)
    with run.extractor() as (_, service), service.use(run.run_id) as served:
        # Whatever is made once is made now.
        _written(run, served, 4)
        small, ring, small_file = _written(run, served, 8)
        large, ring_after, large_file = _written(run, served, 32)
    assert large_file > 3.9 * small_file
    assert ring_after == ring
    # A norm for each state of a token is kept, for the medians: here 3% of the file, and 0.04% at a width of 5120.
    assert large - small < 0.1 * (large_file - small_file)
