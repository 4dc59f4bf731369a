"""Files and parts sent without boto3: the same requests, and boto3's judgement of whatever is no plain success."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import ConfigError, DataError, TransientError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import PutOutcome, RequestGate, Store, open_store
from tests.faults.scripted_faults import CutBody, Fail, Fault, LoseReply, RefuseEarly
from tests.faults.scripted_s3 import ScriptedS3

#: No real store takes parts as small as these.
PART = 1 << 20
DATA = os.urandom(3 * PART)
#: What boto3 puts into every request that goes all its way, and only there.
BOTO3 = {"amz-sdk-invocation-id", "amz-sdk-request"}
#: What differs between two requests alike.
ITS_OWN = {"authorization", "x-amz-date", "x-amz-checksum-crc64nvme", "x-amz-meta-hiddenfeed-checksum"}


@pytest.fixture(params=["PutObject", "UploadPart"])
def operation(request: pytest.FixtureRequest) -> str:
    """What carries the bytes."""
    return str(request.param)


def opened(server: ScriptedS3, operation: str, gate: RequestGate | None = None, **changes: Any) -> Store:
    options = StoreOptions(
        s3_endpoint=server.endpoint,
        s3_max_attempts=1,
        multipart_threshold_bytes=len(DATA) if operation == "PutObject" else PART,
        multipart_part_bytes=PART,
        multipart_parts_in_flight=1,
    )
    return open_store("s3://bucket/runs", msgspec.structs.replace(options, **changes), gate=gate)


def put(store: Store, tmp_path: Path, key: str = "run-1/a", data: bytes = DATA) -> PutOutcome:
    path = tmp_path / "file.bin"
    path.write_bytes(data)
    return store.put_file(key, path, size_bytes=len(DATA), checksum=checksum_of(DATA))


def carriers(server: ScriptedS3, operation: str) -> list[dict[str, str]]:
    return [headers for name, headers in zip(server.log, server.headers, strict=True) if name == operation]


def test_the_second_request_is_the_first_without_boto3(
    server: ScriptedS3, tmp_path: Path, operation: str
) -> None:
    changes: dict[str, Any] = {
        "s3_requester_pays": True,
        "s3_storage_class": "STANDARD_IA",
        "s3_tags": "team=speech&keep=90d",
    }
    store = opened(server, operation, **changes)
    for key in ("run-1/a", "run-1/b"):
        assert put(store, tmp_path, key) is PutOutcome.STORED
        assert server.objects[f"runs/{key}"].data == DATA
    first, *others = carriers(server, operation)
    assert set(first) >= BOTO3
    assert others
    for headers in others:
        assert set(first) - set(headers) == BOTO3
        assert set(headers) <= set(first)
        for name in set(headers) - ITS_OWN:
            assert headers[name] == first[name]
        covered, before = (
            set(each["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";"))
            for each in (headers, first)
        )
        assert covered == before - BOTO3


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (Fail(503, "SlowDown"), "is busy"),
        (Fail(429, "TooManyRequests"), "is busy"),
        (Fail(500, "InternalError"), "failed"),
        (CutBody(1000), "the connection to .* failed"),
        (LoseReply(), "the connection to .* failed"),
    ],
    ids=["503", "429", "500", "cut", "lost"],
)
def test_a_failure_is_boto3s_first_attempt(
    server: ScriptedS3, tmp_path: Path, operation: str, fault: Fault, sentence: str
) -> None:
    """One attempt is allowed, and one request is made: nobody asks a busy store twice."""
    gate = RequestGate(lambda: 64)
    store = opened(server, operation, gate)
    put(store, tmp_path, "run-1/first")
    before = len(carriers(server, operation))
    server.always(operation, fault)
    with pytest.raises(TransientError, match=f"could not store run-1/a: .*{sentence}"):
        put(store, tmp_path)
    (met,) = carriers(server, operation)[before:]
    assert not BOTO3 & set(met)
    assert (gate.limit < 64) == (sentence == "is busy")


def test_boto3_tries_again_after_it(server: ScriptedS3, tmp_path: Path, operation: str) -> None:
    store = opened(server, operation, s3_max_attempts=2)
    put(store, tmp_path, "run-1/first")
    before = len(carriers(server, operation))
    server.script(operation, CutBody(1000))
    assert put(store, tmp_path) is PutOutcome.STORED
    assert server.objects["runs/run-1/a"].data == DATA
    first, second, *_ = carriers(server, operation)[before:]
    assert (BOTO3 & set(first), BOTO3 & set(second)) == (set(), BOTO3)


def test_a_refusal_before_the_body_is_heard(server: ScriptedS3, tmp_path: Path, operation: str) -> None:
    store = opened(server, operation)
    put(store, tmp_path, "run-1/first")
    server.always(operation, RefuseEarly(403, "AccessDenied"))
    with pytest.raises((ConfigError, TransientError), match="store run-1/a"):
        put(store, tmp_path)


def test_expired_keys_are_looked_for_anew_and_the_way_with_them(
    server: ScriptedS3, tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(server, operation)
    put(store, tmp_path, "run-1/first")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    server.script(operation, Fail(400, "ExpiredToken"))
    with pytest.raises(ConfigError, match="have expired"):
        put(store, tmp_path)
    before = len(carriers(server, operation))
    for key in ("run-1/a", "run-1/b"):
        assert put(store, tmp_path, key) is PutOutcome.STORED
    seen = carriers(server, operation)[before:]
    assert all("Credential=another/" in headers["authorization"] for headers in seen)
    assert [bool(BOTO3 & set(headers)) for headers in seen] == [True] + [False] * (len(seen) - 1)


@pytest.mark.parametrize("trusted", [False, True], ids=["checked here", "checked there"])
def test_a_file_that_changed_is_no_object(
    server: ScriptedS3, tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    if trusted:
        monkeypatch.setattr("hiddenfeed.store.s3_link.WORTH_ASKING_BYTES", 1)
    store = opened(server, operation)
    put(store, tmp_path, "run-1/first")
    server.objects.clear()
    for data, sentence in (
        (DATA[:-1] + bytes([DATA[-1] ^ 1]), "has checksum"),
        (DATA[:-1], "has 3145727 bytes"),
    ):
        with pytest.raises(DataError, match=sentence):
            put(store, tmp_path, data=data)
    assert (server.objects, server.uploads) == ({}, {})
    assert put(store, tmp_path) is PutOutcome.STORED
