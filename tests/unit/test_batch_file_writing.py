"""A batch file while it is written: every byte where the layout has it, and nothing published that is not whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.settings.catalogue import SpoolSettings
from common.spool import Spool
from gpu_worker.agreement import tolerance_for
from gpu_worker.guards import BatchGuard, GuardError
from gpu_worker.host_ring import ChunkTensors
from gpu_worker.taps import StateRows
from gpu_worker.tokens import TokenBatch
from gpu_worker.transfer import check_tensors
from gpu_worker.writer import BatchFile, Canary
from hiddenfeed.checksum import file_checksum
from hiddenfeed.errors import TransientError
from tests.synthetic_run import synthetic_run

RUN = synthetic_run(batches=1, samples_per_batch=6, longest=30, final_state="pre")
SAMPLES, TENSORS, LAYOUT = RUN.batches[0], RUN.tensors(0), RUN.layout(0)
ROWS = LAYOUT.facts.tokens
#: Neither half ends with a sample.
MIDDLE = ROWS // 2
BATCH = TokenBatch(
    batch_id=0,
    source_rows=TENSORS["sample_index"],
    input_ids=TENSORS["input_ids"],
    loss_mask=TENSORS["loss_mask"],
    offsets=TENSORS["offsets"],
    micro_batches=np.array([0, len(SAMPLES)]),
)


def _chunk(first: int, last: int) -> ChunkTensors:
    """These rows, as they come from the device."""
    states, final = (
        torch.from_numpy(TENSORS[name][first:last].view(np.int16).copy()).view(torch.bfloat16)
        for name in ("hidden_states", "final_hidden_states")
    )
    ids = torch.from_numpy(BATCH.input_ids[first:last].astype(np.int64))
    return check_tensors(StateRows(states, final, None), ids)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(SpoolSettings(spool="tiny", spool_dir=str(tmp_path / "spool"), spool_free_bytes=0))


@pytest.fixture
def file(spool: Spool) -> Iterator[BatchFile]:
    """A file that is thrown away unless it was published."""
    part = spool.reserve(RUN.run_id, 0, "t0", LAYOUT.file_size)
    assert part is not None
    identity = RUN.document.identity
    guard = BatchGuard(BATCH, identity.taps, "pre", RUN.document.hidden_size, None)
    with part:
        # The synthetic file says this of itself.
        yield BatchFile(part, LAYOUT, BATCH, guard, {"dtype": "float32"})


@pytest.fixture
def sums() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def _canary(place: int = 2) -> Canary:
    return Canary(place, len(SAMPLES[place].input_ids), tolerance_for(["bfloat16"], median=False))


def test_every_byte_is_where_it_belongs(
    file: BatchFile, sums: ThreadPoolExecutor, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = _canary()
    first = int(BATCH.offsets[canary.sample])
    for start, end in ((0, 1), (1, MIDDLE), (MIDDLE, ROWS)):
        file.append(sums, _chunk(start, end))
    file.keep_canary(canary, _chunk(first, first + canary.tokens))
    file.compare_canary()
    statistics = file.guard.finish()
    assert statistics["canary_source_row"] == str(SAMPLES[canary.sample].source_row)
    assert statistics["canary_error"] == "0"
    # The synthetic file says this of itself.
    monkeypatch.setattr(file.guard, "finish", lambda: {"norm_median": "1.0"})
    finished = file.finish()
    path = spool.resolve(finished.path)
    assert path.read_bytes() == RUN.batch_file(0)
    assert (finished.size_bytes, finished.checksum) == (path.stat().st_size, file_checksum(path))


def test_rows_that_are_missing_keep_the_file_from_being_published(
    file: BatchFile, sums: ThreadPoolExecutor, spool: Spool
) -> None:
    file.append(sums, _chunk(0, MIDDLE))
    with pytest.raises(GuardError, match=f"{MIDDLE} rows computed for {ROWS} tokens"):
        file.finish()
    assert spool.usage().files == 0


@pytest.mark.parametrize("name", ["hidden_states", "final_hidden_states"])
def test_rows_that_were_checked_and_not_written_keep_it_as_well(
    file: BatchFile, sums: ThreadPoolExecutor, spool: Spool, name: str
) -> None:
    file.append(sums, _chunk(0, ROWS))
    column = file._states if name == "hidden_states" else file._final
    assert column is not None
    assert column.place.name == name
    column.rows -= 1
    with pytest.raises(GuardError, match=f"batch 0: its file did not get all of its {ROWS} rows"):
        file.finish()
    assert spool.usage().files == 0


def test_after_a_failed_write_nothing_more_is_taken(
    file: BatchFile, sums: ThreadPoolExecutor, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(TransientError, match="could not be written: No space left on device"):
            file.append(sums, _chunk(0, MIDDLE))
    # What comes next finds the disk in order again, and the file has a hole.
    file.append(sums, _chunk(MIDDLE, ROWS))
    file.keep_canary(_canary(), _chunk(0, 1))
    file.compare_canary()
    with pytest.raises(GuardError):
        file.finish()
    assert spool.usage().files == 0


def test_a_canary_that_is_another_samples_start_is_noticed(file: BatchFile, sums: ThreadPoolExecutor) -> None:
    canary = _canary()
    first = int(BATCH.offsets[canary.sample])
    file.append(sums, _chunk(0, ROWS))
    file.keep_canary(canary, _chunk(first + 1, first + 1 + canary.tokens))
    with pytest.raises(GuardError, match="is not what the model gives for it alone"):
        file.compare_canary()


def test_a_file_that_was_cut_meanwhile_cannot_be_compared(file: BatchFile, sums: ThreadPoolExecutor) -> None:
    file.append(sums, _chunk(0, ROWS))
    file.keep_canary(_canary(), _chunk(0, _canary().tokens))
    os.ftruncate(file.part.fd, LAYOUT.header_bytes)
    with pytest.raises(TransientError, match="could not be read back"):
        file.compare_canary()
