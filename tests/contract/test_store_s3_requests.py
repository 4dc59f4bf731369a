"""Requests of a real S3 server: the bucket in the host's name, and the signature that is ours to choose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, open_store
from hiddenfeed.store.s3_look import QuickLook
from tests.conftest import S3Access
from tests.local_names import resolve_local_names


@pytest.mark.parametrize("size", [1000, 6 * MIB], ids=["one request", "parts"])
def test_the_bucket_may_be_in_the_hosts_name_of_a_real_server(
    s3: S3Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    resolve_local_names(monkeypatch)
    data = os.urandom(size)
    (tmp_path / "file.bin").write_bytes(data)
    options = StoreOptions(
        s3_endpoint=s3.endpoint.replace("127.0.0.1", "localhost"),
        s3_addressing="virtual",
        multipart_threshold_bytes=5 * MIB,
        multipart_part_bytes=5 * MIB,
    )
    store = open_store(s3.url, options)
    checksum = checksum_of(data)
    for expected in (PutOutcome.STORED, PutOutcome.ALREADY_THERE):
        outcome = store.put_file("run-1/a", tmp_path / "file.bin", size_bytes=size, checksum=checksum)
        assert outcome is expected
    assert open_store(s3.url, s3.options).read("run-1/a") == data
    assert [info.key for info in store.list("run-1/")] == ["run-1/a"]


def test_requests_are_signed_without_awscrt(s3: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is installed botocore would have it sign, which takes longer."""

    def sign(*arguments: object) -> None:
        raise AssertionError("awscrt signed a request")

    monkeypatch.setattr("awscrt.auth.aws_sign_request", sign)
    store = open_store(s3.url, s3.options)
    store.write("run-1/run.json", b"{}", if_absent=True)
    assert store.read("run-1/run.json") == b"{}"
    assert [info.key for info in store.list("run-1/")] == ["run-1/run.json"]


def test_a_real_server_answers_the_short_question_as_it_answers_boto3s(
    s3: S3Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file.bin").write_bytes(b"hello")
    checksum = checksum_of(b"hello")
    store = open_store(s3.url, s3.options)
    store.put_file(
        "run-1/a", tmp_path / "file.bin", size_bytes=5, checksum=checksum, metadata={"worker": "gpu-7"}
    )
    by_boto3 = open_store(s3.url, s3.options).head("run-1/a")
    assert by_boto3 is not None
    assert by_boto3.checksum == checksum

    def asked(look: QuickLook, full_key: str) -> dict[str, Any]:
        answer = head(look, full_key)
        assert answer is not None, "it was left to boto3"
        return answer

    head = QuickLook.head
    monkeypatch.setattr(QuickLook, "head", asked)
    assert store.head("run-1/a") == by_boto3
