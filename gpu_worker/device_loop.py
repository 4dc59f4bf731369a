"""The loop that keeps the device busy: micro-batch after micro-batch, states handed to the writer's thread.

Jobs of several batches call `extract` at the same time. One of them computes; others wait with their
tokens read and their files open, or drain what they have computed. Nothing in the loop waits for the
device, and the only thing it waits for at all is a free host buffer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from common.logs import get_logger
from gpu_worker.agreement import Tolerance
from gpu_worker.salvage import SampleError
from gpu_worker.taps import StateRows, TapModel
from gpu_worker.tokens import TokenBatch
from gpu_worker.transfer import (
    ChunkTensors,
    Landing,
    Ring,
    RowShape,
    Slot,
    Transfer,
    check_tensors,
    transfer_for,
)
from gpu_worker.writer import BatchFile, Canary
from hiddenfeed.errors import DataError

log = get_logger("device")

#: Host buffers: one filled, one landing, one written, one to spare.
SLOTS = 4
#: The canary is computed up to this share of the batch's tokens, and within these bounds: what follows a token
#: does not change its states, so the start of a sample proves as much and costs less. Fewer than the minimum
#: would cost no less.
CANARY_SHARE, CANARY_MIN_TOKENS, CANARY_MAX_TOKENS = 0.005, 64, 512
#: How often a job that waits for the device looks whether the process is to stop.
_LOOK_SECONDS = 0.2

#: What the writer's thread does with rows that landed.
Deliver = Callable[[ChunkTensors], None]


class Stopped(Exception):  # noqa: N818 - not a failure
    """The process is to stop and the batch had not begun."""


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass: neighbouring samples of a batch, padded on the right."""

    #: int64 [B, L]
    ids: torch.Tensor
    #: int64 [n], places of the real tokens in the flattened ids; None if there is no padding.
    real: torch.Tensor | None
    tokens: int


@dataclass
class LoopReport:
    """How the device spent its time on one batch."""

    forward_seconds: float = 0.0
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


def pack(batch: TokenBatch, first: int, last: int, limit: int | None = None) -> MicroBatch:
    """Samples `[first, last)` as one padded tensor, each cut after `limit` tokens."""
    lengths = batch.lengths[first:last]
    ids = batch.input_ids[batch.offsets[first] : batch.offsets[last]]
    if limit is not None and lengths.max() > limit:
        assert last - first == 1, "only a sample alone is cut"
        ids, lengths = ids[:limit], np.array([limit])
    longest = int(lengths.max())
    is_real = np.arange(longest) < lengths[:, np.newaxis]
    padded = np.zeros(is_real.shape, np.int64)
    padded[is_real] = ids
    real = None if is_real.all() else torch.from_numpy(np.flatnonzero(is_real))
    return MicroBatch(torch.from_numpy(padded), real, len(ids))


class DeviceLoop:
    """One model on one device, with its host buffers and its writer thread."""

    def __init__(self, model: TapModel, dtype: torch.dtype, tolerance: Tolerance, slots: int = SLOTS) -> None:
        """`dtype` is the one states are stored in."""
        self._model = model
        self._shape = RowShape(
            len(model.selection.taps), model.hidden_size, dtype, model.selection.final_state != "none"
        )
        self._tolerance = tolerance
        self._transfer: Transfer = transfer_for(model.device)
        self._ring = Ring(slots, pinned=self._transfer.pinned)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._computing = threading.Lock()
        #: Padded tokens that are known to be too many for the device's memory, halved.
        self._fits: int | None = None

    def close(self) -> None:
        """End the writer's thread; no batch may be running."""
        self._writer.shutdown()

    def extract(self, file: BatchFile, stopping: Callable[[], bool] = lambda: False) -> LoopReport:
        """Compute all rows of the file's batch and return when they are written and checked.

        Raises `Stopped` if `stopping` turns true before the batch began, GuardError for states that
        must not be stored, DataError for a sample that does not fit into memory even alone, and
        TransientError if the disk refuses. Whatever it raises, nothing writes to the file any more.
        """
        progress = _Progress(file)
        try:
            with self._turn(stopping):
                self._compute(progress)
                self._recompute_canary(progress)
            for written in progress.written:
                written.result()
        finally:
            wait(progress.written)
        return self._report(progress)

    @contextmanager
    def _turn(self, stopping: Callable[[], bool]) -> Iterator[None]:
        """Wait for the device to be ours."""
        while not self._computing.acquire(timeout=_LOOK_SECONDS):
            if stopping():
                raise Stopped
        try:
            if stopping():
                raise Stopped
            with self._transfer.scope():
                yield
        finally:
            self._computing.release()

    def _compute(self, progress: _Progress) -> None:
        """Run the planned micro-batches in order, halving those that do not fit."""
        bounds = progress.file.batch.micro_batches.tolist()
        waiting = deque(pairwise(bounds))
        while waiting:
            first, last = waiting.popleft()
            if not self._run(progress, first, last):
                middle = (first + last + 1) // 2
                waiting.extendleft([(middle, last), (first, middle)])
            while progress.written and progress.written[0].done():
                progress.written.popleft().result()

    def _run(self, progress: _Progress, first: int, last: int) -> bool:
        """One forward pass over samples `[first, last)`; False if they are too many for the memory."""
        batch, file = progress.file.batch, progress.file
        padded = (last - first) * int(batch.lengths[first:last].max())
        alone = last - first == 1
        if not alone and self._fits is not None and padded > self._fits:
            return False
        micro_batch = pack(batch, first, last)
        if self._forward(progress, micro_batch, file.append):
            return True
        self._recover(progress)
        if not alone:
            self._fits = padded // 2
            progress.halvings += 1
            log.warning("out of memory, going on with half", batch=batch.batch_id, padded_tokens=padded)
            return False
        # Once more, with nothing else on the device.
        if not self._forward(progress, micro_batch, file.append):
            raise SampleError(
                f"the sample in source row {int(batch.source_rows[first])}, {padded} tokens, does not fit into "
                f"the memory of {self._model.device}"
            )
        return True

    def _recompute_canary(self, progress: _Progress) -> None:
        """Compute one sample of the batch alone, to be compared with what the file holds of it."""
        batch, file = progress.file.batch, progress.file
        sample, tokens = canary_sample(batch), canary_tokens(batch)
        micro_batch = pack(batch, sample, sample + 1, tokens)
        canary = Canary(sample, micro_batch.tokens, self._tolerance)
        deliver = partial(file.check_canary, canary)
        if not self._forward(progress, micro_batch, deliver):
            self._recover(progress)
            if not self._forward(progress, micro_batch, deliver):
                raise DataError(
                    f"{micro_batch.tokens} tokens do not fit into the memory of {self._model.device}"
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
        transfer = self._transfer
        try:
            ids = transfer.upload(micro_batch.ids)
            real = None if micro_batch.real is None else transfer.upload(micro_batch.real)
            rows = StateRows(*transfer.targets(host, self._shape), real)
            begin = transfer.mark()
            self._model.forward(ids, rows)
            landing = transfer.land(check_tensors(rows, ids), host)
            progress.marks.append((begin, transfer.mark()))
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            return None
        return landing

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
        return LoopReport(forward, max(0.0, whole - forward), progress.padded_tokens, progress.halvings)


def check_input(model: TapModel, batch: TokenBatch) -> None:
    """Raise SampleError for tokens that the model cannot take; on a GPU they would end the process."""
    unknown = np.flatnonzero((batch.input_ids < 0) | (batch.input_ids >= model.vocabulary))
    if len(unknown):
        row = int(batch.source_rows[batch.sample_of_token(int(unknown[0]))])
        raise SampleError(
            f"token id {int(batch.input_ids[unknown[0]])} in source row {row} is not one of the model's "
            f"{model.vocabulary} ids"
        )
    longest = int(batch.lengths.argmax())
    if model.max_positions is not None and batch.lengths[longest] > model.max_positions:
        raise SampleError(
            f"the sample in source row {int(batch.source_rows[longest])} has {int(batch.lengths[longest])} tokens, "
            f"and the model has positions for {model.max_positions}"
        )


def is_device_lost(error: RuntimeError) -> bool:
    """Whether the device will refuse everything from now on, as CUDA does after an illegal access."""
    return "CUDA error" in str(error) and not _is_out_of_memory(error)


def canary_sample(batch: TokenBatch) -> int:
    """Which sample is computed a second time: the most padded of a micro-batch that the batch's number picks."""
    bounds = batch.micro_batches
    shared = np.flatnonzero(np.diff(bounds) > 1)
    if not len(shared):
        return batch.batch_id % batch.samples
    return int(bounds[shared[batch.batch_id % len(shared)] + 1]) - 1


def canary_tokens(batch: TokenBatch) -> int:
    """How much of the canary is computed at most."""
    return min(CANARY_MAX_TOKENS, max(CANARY_MIN_TOKENS, int(batch.tokens * CANARY_SHARE)))


def _is_out_of_memory(error: RuntimeError) -> bool:
    """CUDA raises a class of its own; the CPU's allocator only says so."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
