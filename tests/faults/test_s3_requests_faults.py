"""What requests look like on the wire: headers that are set and signed, hosts, connections, and what is never sent."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hiddenfeed.errors import TransientError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import PutOutcome
from hiddenfeed.store.s3_link import S3Link
from tests.faults.scripted_faults import CutBody, Fail, Lack, TakeAlong, Together, Well
from tests.faults.scripted_s3 import ScriptedS3, Stored
from tests.faults.scripted_store import DATA, KEY, PLACE, Notes, opened, put
from tests.local_names import resolve_local_names

SMALL = os.urandom(1000)

#: What new objects are given, and the header and value of each.
GIVEN: dict[str, Any] = {
    "s3_storage_class": "STANDARD_IA",
    "s3_encryption": "aws:kms",
    "s3_kms_key": "key-1",
    "s3_tags": "team=speech&keep=90d",
}
GIVEN_HEADERS = {
    "x-amz-storage-class": "STANDARD_IA",
    "x-amz-server-side-encryption": "aws:kms",
    "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
    "x-amz-tagging": "team=speech&keep=90d",
}


def requests(server: ScriptedS3, *operations: str) -> list[dict[str, str]]:
    """Headers of the requests for these operations; every one of them at least once."""
    assert set(operations) <= set(server.log)
    return [headers for name, headers in zip(server.log, server.headers, strict=True) if name in operations]


def signed(headers: dict[str, str]) -> set[str]:
    """The headers that the signature covers."""
    return set(headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";"))


# --- headers ---


def test_what_is_set_for_new_objects_is_sent_and_signed_in_each_way_to_store_one(
    server: ScriptedS3, tmp_path: Path
) -> None:
    """A file in one request, a document, one in parts, and one in parts that another process goes on with."""
    notes = Notes()
    store = opened(server, notes, **GIVEN, s3_requester_pays=True)
    put(store, tmp_path, SMALL)
    store.write("run-1/run.json", b"{}", if_absent=True)
    server.objects.clear()
    server.script("UploadPart", Well(), CutBody(1000))
    with pytest.raises(TransientError):
        put(store, tmp_path, DATA)
    assert put(opened(server, notes, **GIVEN, s3_requester_pays=True), tmp_path, DATA) is PutOutcome.STORED
    assert server.log.count("CreateMultipartUpload") == 1, "it was begun anew instead of gone on with"
    for headers in requests(server, "PutObject", "CreateMultipartUpload"):
        assert {name: headers.get(name) for name in GIVEN_HEADERS} == GIVEN_HEADERS
        assert set(GIVEN_HEADERS) <= signed(headers)
    every = {"PutObject", "HeadObject", "CreateMultipartUpload", "UploadPart", "ListParts"}
    assert {*every, "CompleteMultipartUpload"} == set(server.log)
    for headers in server.headers:
        assert headers["x-amz-request-payer"] == "requester"
        assert "x-amz-request-payer" in signed(headers)


@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
def test_the_checksum_is_a_signed_header_and_the_body_is_the_file_alone(
    server: ScriptedS3, tmp_path: Path, data: bytes
) -> None:
    """Checksums in trailers, and bodies cut in chunks for them, are what stores of other makes break on."""
    put(opened(server), tmp_path, data)
    carriers = requests(server, "PutObject" if data is SMALL else "UploadPart")
    assert sum(int(headers["content-length"]) for headers in carriers) == len(data)
    for headers in server.headers:
        assert not {"x-amz-trailer", "content-encoding", "transfer-encoding"} & set(headers)
    for headers in carriers:
        assert "x-amz-checksum-crc64nvme" in signed(headers)
        assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD", "the body was read once more to sign it"


@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
def test_no_other_way_to_transfer_engages_by_itself(
    server: ScriptedS3, tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some machines boto3's own transfers change to another client, which ignores the endpoint."""

    def engaged(*arguments: Any, **named: Any) -> None:
        raise AssertionError("boto3 transferred the file")

    monkeypatch.setattr("awscrt.s3.is_optimized_for_system", lambda: True)
    monkeypatch.setattr("awscrt.s3.S3Client.__init__", engaged)
    monkeypatch.setattr("boto3.s3.inject.create_transfer_manager", engaged)
    monkeypatch.setattr("s3transfer.manager.TransferManager.__init__", engaged)
    assert put(opened(server), tmp_path, data) is PutOutcome.STORED
    assert server.objects[PLACE].data == data


# --- hosts and connections ---


@pytest.fixture
def local_names(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_local_names(monkeypatch)


@pytest.mark.usefixtures("local_names")
@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
def test_the_bucket_may_be_in_the_hosts_name(server: ScriptedS3, tmp_path: Path, data: bytes) -> None:
    server.lacks.add(Lack.PATHS)
    endpoint = f"http://localhost:{server.port}"
    store = opened(server, s3_endpoint=endpoint, s3_addressing="virtual")
    store.check()
    assert put(store, tmp_path, data) is PutOutcome.STORED
    assert server.objects[PLACE].data == data
    assert [info.key for info in store.list("run-1/")] == [KEY]
    assert store.read(KEY) == data
    store.delete(KEY)
    assert server.objects == {}
    for headers in server.headers:
        assert headers["host"] == f"bucket.localhost:{server.port}"
        assert "host" in signed(headers)
    with pytest.raises(Exception, match="bucket 'bucket' does not exist"):
        opened(server, s3_endpoint=endpoint).check()


def test_connections_are_kept_however_many_there_are(
    server: ScriptedS3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """More at a time than the ten that boto3 keeps by itself."""
    many = 24
    store = opened(server)
    server.script("PutObject", *[Together(threading.Barrier(many))] * many)
    with ThreadPoolExecutor(many) as pool:

        def put_one(key: str) -> PutOutcome:
            return put(store, tmp_path, SMALL, key=key)

        assert set(pool.map(put_one, [f"run-1/{n}" for n in range(many)])) == {PutOutcome.STORED}
        opened_at_first = server.connections
        assert many <= opened_at_first <= 2 * many, "files and questions have connections of their own"
        assert set(pool.map(put_one, [f"run-2/{n}" for n in range(many)])) == {PutOutcome.STORED}
    assert server.connections <= 2 * many
    assert "pool is full" not in caplog.text


def test_of_many_that_meet_expired_keys_one_looks_for_others(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a client is not safe from several threads at a time."""
    monkeypatch.setattr("hiddenfeed.store.s3_link._RENEW_SECONDS", 0.0)
    link = S3Link(("bucket", ""), StoreOptions(s3_endpoint=server.endpoint, s3_max_attempts=1), None, None)
    first, made, real = link.client, [], link._make_client
    lock, barrier = threading.Lock(), threading.Barrier(16)

    class Gathering:
        """A lock that nobody gets before all want it."""

        def __enter__(self) -> None:
            barrier.wait(20)
            lock.acquire()

        def __exit__(self, *details: object) -> None:
            lock.release()

    def make() -> Any:
        made.append(real())
        return made[-1]

    def look(number: int) -> object:
        return link.client

    monkeypatch.setattr(link, "_renewing", Gathering())

    monkeypatch.setattr(link, "_make_client", make)
    link._watch_credentials({"Error": {"Code": "ExpiredToken"}})
    with ThreadPoolExecutor(16) as pool:
        seen = set(pool.map(look, range(16)))
    assert [client for client, _ in made] == [link.client]
    assert seen == {link.client} != {first}


# --- servers that take too much away ---


def test_an_object_that_went_with_the_parts_of_an_old_upload_is_stored_again(
    server: ScriptedS3, tmp_path: Path
) -> None:
    """The file stays until the store is seen to hold it after the parts were given up."""
    notes = Notes()
    server.script("UploadPart", Well(), CutBody(1000))
    with pytest.raises(TransientError):
        put(opened(server, notes), tmp_path, DATA)
    server.objects[PLACE] = Stored(DATA)
    server.script("AbortMultipartUpload", TakeAlong())
    with pytest.raises(TransientError, match="accepted it, but it is not there"):
        put(opened(server, notes), tmp_path, DATA)
    assert put(opened(server, notes), tmp_path, DATA) is PutOutcome.STORED
    assert server.objects[PLACE].data == DATA


def test_a_storm_that_uses_up_the_clients_retries_loses_no_file(
    server: ScriptedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 stops trying again by itself after some failures in a row; what it gives up can be put again."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *context: 0)
    store = opened(server, s3_max_attempts=2)
    server.always("PutObject", Fail(400, "RequestTimeout"))
    keys = [f"run-1/{number}" for number in range(60)]
    for key in keys:
        with pytest.raises(TransientError):
            put(store, tmp_path, SMALL, key=key)
    assert len(keys) < server.log.count("PutObject") < 2 * len(keys), "the client tried every file again"
    server.always("PutObject", Well())
    for key in keys:
        assert put(store, tmp_path, SMALL, key=key) is PutOutcome.STORED
