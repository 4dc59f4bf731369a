"""The loop that keeps the device busy: micro-batch after micro-batch, states handed to the writer's thread.

Jobs of several batches call `extract` at the same time. One of them computes; others wait with their
tokens read and their files open, or drain what they have computed. Nothing in the loop waits for the
device, and the only thing it waits for at all is a free host buffer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from common.logs import get_logger
from gpu_worker.agreement import Tolerance
from gpu_worker.budget import MemoryProbe, tokens_for_threads, tokens_that_fit
from gpu_worker.host_ring import ChunkTensors, Ring, RowShape, Slot
from gpu_worker.micro_batch import MicroBatch, canary_sample, canary_tokens, pack, split
from gpu_worker.salvage import CheckError, SampleError
from gpu_worker.taps import StateRows, TapModel
from gpu_worker.tokens import TokenBatch
from gpu_worker.transfer import Landing, Transfer, check_tensors, transfer_for
from gpu_worker.writer import BatchFile, Canary
from hiddenfeed.words import count_text

log = get_logger("device")

#: Host buffers: one filled, one landing, one written, one to spare.
SLOTS = 4
#: Shape of the forward pass that the device's memory is measured with.
_PROBE_ROWS, _PROBE_LENGTH = 4, 512
#: How often a job that waits for the device looks whether the process is to stop.
_LOOK_SECONDS = 0.2

#: What the writer's thread does with rows that landed.
Deliver = Callable[[ChunkTensors], None]


class Stopped(Exception):  # noqa: N818 - not a failure
    """The process is to stop and the batch had not begun."""


@dataclass
class LoopReport:
    """How the device spent its time on one batch."""

    forward_seconds: float = 0.0
    #: Of them in the one that computes a sample a second time.
    canary_seconds: float = 0.0
    #: Device time between forward passes.
    stall_seconds: float = 0.0
    padded_tokens: int = 0
    #: Forward passes that were halved because memory ran out.
    halvings: int = 0


@dataclass
class _Progress:
    """The batch that computes now."""

    file: BatchFile
    marks: list[tuple[Any, Any]] = field(default_factory=list)
    written: deque[Future[None]] = field(default_factory=deque)
    padded_tokens: int = 0
    halvings: int = 0


class DeviceLoop:
    """One model on one device, with its host buffers and its writer thread."""

    def __init__(
        self,
        model: TapModel,
        dtype: torch.dtype,
        tolerance: Tolerance,
        *,
        limit: int | None = None,
        transfer: Transfer | None = None,
        writer: Executor | None = None,
        slots: int = SLOTS,
    ) -> None:
        """`dtype` is the one states are stored in, `limit` the padded tokens of a forward pass at most.

        `transfer` and `writer` stand in for those of the model's device and for the writer's thread.
        """
        self._model = model
        self._shape = RowShape(
            len(model.selection.taps), model.hidden_size, dtype, model.selection.final_state != "none"
        )
        self._tolerance = tolerance
        self._transfer = transfer or transfer_for(model.device)
        self._ring = Ring(slots, pinned=self._transfer.pinned)
        self._writer = writer or ThreadPoolExecutor(
            1, thread_name_prefix="writer", initializer=self._transfer.enter
        )
        #: Checksums of what the writer writes.
        self._sums = ThreadPoolExecutor(1, thread_name_prefix="checksum")
        self._computing = threading.Lock()
        #: Padded tokens of a forward pass at most; lowered when memory runs out.
        self.limit = limit

    def close(self) -> None:
        """End the threads; no batch may be running."""
        self._writer.shutdown()
        self._sums.shutdown()

    def extract(self, file: BatchFile, stopping: Callable[[], bool] = lambda: False) -> LoopReport:
        """Compute all rows of the file's batch and return when they are written and checked.

        Raises `Stopped` if `stopping` turns true before the batch began, GuardError for states that
        must not be stored, DataError for a sample that does not fit into memory even alone, and
        TransientError if the disk refuses. Whatever it raises, nothing writes to the file any more.
        """
        progress = _Progress(file)
        self._transfer.enter()
        try:
            with self._turn(stopping):
                self._compute(progress)
                self._recompute_canary(progress)
            for written in progress.written:
                written.result()
            file.compare_canary()
        finally:
            wait(progress.written)
        return self._report(progress)

    def passes(self, batch: TokenBatch) -> list[tuple[int, int]]:
        """`[first, last)` of the samples of every forward pass, as planned or in pieces, in file order."""
        return split(batch.lengths, list(pairwise(batch.micro_batches.tolist())), self.limit)

    def choose_limit(self, known_ids: Sequence[int]) -> int:
        """Set the limit to what the device's memory, or the CPU, is good for; `known_ids` are for one forward pass."""
        self._transfer.enter()
        free = self._transfer.free_bytes()
        if free is None:
            self.limit = tokens_for_threads(torch.get_num_threads())
            return self.limit
        longest = min(_PROBE_LENGTH, self._model.max_positions or _PROBE_LENGTH)
        ids = torch.from_numpy(np.resize(np.array(known_ids, np.int64), (_PROBE_ROWS, longest)))
        micro_batch = MicroBatch(ids, None, ids.numel())
        host = Slot(pinned=False).tensors(self._shape, micro_batch.tokens)
        peak = self._transfer.peak_bytes(lambda: self._ask(micro_batch, host))
        self._transfer.reclaim()
        free = self._transfer.free_bytes()
        row_bytes = self._shape.states * self._shape.hidden_size * self._shape.dtype.itemsize
        self.limit = tokens_that_fit(MemoryProbe(micro_batch.tokens, peak, free or 0, row_bytes))
        return self.limit

    @contextmanager
    def _turn(self, stopping: Callable[[], bool]) -> Iterator[None]:
        """Wait for the device to be ours."""
        while not self._computing.acquire(timeout=_LOOK_SECONDS):
            if stopping():
                raise Stopped
        try:
            if stopping():
                raise Stopped
            yield
        finally:
            self._computing.release()

    def _compute(self, progress: _Progress) -> None:
        """Run the planned micro-batches in order, in pieces where they do not fit."""
        batch = progress.file.batch
        waiting = deque(self.passes(batch))
        while waiting:
            first, last = waiting.popleft()
            if not self._run(progress, first, last):
                # All that are left: what follows is no smaller.
                waiting = deque(split(batch.lengths, [(first, last), *waiting], self.limit))
            while progress.written and progress.written[0].done():
                progress.written.popleft().result()

    def _run(self, progress: _Progress, first: int, last: int) -> bool:
        """One forward pass over samples `[first, last)`; False if they are too many for the memory."""
        batch, file = progress.file.batch, progress.file
        padded = (last - first) * int(batch.lengths[first:last].max())
        alone = last - first == 1
        micro_batch = pack(batch, first, last)
        deliver = partial(file.append, self._sums)
        if self._forward(progress, micro_batch, deliver):
            return True
        self._recover(progress)
        if not alone:
            self.limit = padded // 2
            progress.halvings += 1
            log.warning(
                "out of memory, going on with half",
                batch=batch.batch_id,
                padded_tokens=padded,
                limit=self.limit,
            )
            return False
        # Once more, with nothing else on the device.
        if not self._forward(progress, micro_batch, deliver):
            raise SampleError(
                f"the sample in source row {int(batch.source_rows[first])}, {count_text(padded, 'token')}, does not fit into "
                f"the memory of {self._model.device}",
                "memory",
            )
        return True

    def _recompute_canary(self, progress: _Progress) -> None:
        """Compute one sample of the batch alone, to be compared with what the file holds of it."""
        batch, file = progress.file.batch, progress.file
        sample, tokens = canary_sample(batch), canary_tokens(batch)
        micro_batch = pack(batch, sample, sample + 1, tokens)
        canary = Canary(sample, micro_batch.tokens, self._tolerance)
        deliver = partial(file.keep_canary, canary)
        if not self._forward(progress, micro_batch, deliver):
            self._recover(progress)
            if not self._forward(progress, micro_batch, deliver):
                raise CheckError(
                    f"no room in the memory of {self._model.device} for {count_text(micro_batch.tokens, 'token')}",
                    "memory",
                )

    def _forward(self, progress: _Progress, micro_batch: MicroBatch, deliver: Deliver) -> bool:
        """Run the model and have the writer's thread `deliver` the rows; False if memory ran out."""
        slot = self._ring.acquire()
        landing: Landing | None = None
        try:
            host = slot.tensors(self._shape, micro_batch.tokens)
            landing = self._launch(progress, micro_batch, host)
        finally:
            if landing is None:
                self._ring.release(slot)
        if landing is None:
            return False
        progress.padded_tokens += micro_batch.ids.numel()
        progress.written.append(self._writer.submit(self._deliver, slot, deliver, landing, host))
        return True

    def _launch(self, progress: _Progress, micro_batch: MicroBatch, host: ChunkTensors) -> Landing | None:
        """Ask the device for one forward pass and its states; None if memory ran out."""
        begin = self._transfer.mark()
        landing = self._ask(micro_batch, host)
        if landing is not None:
            progress.marks.append((begin, self._transfer.mark()))
        return landing

    def _ask(self, micro_batch: MicroBatch, host: ChunkTensors) -> Landing | None:
        transfer = self._transfer
        try:
            ids = transfer.upload(micro_batch.ids)
            real = None if micro_batch.real is None else transfer.upload(micro_batch.real)
            rows = StateRows(*transfer.targets(host, self._shape), real)
            self._model.forward(ids, rows)
            return transfer.land(check_tensors(rows, ids), host)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            return None

    def _deliver(self, slot: Slot, deliver: Deliver, landing: Landing, host: ChunkTensors) -> None:
        """In the writer's thread."""
        try:
            # Before anything else: until then the device may still write into the buffer.
            landing.wait()
            deliver(host)
        finally:
            self._ring.release(slot)

    def _recover(self, progress: _Progress) -> None:
        """Free what can be freed after memory ran out: states still on their way, and cached blocks."""
        wait(progress.written)
        self._transfer.reclaim()

    def _report(self, progress: _Progress) -> LoopReport:
        seconds = self._transfer.seconds
        forward = sum(seconds(begin, end) for begin, end in progress.marks)
        whole = seconds(progress.marks[0][0], progress.marks[-1][1])
        # It comes last.
        canary = seconds(*progress.marks[-1])
        stall = max(0.0, whole - forward)
        return LoopReport(forward, canary, stall, progress.padded_tokens, progress.halvings)


def is_device_lost(error: RuntimeError) -> bool:
    """Whether the device will refuse everything from now on, as CUDA does after an illegal access."""
    return "CUDA error" in str(error) and not _is_out_of_memory(error)


#: What those say who do not ask torch's allocator for their memory on a GPU, and the allocator of the CPU.
_OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "can't allocate memory",
)


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)
