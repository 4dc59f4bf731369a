"""Requests of a real S3 server: the bucket in the host's name, and the signature that is ours to choose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, open_store
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
