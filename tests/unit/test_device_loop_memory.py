"""Out of memory: micro-batches are halved, remembered, and nothing is lost; a sample alone that fails is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from gpu_worker.device_loop import is_device_lost
from gpu_worker.host_ring import RowShape, Slot
from gpu_worker.micro_batch import canary_sample, pack, split
from gpu_worker.tokens import TokenBatch
from hiddenfeed.errors import TransientError
from hiddenfeed.proof import QuarantineNote
from tests.extraction import extract, read_file, tiny_run


class SmallMemory:
    """A model that runs out of memory above a number of padded tokens, as CUDA would."""

    def __init__(self, model: Any, limit: int, error: RuntimeError | None = None) -> None:
        self.limit, self.error = limit, error or torch.OutOfMemoryError("Tried to allocate 2 GiB")
        self.asked: list[tuple[int, ...]] = []
        self._forward = model.forward
        model.forward = self

    def __call__(self, ids: torch.Tensor, rows: Any) -> None:
        self.asked.append(tuple(ids.shape))
        if ids.numel() > self.limit:
            raise self.error
        self._forward(ids, rows)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_halved_batches_hold_the_same_states(tmp_path: Path, error: RuntimeError) -> None:
    run = tiny_run(tmp_path, lengths=np.full(24, 20), micro_batch_tokens=160)
    spool = run.spool()
    with run.extractor(spool) as (extractor, service), service.use(run.run_id) as served:
        upload = extract(extractor, run.manifests[0])
        assert not upload.report.halvings
        whole = read_file(spool.resolve(upload.path))
        memory = SmallMemory(served.engine.model, limit=45, error=error)
        upload = extract(extractor, run.manifests[0])
        halved = read_file(spool.resolve(upload.path))
        sizes = [rows * length for rows, length in memory.asked]
        assert sizes[0] > 45
        assert sizes[1] <= sizes[0] // 2
        assert upload.report.halvings == sum(size > 45 for size in sizes)
        again = len(memory.asked)
        extract(extractor, run.manifests[1])
        # What does not fit is remembered: nothing is tried in vain any more.
        assert all(rows * length <= 45 for rows, length in memory.asked[again:])
        # And the same batch has the same bytes, although this time nothing had to be halved.
        upload = extract(extractor, run.manifests[0])
        assert not upload.report.halvings
        assert spool.resolve(upload.path).read_bytes() == halved.data
    np.testing.assert_allclose(halved.states, whole.states, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(halved.tensors["input_ids"], whole.tensors["input_ids"])


def test_sample_that_does_not_fit_alone_is_quarantined_and_named(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, lengths=np.array([60, 20, 20, 20]), micro_batch_tokens=40)
    spool = run.spool()
    with run.extractor(spool) as (extractor, service), service.use(run.run_id) as served:
        SmallMemory(served.engine.model, limit=50)
        uploads = [extract(extractor, run.manifests[batch_id]) for batch_id in range(len(run.manifests))]
    notes = [upload for upload in uploads if upload.path.endswith(".json")]
    assert [upload.batch.longest for upload in notes] == [60]
    note = msgspec.json.decode(spool.resolve(notes[0].path).read_bytes(), type=QuarantineNote)
    assert note.reason == "the sample in source row 0, 60 tokens, does not fit into the memory of cpu"


def test_a_check_that_does_not_fit_quarantines_what_could_not_be_checked(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, lengths=np.full(24, 20), micro_batch_tokens=160)
    spool = run.spool()
    with run.extractor(spool) as (extractor, service), service.use(run.run_id) as served:
        healthy = served.engine.model.forward

        def forward(ids: torch.Tensor, rows: Any) -> None:
            # The canary alone is a sample by itself here.
            if len(ids) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            healthy(ids, rows)

        served.engine.model.forward = forward  # type: ignore[method-assign]
        upload = extract(extractor, run.manifests[0])
    assert "/quarantine/" in upload.key
    assert upload.report.guards == {"reason": "no room in the memory of cpu for 20 tokens"}
    assert upload.report.failed_checks == {"memory": upload.batch.samples}


def test_memory_that_ran_out_is_no_device_that_is_lost() -> None:
    assert is_device_lost(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_device_lost(RuntimeError("CUDA error: out of memory"))
    assert not is_device_lost(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
    )


def test_host_memory_that_cannot_be_had_is_tried_again_later() -> None:
    shape = RowShape(taps=1, hidden_size=1 << 20, dtype=torch.bfloat16, final=False)
    with pytest.raises(TransientError, match=r"a buffer of \d+ bytes of memory for states cannot be had"):
        Slot(pinned=False).tensors(shape, 1 << 40)


def test_other_errors_of_the_model_are_not_taken_for_memory(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    with run.extractor() as (extractor, service), service.use(run.run_id) as served:

        def forward(ids: torch.Tensor, rows: Any) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        served.engine.model.forward = forward  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="illegal memory access"):
            extract(extractor, run.manifests[0])
        # The host buffer came back, and so did the turn: the next job does not hang.
        del served.engine.model.forward
        assert extract(extractor, run.manifests[0]).path
    assert run.spool().usage().part_bytes == 0


def _batch(lengths: list[int], micro_batches: list[int], batch_id: int = 0) -> TokenBatch:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenBatch(
        batch_id=batch_id,
        source_rows=np.arange(len(lengths)),
        input_ids=np.arange(1, offsets[-1] + 1, dtype=np.int32),
        loss_mask=np.zeros(offsets[-1], np.uint8),
        offsets=offsets,
        micro_batches=np.array(micro_batches),
    )


def test_split_cuts_to_the_limit_and_keeps_the_order() -> None:
    lengths = np.array([9, 8, 5, 4, 4, 2, 30, 1])
    planned = [(0, 1), (1, 6), (6, 7), (7, 8)]
    assert split(lengths, planned, None) == planned
    assert split(lengths, planned, 40) == planned
    assert split(lengths, planned, 16) == [(0, 1), (1, 3), (3, 6), (6, 7), (7, 8)]
    # A sample that is longer than the limit runs alone.
    assert split(lengths, planned, 1) == [(sample, sample + 1) for sample in range(8)]


def test_pack_pads_on_the_right_and_finds_the_real_tokens() -> None:
    packed = pack(_batch([3, 2, 1], [0, 3]), 0, 3)
    assert packed.ids.tolist() == [[1, 2, 3], [4, 5, 0], [6, 0, 0]]
    assert packed.real is not None
    assert packed.real.tolist() == [0, 1, 2, 3, 4, 6]
    assert packed.tokens == 6


def test_pack_without_padding_needs_no_places() -> None:
    packed = pack(_batch([2, 2, 4], [0, 2, 3]), 0, 2)
    assert packed.ids.tolist() == [[1, 2], [3, 4]]
    assert packed.real is None


def test_pack_cuts_a_sample_alone() -> None:
    packed = pack(_batch([2, 5], [0, 2]), 1, 2, limit=3)
    assert packed.ids.tolist() == [[3, 4, 5]]


def test_canary_is_the_most_padded_of_a_shared_micro_batch() -> None:
    lengths, micro_batches = [9, 8, 5, 4, 4, 2], [0, 1, 3, 6]
    assert canary_sample(_batch(lengths, micro_batches, batch_id=0)) == 2
    assert canary_sample(_batch(lengths, micro_batches, batch_id=1)) == 5
    assert canary_sample(_batch(lengths, micro_batches, batch_id=2)) == 2


def test_canary_is_no_sample_of_a_few_tokens_where_there_is_another() -> None:
    lengths, micro_batches = [40, 34, 17, 16, 15, 3, 9, 8], [0, 1, 6, 8]
    for batch_id in range(3):
        assert canary_sample(_batch(lengths, micro_batches, batch_id=batch_id)) == 3


def test_canary_where_every_sample_is_alone() -> None:
    assert canary_sample(_batch([4, 3], [0, 1, 2], batch_id=3)) == 1
