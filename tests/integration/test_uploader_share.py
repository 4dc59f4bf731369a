"""Uploaders that share the fleet's requests through Redis, notes of uploads in parts, and orphans of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from common.settings.catalogue import UploadSettings
from hiddenfeed.checksum import checksum_of
from hiddenfeed.layout import batch_key
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import UploadNote, open_store
from hiddenfeed.store.base import KeepsParts, UnfinishedUpload
from tests.conftest import S3Access
from uploader.notes import RedisNotes
from uploader.orphans import give_up, orphans
from uploader.share import Share

KEY = batch_key("run-1", 7)


class Fleet:
    """Uploaders' shares, without the threads that beat for them."""

    def __init__(self, client: redis.Redis, total: int, most: int = 1000) -> None:
        self.client, self.total, self.most = client, total, most
        self.shares: list[Share] = []

    def join(self) -> Share:
        share = Share(
            self.client,
            lambda: UploadSettings(upload_parallelism=self.total, upload_process_max=self.most),
        )
        self.shares.append(share)
        return share

    def beat(self, *wants: int) -> list[int]:
        """All renew their leases, one after the other; returns what each has then."""
        for share, want in zip(self.shares, wants, strict=True):
            share.beat(want=want)
            # A newcomer has one request before the others have made room.
            assert sum(each.granted for each in self.shares) <= self.total + len(self.shares)
        return [share.granted for share in self.shares]


@pytest.fixture
def fleet(redis_client: redis.Redis) -> Callable[..., Fleet]:
    return lambda total, **limits: Fleet(redis_client, total, **limits)


def test_all_get_the_same_and_never_more_than_the_total(fleet: Callable[..., Fleet]) -> None:
    shared = fleet(100)
    shared.join()
    assert shared.beat(1000) == [100]
    for _ in range(3):
        shared.join()
    shared.beat(*[1000] * 4)
    assert shared.beat(*[1000] * 4) == [25] * 4


def test_what_one_does_not_need_others_have(fleet: Callable[..., Fleet]) -> None:
    shared = fleet(100)
    for _ in range(4):
        shared.join()
    for _ in range(2):
        shared.beat(10, 1000, 1000, 8)
    assert sorted(shared.beat(10, 1000, 1000, 8)) == [8, 10, 41, 41]
    for _ in range(2):
        shared.beat(*[1000] * 4)
    assert shared.beat(*[1000] * 4) == [25] * 4


def test_a_change_of_the_total_reaches_all(fleet: Callable[..., Fleet]) -> None:
    shared = fleet(100)
    for _ in range(4):
        shared.join()
    for _ in range(3):
        shared.beat(*[1000] * 4)
    shared.total = 500
    assert shared.beat(*[1000] * 4) == [125] * 4
    shared.total = 8
    assert sum(_round(shared)) <= 8
    assert _round(shared) == [2] * 4


def _round(shared: Fleet) -> list[int]:
    """One beat of each that wants all it can get."""
    for share in shared.shares:
        share.beat(want=1000)
    return [share.granted for share in shared.shares]


def test_nobody_is_left_without(fleet: Callable[..., Fleet]) -> None:
    shared = fleet(2)
    for _ in range(4):
        shared.join()
    shared.beat(*[1000] * 4)
    assert shared.beat(*[1000] * 4) == [1] * 4


def test_requests_under_way_are_held_until_they_end(fleet: Callable[..., Fleet]) -> None:
    shared = fleet(100)
    busy, other = shared.join(), shared.join()
    busy.beat(want=1000)
    with ExitStack() as under_way:
        for _ in range(80):
            under_way.enter_context(busy.gate.request())
        for _ in range(3):
            other.beat(want=1000)
            busy.beat(want=1000)
        assert (busy.granted, other.granted) == (50, 20)
    busy.beat(want=1000)
    other.beat(want=1000)
    assert (busy.granted, other.granted) == (50, 50)


def test_one_process_takes_no_more_than_its_most(fleet: Callable[..., Fleet]) -> None:
    shared = fleet(500, most=128)
    shared.join()
    assert shared.beat(1000) == [128]


def test_leases_of_the_dead_lapse_and_of_leavers_end(
    fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis
) -> None:
    shared = fleet(100)
    living, leaving = shared.join(), shared.join()
    monkeypatch.setattr("uploader.share._LEASE_SECONDS", 0.05)
    dying = shared.join()
    dying.beat(want=1000)
    monkeypatch.undo()
    deadline = time.monotonic() + 30
    while living.granted != 100 and time.monotonic() < deadline:
        living.beat(want=1000)
    assert living.granted == 100
    with leaving:
        living.beat(want=1000)
        leaving.beat(want=1000)
        assert (living.granted, leaving.granted) == (50, 50)
    living.beat(want=1000)
    assert living.granted == 100
    assert redis_client.zcard("hiddenfeed:upload-share:members") == 1


def test_need_follows_what_is_under_way(fleet: Callable[..., Fleet]) -> None:
    shared = fleet(100)
    share = shared.join()
    share.beat(want=1000)
    share.beat()
    assert share.granted == 8, "idle"
    with ExitStack() as under_way:
        for _ in range(8):
            under_way.enter_context(share.gate.request())
        share.beat()
    assert share.granted == 100, "all of it was in use"


def test_files_in_hand_keep_all_requests_busy(fleet: Callable[..., Fleet]) -> None:
    shared = fleet(40)
    share = shared.join()
    share.beat(want=1000)
    assert share.files_in_hand() == 50
    with share.sending(4), share.sending(4):
        assert share.files_in_hand() == 44


# --- notes ---


def note(upload_id: str, began_at: float = 0.0) -> UploadNote:
    return UploadNote(
        upload_id=upload_id,
        part_bytes=5 * MIB,
        size_bytes=11 * MIB,
        checksum="crc32:AAAAAA==",
        began_at=began_at,
    )


def test_notes_are_kept_by_store_and_forgotten_by_id(redis_client: redis.Redis) -> None:
    notes, others = RedisNotes(redis_client, "s3://a/b"), RedisNotes(redis_client, "s3://a/c")
    notes.save(KEY, note("one"))
    assert RedisNotes(redis_client, "s3://a/b").load(KEY) == note("one")
    assert others.load(KEY) is None
    notes.save(KEY, note("two"))
    notes.forget(KEY, "one")
    assert notes.all() == {KEY: note("two")}
    notes.forget(KEY, "two")
    notes.forget(KEY, "two")
    assert notes.load(KEY) is None


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"upload_id": 5}', b"\xff"])
def test_what_is_no_note_is_none(redis_client: redis.Redis, raw: bytes) -> None:
    redis_client.hset("hiddenfeed:parts:s3://a/b", KEY, raw)
    notes = RedisNotes(redis_client, "s3://a/b")
    assert notes.load(KEY) is None
    assert notes.all() == {}


# --- orphans ---


def unfinished(key: str, upload_id: str, began_at: float) -> UnfinishedUpload:
    return UnfinishedUpload(key=key, upload_id=upload_id, began_at=began_at)


def test_only_old_uploads_of_runs_that_nobody_goes_on_with_are_orphans() -> None:
    uploads = [
        unfinished(KEY, "noted", 0),
        unfinished(KEY, "forgotten", 0),
        unfinished("run-1/tokens.parquet", "tokens", 0),
        unfinished(batch_key("run-1", 8), "old note", 0),
        unfinished(batch_key("run-1", 9), "young", 950),
        unfinished("somebody/else.bin", "strange", 0),
        unfinished("x y/batches/000000.safetensors", "no run", 0),
    ]
    notes = {KEY: note("noted", 950), batch_key("run-1", 8): note("old note", 0)}
    found = orphans(uploads, notes, now=1000, least_age_seconds=100)
    assert [upload.upload_id for upload in found] == ["forgotten", "tokens", "old note"]


def test_an_upload_that_is_begun_while_orphans_are_looked_for_is_none(
    s3: S3Access, redis_client: redis.Redis
) -> None:
    store = open_store(s3.url, StoreOptions(s3_endpoint=s3.endpoint))
    assert isinstance(store, KeepsParts)
    notes = RedisNotes(redis_client, s3.url)
    with s3.client() as client:
        begun = client.create_multipart_upload(Bucket=s3.bucket, Key=f"{s3.prefix}/{KEY}")["UploadId"]
    listed = store.unfinished_uploads

    def slow_listing() -> Iterator[UnfinishedUpload]:
        for upload in listed():
            notes.save(KEY, note(begun, time.time()))
            # A clock that is years behind.
            yield unfinished(upload.key, upload.upload_id, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "unfinished_uploads", slow_listing)
        assert give_up(store, notes, now=time.time(), least_age_seconds=3600) == []
    assert [upload.upload_id for upload in listed()] == [begun]


@pytest.mark.parametrize("spares", [True, False])
def test_orphans_are_given_up_and_no_object_with_them(
    s3: S3Access, redis_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spares: bool
) -> None:
    """Beside an object, only where it is whole and the store has shown that it does not take objects along."""
    store = open_store(s3.url, StoreOptions(s3_endpoint=s3.endpoint))
    assert isinstance(store, KeepsParts)
    notes = RedisNotes(redis_client, s3.url)
    there, strange = batch_key("run-1", 8), batch_key("run-1", 9)
    with s3.client() as client:
        for key in (KEY, there, strange, "run-1/mine.bin"):
            begun = client.create_multipart_upload(Bucket=s3.bucket, Key=f"{s3.prefix}/{key}")
            notes.save(key, note(begun["UploadId"]))
        client.put_object(Bucket=s3.bucket, Key=f"{s3.prefix}/{strange}", Body=b"who knows")
    path = tmp_path / "file.bin"
    path.write_bytes(os.urandom(1000))
    store.put_file(there, path, size_bytes=1000, checksum=checksum_of(path.read_bytes()))
    if not spares:
        monkeypatch.setattr(store, "abort_spares_object", lambda: False)
    given_up = give_up(store, notes, now=time.time() + 7200, least_age_seconds=3600)
    left = [strange, "run-1/mine.bin"] if spares else [there, strange, "run-1/mine.bin"]
    assert sorted(upload.key for upload in given_up) == ([KEY, there] if spares else [KEY])
    assert sorted(upload.key for upload in store.unfinished_uploads()) == left
    assert sorted(notes.all()) == left
    assert store.read(there) == path.read_bytes()
    assert [info.key for info in store.list("")] == [there, strange], "a trial left something"


def test_an_upload_goes_on_in_another_process_through_redis(
    s3: S3Access, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """Two stores with the notes of one Redis, and a real server that lists the parts."""
    options = StoreOptions(
        s3_endpoint=s3.endpoint, multipart_threshold_bytes=5 * MIB, multipart_part_bytes=5 * MIB
    )
    data = os.urandom(11 * MIB)
    path = tmp_path / "file.bin"
    path.write_bytes(data)
    checksum = checksum_of(data)
    notes = RedisNotes(redis_client, s3.url)
    with s3.client() as client:
        key: dict[str, Any] = {"Bucket": s3.bucket, "Key": f"{s3.prefix}/{KEY}"}
        begun = client.create_multipart_upload(
            **key, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT"
        )
        first = checksum_of(data[: 5 * MIB]).partition(":")[2]
        client.upload_part(
            **key, UploadId=begun["UploadId"], PartNumber=1, Body=data[: 5 * MIB], ChecksumCRC64NVME=first
        )
    notes.save(KEY, msgspec.structs.replace(note(begun["UploadId"]), size_bytes=len(data), checksum=checksum))
    store = open_store(s3.url, options, notes=notes)
    store.put_file(KEY, path, size_bytes=len(data), checksum=checksum)
    assert store.read(KEY) == data
    assert notes.all() == {}
    with s3.client() as client:
        assert client.list_multipart_uploads(Bucket=s3.bucket, Prefix=s3.prefix).get("Uploads", []) == []
