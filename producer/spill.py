"""Prepared samples on local disk between the two passes: written in input order, read in plan order.

In memory stay 20 bytes per sample; a sample is read with one positioned read, so that its pages do
not count as this process's memory.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from producer.samples import Sample


class Spill:
    """An append-only file of samples. Record: ids int32[n], mask uint8[n], sample id in UTF-8."""

    def __init__(self, folder: Path) -> None:
        """Opens a file in `folder` that has no name, so that nothing is left of it however this ends."""
        self._file = tempfile.TemporaryFile(dir=folder, buffering=1024 * 1024)  # noqa: SIM115 - closed by __exit__
        self._offsets = array("q", [0])
        self._lengths = array("i")
        self._rows = array("q")

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """int64[N]: tokens of each sample, in the order of appending."""
        return np.array(self._lengths, dtype=np.int64)

    def append(self, sample: Sample) -> None:
        """Keep one sample; raises OSError when the disk is full."""
        name = sample.sample_id.encode("utf-8")
        for part in (sample.ids.astype("<i4").tobytes(), sample.mask.tobytes(), name):
            self._file.write(part)
        self._lengths.append(len(sample.ids))
        self._rows.append(sample.source_row)
        self._offsets.append(self._offsets[-1] + 5 * len(sample.ids) + len(name))

    def flush(self) -> None:
        """Make everything appended readable."""
        self._file.flush()

    def read(self, number: int) -> Sample:
        """The `number`-th sample appended, after `flush`."""
        start, length = self._offsets[number], self._lengths[number]
        size = self._offsets[number + 1] - start
        record = os.pread(self._file.fileno(), size, start)
        if len(record) != size:
            raise OSError(f"the spilled samples lost bytes: {len(record)} of {size} at {start}")
        return Sample(
            sample_id=record[5 * length :].decode("utf-8"),
            source_row=self._rows[number],
            ids=np.frombuffer(record, "<i4", length),
            mask=np.frombuffer(record, np.uint8, length, 4 * length),
        )
