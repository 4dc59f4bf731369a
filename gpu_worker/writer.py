"""One batch file while it is written: rows to their places as they land, header last, then published.

`append` and `keep_canary` run in the writer's one thread, in the order of the rows; `compare_canary` and
`finish` run in the job's own, so that the writer is free for the next batch meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from common.part_file import PartFile
from gpu_worker.agreement import Floats, Tolerance, compare
from gpu_worker.guards import BatchGuard, GuardError
from gpu_worker.host_ring import ChunkTensors
from gpu_worker.tokens import TokenBatch
from hiddenfeed.batch_file import BatchLayout, TensorPlace, encode_header, whole_file_checksum
from hiddenfeed.checksum import RunningChecksum
from hiddenfeed.dtypes import raw_dtype, to_float32
from hiddenfeed.errors import TransientError
from hiddenfeed.words import count_text


@dataclass(frozen=True)
class FinishedFile:
    """A published file of the spool."""

    #: POSIX path relative to the spool's folder.
    path: str
    size_bytes: int
    #: `algorithm:base64` over the whole file.
    checksum: str
    #: What the guards saw, as the header has it.
    guards: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Canary:
    """A sample, or the start of a long one, computed alone."""

    sample: int
    tokens: int
    tolerance: Tolerance


class _Column:
    """One tensor of the file, filled row by row."""

    def __init__(self, place: TensorPlace) -> None:
        self.place = place
        self.checksum = RunningChecksum()
        self.rows = 0

    def append(self, part: PartFile, data: memoryview, sums: Executor) -> None:
        """The bytes are summed while they are written: neither holds the GIL, and the disk is slower."""
        summed = sums.submit(self.checksum.update, data)
        try:
            part.write_at(data, self.place.row_start(self.rows))
        finally:
            summed.result()
        self.rows += len(data) // self.place.row_bytes


@dataclass
class BatchFile:
    """The file of one batch. Owns the guard of the batch, not the `PartFile`, which its opener discards."""

    part: PartFile
    layout: BatchLayout
    batch: TokenBatch
    guard: BatchGuard
    #: What its states are computed with, for the metadata.
    computed: Mapping[str, str] = field(default_factory=dict)
    #: Seconds spent on checking and writing.
    seconds: float = 0.0
    _failed: bool = False
    #: The canary, and its states computed alone: float32 [n, K', H].
    _alone: tuple[Canary, Floats] | None = None

    def __post_init__(self) -> None:
        self._states = _Column(self.layout.states)
        final = self.layout.final_states
        self._final = None if final is None else _Column(final)

    def append(self, sums: Executor, host: ChunkTensors) -> None:
        """Check and write the next rows, checksums computed by `sums` meanwhile.

        Raises GuardError for rows that must not be stored and TransientError if the disk refuses;
        after that nothing more is accepted.
        """
        if self._failed:
            return
        self._failed = True
        begin = time.perf_counter()
        self.guard.chunk(host.norms.numpy(), host.nonzero.numpy(), host.seen_ids.numpy())
        self._states.append(self.part, raw_bytes(host.hidden_states), sums)
        if self._final is not None:
            assert host.final is not None
            self._final.append(self.part, raw_bytes(host.final), sums)
        self.seconds += time.perf_counter() - begin
        self._failed = False

    def keep_canary(self, canary: Canary, host: ChunkTensors) -> None:
        """Keep states that were computed alone for `compare_canary`; the buffer is needed for the next batch."""
        self._alone = (canary, self._as_float32(host))

    def compare_canary(self) -> None:
        """Compare what stands in the file with the same tokens computed alone; raises GuardError.

        In the job's own thread, once everything is written: the writer has the next batch to write.
        """
        if self._failed or self._alone is None:
            return
        (canary, alone), self._alone = self._alone, None
        first = int(self.batch.offsets[canary.sample])
        agreement = compare(self._stored_rows(first, canary.tokens), alone, median=canary.tolerance.median)
        self.guard.canary(int(self.batch.source_rows[canary.sample]), agreement, canary.tolerance)

    def finish(self) -> FinishedFile:
        """Write what follows the states, then the header, and publish.

        Raises GuardError if rows are missing and TransientError if the disk refuses.
        """
        begin = time.perf_counter()
        statistics = self.guard.finish()
        columns = [self._states] if self._final is None else [self._states, self._final]
        if self._failed or any(column.rows != self.batch.tokens for column in columns):
            raise GuardError(
                f"batch {self.batch.batch_id}: its file did not get all of its {count_text(self.batch.tokens, 'row')}",
                "rows",
            )
        checksums = {column.place.name: column.checksum.value for column in columns}
        checksums |= self._write_small_tensors()
        header = encode_header(self.layout, checksums, statistics, self.computed)
        self.part.write_at(header, 0)
        path = self.part.publish()
        self.seconds += time.perf_counter() - begin
        checksum = whole_file_checksum(header, self.layout, checksums)
        return FinishedFile(path, self.layout.file_size, checksum, statistics)

    def _write_small_tensors(self) -> dict[str, str]:
        """Write all that is not a state; returns the checksums."""
        batch = self.batch
        arrays: dict[str, np.ndarray[Any, Any]] = {
            "offsets": batch.offsets,
            "sample_index": batch.source_rows,
            "input_ids": batch.input_ids,
            "loss_mask": batch.loss_mask,
        }
        checksums = {}
        for place in self.layout.tensors:
            if place in (self.layout.states, self.layout.final_states):
                continue
            array = arrays.get(place.name, np.zeros(place.shape, np.uint8))
            data = np.ascontiguousarray(array, raw_dtype(place.dtype)).data.cast("B")
            self.part.write_at(data, place.start)
            running = RunningChecksum()
            running.update(data)
            checksums[place.name] = running.value
        return checksums

    def _stored_rows(self, first: int, rows: int) -> Floats:
        """float32 [rows, K', H] as the file has them."""
        parts = [self._read(self.layout.states, first, rows)]
        if self.layout.final_states is not None:
            parts.append(self._read(self.layout.final_states, first, rows)[:, np.newaxis])
        return np.concatenate(parts, axis=1)

    def _read(self, place: TensorPlace, first: int, rows: int) -> Floats:
        data = os.pread(self.part.fd, rows * place.row_bytes, place.row_start(first))
        if len(data) != rows * place.row_bytes:
            raise TransientError(f"{self.part.path} could not be read back")
        return to_float32(
            np.frombuffer(data, raw_dtype(place.dtype)).reshape(rows, *place.shape[1:]), place.dtype
        )

    def _as_float32(self, host: ChunkTensors) -> Floats:
        """A copy, whatever the dtype."""
        states = host.hidden_states.to(torch.float32, copy=True)
        if host.final is not None:
            states = torch.cat([states, host.final.float().unsqueeze(1)], dim=1)
        return states.numpy()


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, without a copy; numpy alone could not name bfloat16."""
    return tensor.view(-1).view(torch.uint8).numpy().data
