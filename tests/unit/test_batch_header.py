"""Headers that are damaged, foreign or hostile: refused with one sentence that names the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenfeed.batch_file import decode_header, header_size, read_header
from hiddenfeed.errors import DataError
from hiddenfeed.store.base import ObjectInfo
from hiddenfeed.store.memory import MemoryStore
from tests.synthetic_run import synthetic_run

RUN = synthetic_run(final_state="post")
FILE = RUN.batch_file(0)
HEADER = FILE[:4096]
Document = dict[str, Any]


def _with_json(document: Any, size: int = 4096) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return struct.pack("<Q", size - 8) + text.ljust(size - 8)


def _changed(change: Callable[[Document], Any]) -> bytes:
    document = json.loads(HEADER[8:])
    change(document)
    return _with_json(document)


def test_the_untouched_header_is_read() -> None:
    assert decode_header(HEADER, "it").facts == RUN.layout(0).facts
    assert decode_header(_changed(lambda document: None), "it").layout == RUN.layout(0)


def test_unknown_metadata_is_no_obstacle() -> None:
    header = decode_header(_changed(lambda document: document["__metadata__"].update(note="hello")), "it")
    assert header.layout == RUN.layout(0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "only 0 bytes long"),
        (HEADER[:7], "only 7 bytes long"),
        (HEADER[:100], "ends inside its header: 100 of 4096 bytes"),
        (struct.pack("<Q", 2**64 - 1), r"claims \d+ bytes"),
        (struct.pack("<Q", 2**40 - 8), r"claims 1099511627776 bytes"),
        (struct.pack("<Q", 5) + b"hello", "claims 13 bytes"),
        (struct.pack("<Q", 2**64 - 8), "claims"),
        (_with_json(b"not json"), "cannot be read"),
        (_with_json(b"\xff\xfe{}"), "cannot be read"),
        (_with_json([1, 2]), "cannot be read"),
        (_with_json(b'{"a":' + b"[" * 4000), "cannot be read"),
        (_with_json({"__metadata__": {"format": 3}}), "cannot be read"),
        (_with_json({"__metadata__": {}, "x": {"dtype": "F32"}}), "cannot be read"),
        (_with_json({}), "its format is None"),
        (_with_json({"__metadata__": {"format": "pt"}}), "its format is 'pt'"),
    ],
)
def test_what_is_no_header_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=f"^s3-key .*{reason}"):
        decode_header(data, "s3-key")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda d: d["__metadata__"].update(format_version="2"),
            "has format version '2'; this program reads 1",
        ),
        (lambda d: d["__metadata__"].pop("taps"), "lacks metadata taps"),
        (lambda d: d["__metadata__"].update(taps="1,x"), "makes no sense"),
        (lambda d: d["__metadata__"].update(taps="3,2,0"), "strictly increasing"),
        (lambda d: d["__metadata__"].update(taps="0,1"), "other tensors"),
        (lambda d: d["__metadata__"].update(batch_id="many"), "makes no sense"),
        (lambda d: d["__metadata__"].update(dtype="float64"), "cannot be stored as"),
        (lambda d: d["__metadata__"].update(dtype="float32"), "other tensors"),
        (lambda d: d["__metadata__"].update(final_norm="none"), "other tensors"),
        (lambda d: d["__metadata__"].pop("checksum.offsets"), "checksums for"),
        (lambda d: d["__metadata__"].update({"checksum.more": "crc32:AAAAAA=="}), "checksums for"),
        (lambda d: d.pop("hidden_states"), "lacks tensor hidden_states"),
        (lambda d: d.pop("offsets"), "other tensors"),
        (lambda d: d.update(more=d["offsets"]), "other tensors"),
        (lambda d: d["hidden_states"].update(shape=[3]), r"has shape \(3,\)"),
        (lambda d: d["hidden_states"].update(shape=[-3, 3, 8]), "cannot be"),
        (lambda d: d["hidden_states"].update(shape=[2**70, 3, 8]), "cannot be read|too large"),
        (lambda d: d["sample_index"].update(shape=[2**40]), "cannot be"),
        (lambda d: d["loss_mask"].update(data_offsets=[0, 4]), "other tensors"),
        (lambda d: d["loss_mask"].update(data_offsets=[0, 4, 8]), "cannot be read"),
        (lambda d: d["loss_mask"].update(data_offsets=[-4, 0]), "other tensors"),
        (lambda d: d["loss_mask"].update(extra=1), "cannot be read"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(change: Callable[[Document], Any], reason: str) -> None:
    with pytest.raises(DataError, match=f"^s3-key .*({reason})"):
        decode_header(_changed(change), "s3-key")


@given(st.integers(0, 4095), st.integers(1, 255))
def test_a_flipped_byte_is_read_as_another_header_or_refused(place: int, flip: int) -> None:
    data = bytearray(HEADER)
    data[place] ^= flip
    try:
        seen = f"it has {decode_header(bytes(data), 'it').layout.header_bytes} bytes"
    except DataError as error:
        seen = str(error)
    assert seen.startswith("it ")


@given(st.binary(max_size=64))
def test_any_bytes_are_refused_as_data_error(data: bytes) -> None:
    with pytest.raises(DataError):
        decode_header(data, "it")


def test_a_header_of_several_pages_is_read_in_two_ranges() -> None:
    run = synthetic_run(taps=tuple(range(90)), num_blocks=90, hidden_size=1)
    store = MemoryStore()
    run.write(store)
    info = ObjectInfo(key=run.key(1), size_bytes=len(run.batch_file(1)))
    header, raw = read_header(store, info)
    assert header_size(raw, "it") == len(raw) > 4096
    assert header.layout == run.layout(1)


@pytest.mark.parametrize("kept", [0, 5, 4095, 4096, len(FILE) - 1])
def test_a_truncated_object_is_named(kept: int) -> None:
    store = MemoryStore()
    store.write(RUN.key(0), FILE[:kept] or b"-")
    info = ObjectInfo(key=RUN.key(0), size_bytes=kept)
    with pytest.raises(DataError, match=RUN.key(0)):
        read_header(store, info)
