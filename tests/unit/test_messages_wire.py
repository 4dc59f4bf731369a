"""Messages: golden bytes of version 1, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.messages import BatchReport, ExtractBatch, UploadFile, parse_message
from hiddenfeed.errors import PermanentError

# What version 1 looks like on the wire. Kept for ever: queues outlive programs.
EXTRACT_V1 = (
    b'{"version":1,"run_id":"demo-0123456789ab","batch_id":42,"tokens":"demo-0123456789ab/tokens.parquet",'
    b'"row_group":42,"samples":17,"tokens_total":1234,"longest":99}'
)
# The same from programs that know what attention costs.
EXTRACT_V1_SQUARES = EXTRACT_V1[:-1] + b',"squares":98765}'
UPLOAD_V1 = (
    b'{"version":1,"batch":'
    + EXTRACT_V1
    + b',"spool":"default","path":"demo-0123456789ab/000042-1f2e.safetensors",'
    b'"key":"demo-0123456789ab/batches/000042.safetensors","size_bytes":7112340,"checksum":"crc64nvme:AAAAAAAAAAA=",'
    b'"report":{"worker":"gpu-1","device":"cpu","read_seconds":0.0,"forward_seconds":1.5,"stall_seconds":0.0,'
    b'"write_seconds":0.0,"total_seconds":1.75,"padded_tokens":1300}}'
)
# The same from programs that say what the guards saw.
UPLOAD_V1_GUARDS = UPLOAD_V1.removesuffix(b"}}") + b',"halvings":2,"guards":{"norm_median":"5,9"}}}'

EXTRACT = ExtractBatch(
    run_id="demo-0123456789ab", batch_id=42, tokens="demo-0123456789ab/tokens.parquet", row_group=42,
    samples=17, tokens_total=1234, longest=99,
)  # fmt: skip
UPLOAD = UploadFile(
    batch=EXTRACT, spool="default", path="demo-0123456789ab/000042-1f2e.safetensors",
    key="demo-0123456789ab/batches/000042.safetensors", size_bytes=7112340, checksum="crc64nvme:AAAAAAAAAAA=",
    report=BatchReport(worker="gpu-1", device="cpu", forward_seconds=1.5, total_seconds=1.75, padded_tokens=1300),
)  # fmt: skip
UPLOAD_GUARDED = msgspec.structs.replace(
    UPLOAD, report=msgspec.structs.replace(UPLOAD.report, halvings=2, guards={"norm_median": "5,9"})
)


def test_golden_bytes_decode_and_encode() -> None:
    assert msgspec.json.encode(EXTRACT) == EXTRACT_V1
    assert msgspec.json.encode(UPLOAD) == UPLOAD_V1
    assert msgspec.json.encode(UPLOAD_GUARDED) == UPLOAD_V1_GUARDS
    assert parse_message(UploadFile, msgspec.json.decode(UPLOAD_V1_GUARDS)) == UPLOAD_GUARDED
    assert parse_message(ExtractBatch, msgspec.json.decode(EXTRACT_V1)) == EXTRACT
    assert parse_message(UploadFile, msgspec.json.decode(UPLOAD_V1)) == UPLOAD
    newer = msgspec.structs.replace(EXTRACT, squares=98765)
    assert msgspec.json.encode(newer) == EXTRACT_V1_SQUARES
    assert parse_message(ExtractBatch, msgspec.json.decode(EXTRACT_V1_SQUARES)) == newer


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({**msgspec.to_builtins(EXTRACT), "version": 2}, "has version 2; this program speaks version 1"),
        ({"run_id": "x"}, "has version None"),
        ("os.system", "has version None"),
        (None, "has version None"),
        ({**msgspec.to_builtins(EXTRACT), "tensor": [1.0]}, "unknown field"),
        ({**msgspec.to_builtins(EXTRACT), "samples": -1}, ">= 0"),
        ({"version": 1, "run_id": "x"}, "missing required field"),
    ],
)
def test_anything_else_is_refused(payload: Any, message: str) -> None:
    with pytest.raises(PermanentError, match=message):
        parse_message(ExtractBatch, payload)


def test_messages_are_small() -> None:
    assert len(msgspec.json.encode(UPLOAD)) < 1024
