"""The short way to ask for an object: the same answers as boto3's, and whatever is not plain is left to boto3."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import ConfigError, TransientError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import PutOutcome, Store, open_store
from tests.faults.scripted_faults import Corrupt, Fail, Fault, Forget, LoseReply
from tests.faults.scripted_s3 import ScriptedS3
from tests.local_names import resolve_local_names

DATA = os.urandom(1000)
#: boto3 puts it into every request that goes all its way.
BOTO3 = "amz-sdk-invocation-id"


def opened(server: ScriptedS3, tmp_path: Path, **changes: Any) -> Store:
    """A store that has learned the short way: it has put a file."""
    options = StoreOptions(s3_endpoint=server.endpoint, s3_max_attempts=1)
    store = open_store("s3://bucket/runs", msgspec.structs.replace(options, **changes))
    assert put(store, tmp_path, "run-1/first") is PutOutcome.STORED
    server.log.clear()
    server.headers.clear()
    return store


def put(store: Store, tmp_path: Path, key: str = "run-1/a") -> PutOutcome:
    path = tmp_path / "file.bin"
    path.write_bytes(DATA)
    return store.put_file(key, path, size_bytes=len(DATA), checksum=checksum_of(DATA))


def heads(server: ScriptedS3) -> list[dict[str, str]]:
    return [headers for name, headers in zip(server.log, server.headers, strict=True) if name == "HeadObject"]


def test_the_second_question_is_signed_and_says_the_same_with_less(
    server: ScriptedS3, tmp_path: Path
) -> None:
    store = opened(server, tmp_path, s3_requester_pays=True)
    assert put(store, tmp_path) is PutOutcome.STORED
    (asked,) = heads(server)
    assert BOTO3 not in asked
    assert asked["x-amz-checksum-mode"] == "ENABLED"
    for name in ("x-amz-checksum-mode", "x-amz-request-payer", "x-amz-date", "host"):
        assert name in asked["authorization"]
    info = store.head("run-1/a")
    assert info is not None
    assert (info.size_bytes, info.checksum) == (len(DATA), checksum_of(DATA))
    assert info.metadata["hiddenfeed-size"] == str(len(DATA))
    assert BOTO3 not in heads(server)[-1]


def test_it_finds_buckets_in_the_hosts_name(
    server: ScriptedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_local_names(monkeypatch)
    endpoint = f"http://localhost:{server.port}"
    store = opened(server, tmp_path, s3_endpoint=endpoint, s3_addressing="virtual")
    assert put(store, tmp_path) is PutOutcome.STORED
    (asked,) = heads(server)
    assert BOTO3 not in asked
    assert asked["host"] == f"bucket.localhost:{server.port}"


@pytest.mark.parametrize("fault", [Fail(503, "SlowDown"), Fail(301, "Moved"), LoseReply()], ids=str)
def test_boto3_asks_again_where_the_answer_is_not_plain(
    server: ScriptedS3, tmp_path: Path, fault: Fault
) -> None:
    store = opened(server, tmp_path)
    server.script("HeadObject", fault)
    assert put(store, tmp_path) is PutOutcome.STORED
    assert [BOTO3 in asked for asked in heads(server)] == [False, True]


def test_an_object_that_is_not_there_is_asked_for_once(server: ScriptedS3, tmp_path: Path) -> None:
    store = opened(server, tmp_path)
    assert store.head("run-1/nothing") is None
    (asked,) = heads(server)
    assert BOTO3 not in asked


def test_what_boto3_hears_then_is_the_answer(server: ScriptedS3, tmp_path: Path) -> None:
    store = opened(server, tmp_path)
    server.always("HeadObject", Fail(403, "AccessDenied"))
    with pytest.raises(ConfigError, match="does not allow us to look at run-1/a"):
        put(store, tmp_path)
    server.always("HeadObject", Fail(503, "SlowDown"))
    with pytest.raises(TransientError, match="could not look at run-1/a"):
        store.head("run-1/a")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [(Forget(), "accepted it, but it is not there"), (Corrupt(), "held other bytes than it was given")],
    ids=["forgets", "corrupts"],
)
def test_a_store_that_does_not_hold_what_it_took_is_not_believed(
    server: ScriptedS3, tmp_path: Path, fault: Fault, sentence: str
) -> None:
    store = opened(server, tmp_path)
    server.script("PutObject", fault)
    with pytest.raises(TransientError, match=sentence):
        put(store, tmp_path)
    assert BOTO3 not in heads(server)[0]
    assert store.head("run-1/a") is None
