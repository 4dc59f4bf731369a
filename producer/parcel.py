"""Rows and samples on their way between processes: packed by the chunk, because one object for each row costs more.

What is packed here is plain tuples, bytes and two arrays for all samples of a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from producer.rows import RawRow, SkippedRow
from producer.samples import Sample

#: Rows: file, number, place, raw. Samples: id, row, tokens, truncated, undoubled, left out; or what was skipped.
RowParcel = list[tuple[Any, ...]]
MadeParcel = tuple[list[Any], npt.NDArray[np.int32], npt.NDArray[np.uint8]]


def pack_rows(rows: Sequence[RawRow]) -> RowParcel:
    """A chunk of rows to be sent."""
    return [(row.file, row.source_row, row.place, row.raw) for row in rows]


def unpack_rows(parcel: RowParcel) -> list[RawRow]:
    """The rows that were packed."""
    return [RawRow(*row) for row in parcel]


def pack_made(made: Sequence[Sample | SkippedRow]) -> MadeParcel:
    """What a chunk became: ids and masks of its samples end to end, and all else of each row."""
    facts = [
        one
        if isinstance(one, SkippedRow)
        else (one.sample_id, one.source_row, len(one.ids), one.truncated, one.undoubled, one.left_out)
        for one in made
    ]
    samples = [one for one in made if isinstance(one, Sample)]
    if not samples:
        return facts, np.zeros(0, np.int32), np.zeros(0, np.uint8)
    ids = np.concatenate([sample.ids for sample in samples])
    return facts, ids, np.concatenate([sample.mask for sample in samples])


def unpack_made(parcel: MadeParcel) -> list[Sample | SkippedRow]:
    """What was packed; ids and masks are views of the arrays that came."""
    facts, ids, masks = parcel
    made: list[Sample | SkippedRow] = []
    start = 0
    for one in facts:
        if isinstance(one, SkippedRow):
            made.append(one)
            continue
        name, row, tokens, truncated, undoubled, left_out = one
        end = start + tokens
        made.append(Sample(name, row, ids[start:end], masks[start:end], truncated, undoubled, left_out))
        start = end
    return made
