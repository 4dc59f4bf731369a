"""Large files towards a server that fails or lacks something: going on after a crash, deadlines, fewer requests when busy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hiddenfeed.checksum import CRC32, checksum_of
from hiddenfeed.errors import DataError, TransientError
from hiddenfeed.options import MIB
from hiddenfeed.store import PutOutcome, RequestGate
from tests.faults.scripted_faults import (
    Corrupt,
    CutBody,
    Fail,
    Foreign,
    Lack,
    LoseReply,
    RefuseEarly,
    Trickle,
    Well,
)
from tests.faults.scripted_s3 import ScriptedS3, Stored
from tests.faults.scripted_store import DATA, KEY, PART, PLACE, Notes, opened, put

SMALL = os.urandom(PART // 4)


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores ask at once whether the server verifies, and then leave it to the server."""
    monkeypatch.setattr("hiddenfeed.store.s3_link.WORTH_ASKING_BYTES", 1)


@pytest.fixture
def notes() -> Notes:
    return Notes()


# --- going on after a crash ---


@pytest.mark.parametrize("lacks", [set[Lack](), {Lack.PART_CHECKSUMS}], ids=["told", "untold"])
@pytest.mark.usefixtures("trusting")
def test_an_interrupted_upload_goes_on_with_what_is_there(
    server: ScriptedS3, notes: Notes, tmp_path: Path, lacks: set[Lack]
) -> None:
    server.lacks |= lacks
    server.script("UploadPart", Well(), Well(), CutBody(1000))
    with pytest.raises(TransientError):
        put(opened(server, notes), tmp_path)
    assert list(notes.kept) == [KEY]
    assert len(server.uploads) == 1, "the parts were given up"
    server.log.clear()
    assert put(opened(server, notes), tmp_path) is PutOutcome.STORED
    assert server.log.count("UploadPart") == 1
    assert "CreateMultipartUpload" not in server.log
    assert server.objects[PLACE].data == DATA
    assert notes.kept == {}


def test_a_part_that_is_not_what_it_should_be_is_sent_again(
    server: ScriptedS3, notes: Notes, tmp_path: Path
) -> None:
    server.script("UploadPart", Well(), Well(), CutBody(1000))
    with pytest.raises(TransientError):
        put(opened(server, notes), tmp_path)
    (upload,) = server.uploads.values()
    upload.parts[1] = upload.parts[1][:-1] + bytes([upload.parts[1][-1] ^ 1])
    upload.parts[2] = upload.parts[2][:-1]
    server.log.clear()
    assert put(opened(server, notes), tmp_path) is PutOutcome.STORED
    assert server.log.count("UploadPart") == 3
    assert server.objects[PLACE].data == DATA


@pytest.mark.usefixtures("trusting")
def test_damage_among_parts_taken_on_trust_is_found_in_the_whole(
    server: ScriptedS3, notes: Notes, tmp_path: Path
) -> None:
    server.lacks.add(Lack.PART_CHECKSUMS)
    server.script("UploadPart", Well(), Well(), CutBody(1000))
    with pytest.raises(TransientError):
        put(opened(server, notes), tmp_path)
    (upload,) = server.uploads.values()
    upload.parts[1] = upload.parts[1][:-1] + bytes([upload.parts[1][-1] ^ 1])
    with pytest.raises(TransientError, match="BadDigest"):
        put(opened(server, notes), tmp_path)
    assert (server.objects, server.uploads, notes.kept) == ({}, {}, {})
    assert put(opened(server, notes), tmp_path) is PutOutcome.STORED


def test_another_file_of_the_key_gives_the_old_parts_up(
    server: ScriptedS3, notes: Notes, tmp_path: Path
) -> None:
    server.script("UploadPart", Well(), CutBody(1000))
    with pytest.raises(TransientError):
        put(opened(server, notes), tmp_path)
    other = os.urandom(2 * PART + 1)
    assert put(opened(server, notes), tmp_path, other) is PutOutcome.STORED
    assert server.objects[PLACE].data == other
    assert (server.uploads, notes.kept) == ({}, {})


def test_an_upload_that_the_store_forgot_begins_anew(
    server: ScriptedS3, notes: Notes, tmp_path: Path
) -> None:
    server.script("UploadPart", Well(), CutBody(1000))
    with pytest.raises(TransientError):
        put(opened(server, notes), tmp_path)
    server.uploads.clear()
    assert put(opened(server, notes), tmp_path) is PutOutcome.STORED
    assert notes.kept == {}


def test_parts_of_an_object_that_is_there_by_now_are_given_up(
    server: ScriptedS3, notes: Notes, tmp_path: Path
) -> None:
    server.script("UploadPart", Well(), CutBody(1000))
    with pytest.raises(TransientError):
        put(opened(server, notes), tmp_path)
    server.objects[PLACE] = Stored(DATA)
    assert put(opened(server, notes), tmp_path) is PutOutcome.ALREADY_THERE
    assert (server.uploads, notes.kept) == ({}, {})


def test_a_lost_reply_of_complete_is_found_out_by_the_next_one(
    server: ScriptedS3, notes: Notes, tmp_path: Path
) -> None:
    server.script("CompleteMultipartUpload", LoseReply())
    server.script("HeadObject", Well(), Fail(503, "SlowDown"))
    with pytest.raises(TransientError):
        put(opened(server, notes), tmp_path)
    assert put(opened(server, notes), tmp_path) is PutOutcome.ALREADY_THERE
    assert notes.kept == {}


def test_what_cannot_be_noted_is_not_begun(server: ScriptedS3, notes: Notes, tmp_path: Path) -> None:
    notes.away = True
    with pytest.raises(TransientError, match="the notes are away"):
        put(opened(server, notes), tmp_path)
    assert server.uploads == {}
    assert "UploadPart" not in server.log


def test_a_changed_file_leaves_neither_parts_nor_a_note(
    server: ScriptedS3, notes: Notes, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="has checksum"):
        put(opened(server, notes), tmp_path, announced=DATA[::-1])
    assert (server.objects, server.uploads, notes.kept) == ({}, {}, {})


# --- a server that verifies, and one that only seems to ---


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
class TestTrust:
    """The kernel sends the file, and the server finds out what is wrong with it."""

    def test_a_changed_file_is_found_by_the_server(
        self, server: ScriptedS3, tmp_path: Path, data: bytes
    ) -> None:
        with pytest.raises(DataError, match="has checksum"):
            put(opened(server), tmp_path, data, announced=data[::-1])
        assert (server.objects, server.uploads) == ({}, {})

    def test_damage_on_the_way_is_transient(self, server: ScriptedS3, tmp_path: Path, data: bytes) -> None:
        server.script("PutObject" if data is SMALL else "CompleteMultipartUpload", *_after_question(data))
        with pytest.raises(TransientError, match="BadDigest"):
            put(opened(server), tmp_path, data)
        assert put(opened(server), tmp_path, data) is PutOutcome.STORED

    def test_a_server_that_verifies_nothing_is_not_trusted(
        self, server: ScriptedS3, tmp_path: Path, data: bytes
    ) -> None:
        server.lacks.add(Lack.CHECKSUMS)
        with pytest.raises(DataError, match="has checksum"):
            put(opened(server), tmp_path, data, announced=data[::-1])
        assert (server.objects, server.uploads) == ({}, {}), "the question's object or the file is there"
        assert put(opened(server), tmp_path, data) is PutOutcome.STORED

    def test_the_store_must_still_hold_what_it_was_given(
        self, server: ScriptedS3, tmp_path: Path, data: bytes
    ) -> None:
        store = opened(server)
        assert put(store, tmp_path, data) is PutOutcome.STORED
        server.objects.clear()
        server.script("PutObject" if data is SMALL else "CompleteMultipartUpload", Corrupt())
        with pytest.raises(TransientError, match="other bytes than it was given"):
            put(store, tmp_path, data)

    def test_a_refusal_in_mid_body_is_heard(self, server: ScriptedS3, tmp_path: Path, data: bytes) -> None:
        """The server replies and closes while we still send."""
        server.objects[PLACE] = Stored(data)
        store = opened(server, s3_max_attempts=3)
        server.script("HeadObject", *([] if data is SMALL else [Fail(404, "NotFound")]))
        operation = "PutObject" if data is SMALL else "UploadPart"
        server.script(operation, *([Fail(400, "BadDigest")] if data is SMALL else []))
        server.script(operation, *[RefuseEarly(412, "PreconditionFailed")] * 3)
        if data is SMALL:
            assert put(store, tmp_path, data) is PutOutcome.ALREADY_THERE
        else:
            with pytest.raises(TransientError):
                put(store, tmp_path, data)


def _after_question(data: bytes) -> list[Fail]:
    """Faults that spare the answer to whether the server verifies, which is a bad digest as well."""
    bad = Fail(400, "BadDigest")
    return [bad, bad] if data is SMALL else [bad]


@pytest.mark.usefixtures("trusting")
def test_a_store_that_wants_checksums_of_parts_gets_them(server: ScriptedS3, tmp_path: Path) -> None:
    server.lacks.add(Lack.BARE_PARTS)
    store = opened(server)
    assert put(store, tmp_path) is PutOutcome.STORED
    assert server.uploads == {}
    server.log.clear()
    server.objects.clear()
    assert put(store, tmp_path) is PutOutcome.STORED
    assert server.log.count("UploadPart") == 3, "it asked again"


# --- stores of other makes ---


@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
@pytest.mark.parametrize("mode", ["off", "md5"])
def test_without_checksums_the_file_is_verified_here(
    server: ScriptedS3, tmp_path: Path, data: bytes, mode: str
) -> None:
    server.lacks.add(Lack.CHECKSUMS)
    store = opened(server, s3_checksum=mode)
    with pytest.raises(DataError, match="has checksum"):
        put(store, tmp_path, data, announced=data[::-1])
    assert (server.objects, server.uploads) == ({}, {})
    assert put(store, tmp_path, data) is PutOutcome.STORED
    assert put(store, tmp_path, data) is PutOutcome.ALREADY_THERE
    sent = [headers for headers in server.headers if int(headers.get("content-length", 0)) >= 1000]
    assert all(("content-md5" in headers) == (mode == "md5") for headers in sent)
    assert not any(name.startswith("x-amz-checksum") for headers in sent for name in headers)


@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
@pytest.mark.parametrize("acknowledged", [True, False], ids=["on its way", "there before"])
def test_where_the_store_tells_no_checksum_an_object_is_read_back(
    server: ScriptedS3, tmp_path: Path, data: bytes, acknowledged: bool
) -> None:
    """What it was meant to be is in its metadata, and proves nothing of its bytes."""
    server.lacks.add(Lack.CHECKSUMS)
    store = opened(server, s3_checksum="off")
    if acknowledged:
        server.script("PutObject" if data is SMALL else "CompleteMultipartUpload", Corrupt())
    else:
        put(store, tmp_path, data)
        server.objects[PLACE] = Stored(data[::-1], server.objects[PLACE].metadata)
    with pytest.raises(TransientError, match="held other bytes than it was given; they were removed"):
        put(store, tmp_path, data)
    assert server.objects == {}
    assert put(store, tmp_path, data) is PutOutcome.STORED
    assert server.objects[PLACE].data == data


def test_the_object_of_a_lost_complete_is_read_back_as_well(server: ScriptedS3, tmp_path: Path) -> None:
    """The second try hears that there is no such upload, and the object says what it was meant to be."""
    server.lacks.add(Lack.CHECKSUMS)
    store = opened(server, s3_checksum="off", s3_max_attempts=2)
    server.script("UploadPart", Corrupt())
    server.script("CompleteMultipartUpload", LoseReply())
    with pytest.raises(TransientError, match="held other bytes than it was given; they were removed"):
        put(store, tmp_path)
    assert put(store, tmp_path) is PutOutcome.STORED


@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
@pytest.mark.parametrize("tells", [True, False], ids=["MD5 as ETag", "other ETags"])
def test_with_md5_an_object_is_read_back_unless_the_etags_prove_it(
    server: ScriptedS3, tmp_path: Path, data: bytes, tells: bool
) -> None:
    """A store that ignores Content-MD5 tells the MD5 of what arrived, or nothing of use."""
    server.lacks.add(Lack.CHECKSUMS)
    if tells:
        server.md5_etags = True
    store = opened(server, s3_checksum="md5")
    assert put(store, tmp_path, data) is PutOutcome.STORED
    assert ("GetObject" in server.log) is not tells
    server.objects.clear()
    server.script("PutObject" if data is SMALL else "UploadPart", Corrupt())
    with pytest.raises(TransientError, match="held other bytes than it was given; they were removed"):
        put(store, tmp_path, data)
    assert put(store, tmp_path, data) is PutOutcome.STORED


@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
@pytest.mark.parametrize("same", [True, False])
def test_an_object_with_a_checksum_of_another_kind_is_read(
    server: ScriptedS3, tmp_path: Path, data: bytes, same: bool
) -> None:
    """Another tool copied it there, and the store keeps that tool's CRC32."""
    stored = data if same else data[::-1]
    server.objects[PLACE] = Stored(stored)
    told = {"x-amz-checksum-crc32": checksum_of(stored, CRC32).partition(":")[2]}
    server.always("HeadObject", Foreign(200, b"", {"ETag": '"e"', "Content-Length": str(len(data)), **told}))
    outcome = put(opened(server), tmp_path, data)
    assert outcome is (PutOutcome.ALREADY_THERE if same else PutOutcome.OTHER_WINS)


@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
def test_a_stranger_in_place_of_what_was_acknowledged_is_no_winner(
    server: ScriptedS3, tmp_path: Path, data: bytes
) -> None:
    store = opened(server)
    server.script("HeadObject", *([] if data is SMALL else [Fail(404, "NotFound")]))
    server.script("HeadObject", Foreign(200, b"", {"ETag": '"e"', "Content-Length": "4"}))
    with pytest.raises(TransientError, match="accepted it, but something else is there"):
        put(store, tmp_path, data)
    assert put(store, tmp_path, data) is PutOutcome.ALREADY_THERE


@pytest.mark.parametrize("data", [SMALL, DATA], ids=["one request", "parts"])
def test_without_conditions_a_look_keeps_the_first(server: ScriptedS3, tmp_path: Path, data: bytes) -> None:
    server.lacks.add(Lack.CONDITIONS)
    store = opened(server, s3_conditional_writes=False)
    assert put(store, tmp_path, data) is PutOutcome.STORED
    assert put(store, tmp_path, data[::-1]) is PutOutcome.OTHER_WINS
    assert server.objects[PLACE].data == data
    assert store.write("run-1/run.json", b"one", if_absent=True) is PutOutcome.STORED
    assert store.write("run-1/run.json", b"two", if_absent=True) is PutOutcome.OTHER_WINS
    assert not any("if-none-match" in headers for headers in server.headers)


@pytest.mark.parametrize("asks", [True, False])
def test_a_body_is_announced_only_where_that_is_set(server: ScriptedS3, tmp_path: Path, asks: bool) -> None:
    put(opened(server, s3_expect_continue=asks), tmp_path, SMALL)
    assert ("expect" in server.headers[server.log.index("PutObject")]) == asks


# --- time, and how many at a time ---


@pytest.mark.parametrize("trust", [True, False])
def test_a_trickle_is_given_up_and_leaves_nothing(
    server: ScriptedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: bool
) -> None:
    """Some bytes leave now and then, so no timeout of the connection strikes."""
    monkeypatch.setattr("hiddenfeed.store.deadline.GRACE_SECONDS", 0.3)
    monkeypatch.setattr("hiddenfeed.store.s3_link.WORTH_ASKING_BYTES", 1 if trust else 64 * MIB)
    if trust:
        monkeypatch.setattr("hiddenfeed.store.verified_file._SENDFILE_BYTES", 65536)
        server.script("PutObject", Well())
    server.always("PutObject", Trickle())
    gate = RequestGate(lambda: 8)
    store = opened(
        server, gate=gate, s3_min_bytes_per_second=1_000_000_000, multipart_threshold_bytes=64 * MIB
    )
    with pytest.raises(TransientError, match=f"^{KEY} was not stored within 0 s, so it is started anew"):
        put(store, tmp_path, bytes(24 * MIB))
    assert gate.limit == 1, "files that are late together must become fewer at a time"
    assert server.objects == {}


def test_a_busy_store_gets_fewer_requests_at_a_time(server: ScriptedS3, tmp_path: Path) -> None:
    gate = RequestGate(lambda: 8)
    store = opened(server, gate=gate, s3_max_attempts=2)
    server.script("PutObject", Fail(503, "SlowDown"))
    assert put(store, tmp_path, SMALL) is PutOutcome.STORED
    assert gate.limit == 2, "one was under way: halved to one, and grown by one for a success"


@pytest.mark.parametrize("limit", [1, 2])
def test_parts_go_side_by_side_and_count_as_requests(server: ScriptedS3, tmp_path: Path, limit: int) -> None:
    store = opened(server, gate=RequestGate(lambda: limit), multipart_parts_in_flight=3)
    assert put(store, tmp_path, DATA * 2) is PutOutcome.STORED
    assert server.objects[PLACE].data == DATA * 2
    assert 1 <= server.most_at_a_time <= limit
