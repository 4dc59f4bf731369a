"""What the uploader decides, from facts alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.messages import BatchReport, ExtractBatch, UploadFile
from common.queues import LOST, extract_job_id, upload_job_id
from common.spool import SpoolFile
from hiddenfeed.errors import PermanentError
from hiddenfeed.layout import batch_key, quarantine_note_key
from hiddenfeed.store.base import ObjectInfo, PutOutcome
from hiddenfeed.store.s3_judge import Verdict, declared, judge, needs_reading, proves_itself
from hiddenfeed.store.s3_multipart import part_bytes
from uploader.decide import after_put, aged, check_message, job_ids, leftovers, without_file

MIB = 1024 * 1024
CHECKSUM = "crc32:y/Q5Jg=="
OTHER = "crc32:AAAAAA=="

MESSAGE = UploadFile(
    batch=ExtractBatch(
        run_id="run-1",
        batch_id=7,
        tokens="run-1/tokens.parquet",
        row_group=7,
        samples=3,
        tokens_total=30,
        longest=20,
    ),
    spool="default",
    path="run-1/000007-abc.safetensors",
    key=batch_key("run-1", 7),
    size_bytes=9,
    checksum=CHECKSUM,
    report=BatchReport(worker="w1", device="cpu"),
)


# --- messages ---


def test_messages_that_are_ours() -> None:
    check_message(MESSAGE, "default")
    note = {"path": "run-1/000007-abc.json", "key": quarantine_note_key("run-1", 7)}
    check_message(msgspec.structs.replace(MESSAGE, **note), "default")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"spool": "other"}, "in spool 'other' and this uploader serves 'default'"),
        ({"path": "/etc/passwd"}, "not the path of a file in a spool"),
        ({"path": "run-2/000007-abc.safetensors"}, "is not a file of batch 7 of run-1"),
        ({"path": "run-1/000008-abc.safetensors"}, "is not a file of batch 7 of run-1"),
        ({"key": "run-1/run.json"}, "key 'run-1/run.json' is not that of"),
        ({"key": batch_key("run-1", 8)}, "is not that of"),
        ({"key": batch_key("run-2", 7)}, "is not that of"),
        ({"key": quarantine_note_key("run-1", 7)}, "is not that of"),
        ({"checksum": "crc32"}, "is not a checksum"),
        ({"checksum": "sha0:AAAA"}, "unknown checksum algorithm"),
        ({"size_bytes": 0}, "announces an empty file"),
    ],
)
def test_messages_that_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PermanentError, match=reason):
        check_message(msgspec.structs.replace(MESSAGE, **change), "default")


# --- endings ---


@pytest.mark.parametrize("outcome", list(PutOutcome))
def test_every_outcome_of_a_put_ends_the_job(outcome: PutOutcome) -> None:
    ending = after_put(outcome)
    assert ending.outcome == outcome.value
    assert not ending.extract_again
    assert (ending.remark is None) == (outcome is not PutOutcome.OTHER_WINS)


def test_a_lost_file_matters_only_if_the_store_has_not_the_batch() -> None:
    there, missing = without_file("it is gone", stored=True), without_file("it is gone", stored=False)
    assert (there.outcome, there.extract_again) == ("already-there", False)
    assert (missing.outcome, missing.extract_again) == ("sent-back", True)
    assert missing.remark == "it is gone; the batch is extracted again"


# --- leftovers ---


def spool_file(batch_id: int, token: str = "a", modified_at: float = 1000.0) -> SpoolFile:
    path = f"r/{batch_id:06d}-{token}.json"
    return SpoolFile(run_id="r", batch_id=batch_id, path=path, size_bytes=1, modified_at=modified_at)


@pytest.mark.parametrize(
    ("upload", "extract", "is_left"),
    [
        (None, None, True),
        (None, "finished", True),
        (None, "queued", True),
        (None, "started", False),
        (None, LOST, True),
        ("finished", "finished", True),
        ("queued", "finished", False),
        ("started", "finished", False),
        ("scheduled", "finished", False),
        ("failed", "finished", False),
        (LOST, "finished", True),
    ],
)
def test_a_file_is_left_over_when_no_job_will_come_for_it(
    upload: str | None, extract: str | None, is_left: bool
) -> None:
    file = spool_file(1)
    states = {upload_job_id("r", 1): upload, extract_job_id("r", 1): extract}
    assert set(job_ids([file])) == set(states)
    assert leftovers([file], states) == ([file] if is_left else [])


def test_of_two_files_of_a_batch_one_is_left_over_at_a_time() -> None:
    first, second, other = spool_file(1), spool_file(1, "b"), spool_file(2)
    assert [file.batch_id for file in leftovers([first, second, other], {})] == [1, 2]


def test_a_writer_has_its_time() -> None:
    assert aged([spool_file(1)], now=1060.0, least_age_seconds=60) == [spool_file(1)]
    assert aged([spool_file(1)], now=1059.0, least_age_seconds=60) == []


# --- what the store's object is to us ---


def found(size: int, checksum: str | None, metadata: dict[str, str] | None = None) -> ObjectInfo:
    return ObjectInfo(key="k", size_bytes=size, checksum=checksum, metadata=metadata or {})


@pytest.mark.parametrize(
    ("info", "verdict"),
    [
        (None, Verdict.MISSING),
        (found(9, CHECKSUM), Verdict.SAME),
        (found(9, CHECKSUM, declared(9, CHECKSUM)), Verdict.SAME),
        (found(9, OTHER), Verdict.OTHER),
        (found(8, CHECKSUM), Verdict.OTHER),
        (found(9, OTHER, declared(9, OTHER)), Verdict.OTHER),
        (found(9, OTHER, declared(9, CHECKSUM)), Verdict.DAMAGED),
        (found(8, CHECKSUM, declared(9, CHECKSUM)), Verdict.DAMAGED),
        # A store that keeps no checksum, or one of another kind than ours.
        (found(9, None), Verdict.SAME),
        (found(8, None), Verdict.OTHER),
        (found(9, None, declared(9, CHECKSUM)), Verdict.SAME),
        (found(9, None, declared(9, OTHER)), Verdict.OTHER),
        (found(9, "crc64nvme:AAAAAAAAAAA=", declared(9, CHECKSUM)), Verdict.SAME),
        (found(9, "crc64nvme:AAAAAAAAAAA=", declared(9, OTHER)), Verdict.OTHER),
        (found(9, "crc64nvme:AAAAAAAAAAA="), Verdict.OTHER),
    ],
)
def test_objects_under_our_key(info: ObjectInfo | None, verdict: Verdict) -> None:
    assert judge(info, 9, CHECKSUM) is verdict


CRC64 = "crc64nvme:AAAAAAAAAAA="


@pytest.mark.parametrize(
    ("info", "compared", "reads"),
    [
        (None, False, False),
        (found(9, CHECKSUM), False, False),
        (found(9, OTHER), False, False),
        (found(8, None), False, False),
        # The same by what it says alone.
        (found(9, None), False, True),
        (found(9, None, declared(9, CHECKSUM)), False, True),
        (found(9, CRC64, declared(9, CHECKSUM)), False, True),
        (found(9, CRC64, declared(9, CHECKSUM)), True, False),
        (found(9, None, declared(9, CHECKSUM)), True, False),
        # Another tool stored it, with a checksum of its own kind.
        (found(9, CRC64), True, True),
        (found(9, CRC64, declared(9, OTHER)), False, False),
    ],
)
def test_what_only_bytes_can_tell(info: ObjectInfo | None, compared: bool, reads: bool) -> None:
    assert needs_reading(info, 9, CHECKSUM, compared=compared) is reads


@pytest.mark.parametrize(
    ("info", "proven"),
    [
        (found(9, CHECKSUM), False),
        (found(9, CHECKSUM, declared(9, CHECKSUM)), True),
        (found(8, CHECKSUM, declared(9, CHECKSUM)), False),
        (found(9, OTHER, declared(9, CHECKSUM)), False),
        (found(9, None, declared(9, CHECKSUM)), False),
        (found(9, CRC64, declared(9, CHECKSUM)), False),
    ],
)
def test_what_an_object_says_is_no_proof(info: ObjectInfo, proven: bool) -> None:
    assert proves_itself(info) is proven


@pytest.mark.parametrize(
    ("size", "wanted", "expected"),
    [
        (129 * MIB, 32 * MIB, 32 * MIB),
        (320_000 * MIB, 32 * MIB, 32 * MIB),
        (320_001 * MIB, 32 * MIB, 33 * MIB),
        (5_000_000 * MIB, 32 * MIB, 500 * MIB),
    ],
)
def test_parts_are_as_large_as_ten_thousand_of_them_must_be(size: int, wanted: int, expected: int) -> None:
    assert part_bytes(size, wanted) == expected
    assert -(-size // part_bytes(size, wanted)) <= 10_000
