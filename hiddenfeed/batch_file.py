"""A batch file as it is read: its header, checked, and ranges of its tensors out of a store.

What the header says is compared with what a batch file of its shape must be, so that everything
behind it is arithmetic. How a file is laid out is `hiddenfeed.batch_layout`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hiddenfeed.batch_layout import (
    FORMAT,
    HEADER_STEP_BYTES,
    LENGTH_FIELD,
    MAX_HEADER_BYTES,
    BatchFacts,
    BatchLayout,
    SetAside,
    TensorEntry,
    TensorPlace,
    bytes_per_token,
    encode_header,
    tensor_entries,
    whole_file_checksum,
)
from hiddenfeed.dtypes import raw_dtype
from hiddenfeed.errors import DataError
from hiddenfeed.run import FORMAT_VERSION
from hiddenfeed.store.base import ObjectInfo, Store

__all__ = [
    "BatchFacts",
    "BatchHeader",
    "BatchLayout",
    "SetAside",
    "TensorPlace",
    "bytes_per_token",
    "decode_header",
    "encode_header",
    "facts_differences",
    "header_size",
    "read_header",
    "read_range",
    "read_rows",
    "read_tensors",
    "tensor_arrays",
    "whole_file_checksum",
]


@dataclass(frozen=True)
class BatchHeader:
    """What a batch file says of itself."""

    layout: BatchLayout
    #: Tensor name -> `algorithm:base64` over the tensor's bytes; one for every tensor.
    checksums: Mapping[str, str]
    #: What the guards saw, for people: name -> value.
    guards: Mapping[str, str]
    #: What the states were computed with: device, dtype, attention, versions; empty where the file does not say.
    computed: Mapping[str, str]

    @property
    def facts(self) -> BatchFacts:
        """The facts of the file."""
        return self.layout.facts


def header_size(prefix: bytes, where: str) -> int:
    """Bytes before the data of the file that starts with `prefix` (8 bytes or more).

    Raises DataError naming `where` for what cannot be the start of a batch file.
    """
    if len(prefix) < LENGTH_FIELD.size:
        raise DataError(f"{where} is no batch file: it is only {len(prefix)} bytes long")
    size = LENGTH_FIELD.size + int(LENGTH_FIELD.unpack_from(prefix)[0])
    if size > MAX_HEADER_BYTES or size % HEADER_STEP_BYTES:
        raise DataError(
            f"{where} is no batch file: its header claims {size} bytes, "
            f"which is not a multiple of {HEADER_STEP_BYTES} up to {MAX_HEADER_BYTES}"
        )
    return size


def decode_header(data: bytes, where: str) -> BatchHeader:
    """The header at the start of `data`, checked whole; raises DataError naming `where`.

    `data` holds at least the header; what follows is not looked at.
    """
    size = header_size(data, where)
    if len(data) < size:
        raise DataError(f"{where} ends inside its header: {len(data)} of {size} bytes")
    try:
        entries = msgspec.json.decode(data[LENGTH_FIELD.size : size], type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(entries.pop("__metadata__", b"{}"), type=dict[str, str])
        tensors = {name: msgspec.json.decode(entry, type=TensorEntry) for name, entry in entries.items()}
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{where} has a header that cannot be read: {error}") from None
    _check_format(metadata, where)
    try:
        layout = BatchLayout(_facts_from(metadata, tensors), header_bytes=size)
    except (DataError, ValueError, RecursionError) as error:
        raise DataError(f"{where} has a header that makes no sense: {error}") from None
    if tensors != tensor_entries(layout):
        raise DataError(f"{where} holds other tensors than a batch file of its shape: {sorted(tensors)}")
    checksums = _with_prefix(metadata, "checksum.")
    if set(checksums) != set(tensors):
        raise DataError(
            f"{where} has checksums for {sorted(checksums)}, but its tensors are {sorted(tensors)}"
        )
    return BatchHeader(
        layout, checksums, _with_prefix(metadata, "guard."), _with_prefix(metadata, "computed.")
    )


def read_header(store: Store, info: ObjectInfo) -> tuple[BatchHeader, bytes]:
    """The header of a batch file in a store and its bytes, in one ranged read, or two for a long one.

    Raises DataError naming the key if it is no batch file, or not whole as far as sizes tell.
    """
    data = store.read(info.key, 0, min(info.size_bytes, HEADER_STEP_BYTES)) if info.size_bytes else b""
    size = header_size(data, info.key)
    if len(data) < size <= info.size_bytes:
        data += store.read(info.key, len(data), size - len(data))
    header = decode_header(data, info.key)
    if header.layout.file_size != info.size_bytes:
        raise DataError(
            f"{info.key} is {info.size_bytes} bytes long, and its header says {header.layout.file_size}"
        )
    return header, data[:size]


def read_tensors(
    store: Store, key: str, layout: BatchLayout, first: str, last: str
) -> dict[str, npt.NDArray[Any]]:
    """The neighbouring tensors from `first` to `last`, in one ranged read, with the dtypes they are stored in.

    Raises DataError naming the key if the object ends before them.
    """
    names = [place.name for place in layout.tensors]
    places = layout.tensors[names.index(first) : names.index(last) + 1]
    start = places[0].start
    data = read_range(store, key, start, places[-1].end - start)
    return {place.name: _array(data, place, place.start - start) for place in places}


def read_rows(store: Store, key: str, place: TensorPlace, first_row: int, rows: int) -> npt.NDArray[Any]:
    """Entries `[first_row, first_row + rows)` of a tensor, in one ranged read; raises DataError if cut short."""
    data = read_range(store, key, place.row_start(first_row), rows * place.row_bytes)
    return np.frombuffer(data, raw_dtype(place.dtype)).reshape(rows, *place.shape[1:])


def read_range(store: Store, key: str, start: int, length: int) -> bytes:
    """Exactly `length` bytes from `start`; raises DataError naming the key if the object ends before."""
    data = store.read(key, start, length)
    if len(data) != length:
        raise DataError(f"{key} is cut short: of {length} bytes from byte {start} on, {len(data)} are there")
    return data


def tensor_arrays(data: bytes, layout: BatchLayout) -> dict[str, npt.NDArray[Any]]:
    """Every tensor of a file held whole in `data`, as views of it, with the dtypes they are stored in."""
    return {place.name: _array(data, place, place.start) for place in layout.tensors}


def facts_differences(found: BatchFacts, expected: BatchFacts) -> list[str]:
    """`name is X, not Y` for every fact in which a file is not what it should be."""
    old, new = msgspec.structs.asdict(found), msgspec.structs.asdict(expected)
    return [f"{name} is {old[name]!r}, not {new[name]!r}" for name in new if old[name] != new[name]]


def _array(data: bytes, place: TensorPlace, start: int) -> npt.NDArray[Any]:
    values = np.frombuffer(data, raw_dtype(place.dtype), math.prod(place.shape), start)
    return values.reshape(place.shape)


def _check_format(metadata: Mapping[str, str], where: str) -> None:
    if metadata.get("format") != FORMAT:
        raise DataError(f"{where} is no batch file: its format is {metadata.get('format')!r}, not {FORMAT!r}")
    if metadata.get("format_version") != str(FORMAT_VERSION):
        raise DataError(
            f"{where} has format version {metadata.get('format_version')!r}; this program reads {FORMAT_VERSION}"
        )


def _facts_from(metadata: Mapping[str, str], tensors: Mapping[str, TensorEntry]) -> BatchFacts:
    """Facts as metadata and shapes tell them; raises ValueError for what is missing or no number."""
    required = ("run_id", "batch_id", "model", "taps", "final_norm", "dtype")
    missing = [f"metadata {name}" for name in required if name not in metadata]
    missing += [f"tensor {name}" for name in ("hidden_states", "sample_index") if name not in tensors]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    states, samples = tensors["hidden_states"].shape, tensors["sample_index"].shape
    if len(states) != 3 or len(samples) != 1:
        raise ValueError(f"hidden_states has shape {states} and sample_index {samples}")
    return BatchFacts(
        run_id=metadata["run_id"],
        batch_id=int(metadata["batch_id"]),
        model=metadata["model"],
        model_revision=metadata.get("model_revision"),
        taps=tuple(int(tap) for tap in metadata["taps"].split(",")),
        final_norm=metadata["final_norm"],
        dtype=metadata["dtype"],
        hidden_size=states[2],
        tokens=states[0],
        samples=samples[0],
        set_aside=msgspec.json.decode(metadata.get("set_aside", "[]"), type=tuple[SetAside, ...]),
    )


def _with_prefix(metadata: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): text for name, text in metadata.items() if name.startswith(prefix)}
