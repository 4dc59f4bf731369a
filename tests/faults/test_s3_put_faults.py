"""What the S3 store makes of a server and a network that fail in every way we know of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import ConfigError, DataError, TransientError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store import PutOutcome, Store, open_store
from tests.faults.scripted_faults import (
    Corrupt,
    CutBody,
    CutReply,
    Fail,
    Forget,
    Hang,
    LoseReply,
    StopReading,
    Well,
)
from tests.faults.scripted_s3 import ScriptedS3, Stored

KEY = "run-1/batches/000000.safetensors"
PLACE = f"runs/{KEY}"
DATA = os.urandom(2 * MIB)
PARTED = os.urandom(7 * MIB)


def open_scripted(server: ScriptedS3, tmp_path: Path, *, patience_seconds: float) -> Store:
    """Two attempts a call, parts above 5 MiB; from boto3 it has learned how to send a file, and a part."""
    options = StoreOptions(
        s3_endpoint=server.endpoint,
        s3_connect_timeout_seconds=patience_seconds,
        s3_read_timeout_seconds=patience_seconds,
        s3_max_attempts=2,
        multipart_threshold_bytes=5 * MIB,
        multipart_part_bytes=5 * MIB,
    )
    store = open_store("s3://bucket/runs", options)
    path = tmp_path / "first.bin"
    for data in (DATA[:1000], PARTED[: 5 * MIB + 1]):
        path.write_bytes(data)
        store.put_file("first", path, size_bytes=len(data), checksum=checksum_of(data))
        server.objects.clear()
    path.unlink()
    server.log.clear()
    return store


@pytest.fixture
def store(server: ScriptedS3, tmp_path: Path) -> Store:
    """Patient enough for a busy machine."""
    return open_scripted(server, tmp_path, patience_seconds=20)


@pytest.fixture(params=["one request", "parts"])
def data(request: pytest.FixtureRequest) -> bytes:
    """Bytes that travel in one request, and bytes that travel in parts."""
    return DATA if request.param == "one request" else PARTED


def put(store: Store, tmp_path: Path, data: bytes) -> PutOutcome:
    path = tmp_path / "file.bin"
    path.write_bytes(data)
    return store.put_file(KEY, path, size_bytes=len(data), checksum=checksum_of(data))


def carrier(data: bytes) -> str:
    """The operation that carries the bytes."""
    return "PutObject" if data is DATA else "UploadPart"


def finisher(data: bytes) -> str:
    """The operation that makes the object."""
    return "PutObject" if data is DATA else "CompleteMultipartUpload"


# --- what is overcome within the call ---


def test_a_reset_in_mid_body_is_tried_again(
    server: ScriptedS3, store: Store, tmp_path: Path, data: bytes
) -> None:
    server.script(carrier(data), CutBody(MIB))
    assert put(store, tmp_path, data) is PutOutcome.STORED
    assert server.objects[PLACE].data == data


def test_one_busy_reply_is_tried_again(server: ScriptedS3, store: Store, tmp_path: Path, data: bytes) -> None:
    server.script(carrier(data), Fail(503, "SlowDown"))
    assert put(store, tmp_path, data) is PutOutcome.STORED
    assert server.objects[PLACE].data == data


def test_a_lost_reply_of_put_ends_well(server: ScriptedS3, store: Store, tmp_path: Path) -> None:
    """The second attempt meets the object of the first."""
    server.script("PutObject", LoseReply())
    assert put(store, tmp_path, DATA) is PutOutcome.ALREADY_THERE
    assert server.objects[PLACE].data == DATA


def test_a_lost_reply_of_complete_ends_well(server: ScriptedS3, store: Store, tmp_path: Path) -> None:
    """The second attempt hears NoSuchUpload, although the first one succeeded."""
    server.script("CompleteMultipartUpload", LoseReply())
    assert put(store, tmp_path, PARTED) is PutOutcome.STORED
    assert server.log.count("CompleteMultipartUpload") == 2
    assert server.objects[PLACE].data == PARTED
    assert "AbortMultipartUpload" not in server.log


def test_a_success_that_hides_an_error_is_none(server: ScriptedS3, store: Store, tmp_path: Path) -> None:
    """S3 may reply 200 to Complete and put an error into the body."""
    server.script("CompleteMultipartUpload", Fail(200, "InternalError"))
    assert put(store, tmp_path, PARTED) is PutOutcome.STORED
    assert server.log.count("CompleteMultipartUpload") == 2


def test_a_conflict_with_an_equal_writer_ends_well(
    server: ScriptedS3, store: Store, tmp_path: Path, data: bytes
) -> None:
    """409: two conditional writes met, and the other one has won."""
    if data is DATA:
        server.objects[PLACE] = Stored(data)
    else:
        server.script("HeadObject", Fail(404, "NotFound"))
        server.objects[PLACE] = Stored(data)
    server.script(finisher(data), Fail(409, "ConditionalRequestConflict"))
    assert put(store, tmp_path, data) is PutOutcome.ALREADY_THERE
    assert server.uploads == {}


@pytest.mark.parametrize("equal", [True, False])
def test_an_object_that_appears_meanwhile_wins(
    server: ScriptedS3, store: Store, tmp_path: Path, data: bytes, equal: bool
) -> None:
    other = data if equal else b"another extraction"
    server.objects[PLACE] = Stored(other)
    server.script("HeadObject", *([] if data is DATA else [Fail(404, "NotFound")]))
    expected = PutOutcome.ALREADY_THERE if equal else PutOutcome.OTHER_WINS
    assert put(store, tmp_path, data) is expected
    assert server.objects[PLACE].data == other
    assert server.uploads == {}, "the parts of the loser were not given up"


# --- what the caller must try again later ---


@pytest.mark.parametrize(
    "fault",
    [
        Fail(503, "SlowDown"),
        Fail(500, "InternalError"),
        Fail(507, "InsufficientStorage"),
        Fail(400, "BadDigest"),
        Fail(409, "ConditionalRequestConflict"),
        CutBody(1000),
    ],
    ids=["503", "500", "507", "digest", "409", "cut"],
)
def test_an_outage_is_transient_and_leaves_nothing(
    server: ScriptedS3, store: Store, tmp_path: Path, data: bytes, fault: Fail | CutBody
) -> None:
    server.always(carrier(data), fault)
    with pytest.raises(TransientError, match=f"could not store {KEY}"):
        put(store, tmp_path, data)
    assert server.objects == {}
    assert server.uploads == {}
    server.always(carrier(data), Well())
    assert put(store, tmp_path, data) is PutOutcome.STORED


@pytest.mark.parametrize("fault", [Hang(), StopReading()], ids=["no reply", "no reading"])
def test_a_server_that_hangs_is_given_up(
    server: ScriptedS3, tmp_path: Path, data: bytes, fault: Hang | StopReading
) -> None:
    """Larger than what the sockets' buffers take, so that a server that does not read is felt."""
    impatient = open_scripted(server, tmp_path, patience_seconds=0.5)
    server.always(carrier(data), fault)
    with pytest.raises(TransientError, match=f"could not store {KEY}"):
        put(impatient, tmp_path, data * 4 if data is PARTED else data)
    assert server.objects == {}
    assert server.uploads == {}


def test_a_storm_of_busy_replies_harms_no_file(server: ScriptedS3, store: Store, tmp_path: Path) -> None:
    server.always("PutObject", Fail(503, "SlowDown"))
    for _ in range(5):
        with pytest.raises(TransientError, match="busy"):
            put(store, tmp_path, DATA)
    server.always("PutObject", Well())
    assert put(store, tmp_path, DATA) is PutOutcome.STORED


def test_all_replies_lost_is_transient_and_then_found_there(
    server: ScriptedS3, store: Store, tmp_path: Path, data: bytes
) -> None:
    server.script(finisher(data), LoseReply())
    server.script("HeadObject", *([] if data is DATA else [Well()]), *[Fail(503, "SlowDown")] * 3)
    with pytest.raises(TransientError):
        put(store, tmp_path, data)
    assert server.objects[PLACE].data == data
    assert put(store, tmp_path, data) is PutOutcome.ALREADY_THERE


def test_a_store_that_accepts_and_forgets_is_not_believed(
    server: ScriptedS3, store: Store, tmp_path: Path, data: bytes
) -> None:
    server.script(finisher(data), Forget())
    with pytest.raises(TransientError, match="accepted it, but it is not there"):
        put(store, tmp_path, data)
    assert put(store, tmp_path, data) is PutOutcome.STORED


def test_a_store_that_holds_other_bytes_is_not_believed(
    server: ScriptedS3, store: Store, tmp_path: Path, data: bytes
) -> None:
    server.script(finisher(data), Corrupt())
    with pytest.raises(TransientError, match="other bytes than it was given"):
        put(store, tmp_path, data)
    assert server.objects == {}, "a damaged object would win over the next attempt"
    assert put(store, tmp_path, data) is PutOutcome.STORED
    assert server.objects[PLACE].data == data


def test_a_damaged_object_of_an_earlier_attempt_does_not_win(
    server: ScriptedS3, store: Store, tmp_path: Path
) -> None:
    """Its metadata says what it was meant to be."""
    server.script("PutObject", Corrupt())
    server.script("HeadObject", *[Fail(503, "SlowDown")] * 3)
    with pytest.raises(TransientError):
        put(store, tmp_path, DATA)
    assert PLACE in server.objects
    with pytest.raises(TransientError, match="other bytes than it was given"):
        put(store, tmp_path, DATA)
    assert put(store, tmp_path, DATA) is PutOutcome.STORED


def test_an_upload_that_vanishes_is_started_anew_later(
    server: ScriptedS3, store: Store, tmp_path: Path
) -> None:
    server.script("CompleteMultipartUpload", Fail(404, "NoSuchUpload"))
    with pytest.raises(TransientError, match="NoSuchUpload"):
        put(store, tmp_path, PARTED)
    assert put(store, tmp_path, PARTED) is PutOutcome.STORED


def test_an_abort_that_fails_is_reported_and_hides_nothing(
    server: ScriptedS3, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.always("UploadPart", Fail(507, "InsufficientStorage"))
    server.always("AbortMultipartUpload", Fail(403, "AccessDenied"))
    with pytest.raises(TransientError, match="InsufficientStorage"):
        put(store, tmp_path, PARTED)
    assert "stay in the store as upload upload-" in caplog.text


# --- what must not be tried again ---


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (Fail(403, "AccessDenied"), "does not allow us to store"),
        (Fail(403, "InvalidAccessKeyId"), "does not know the access key"),
        (Fail(403, "SignatureDoesNotMatch"), "refuses the credentials"),
        (Fail(400, "ExpiredToken"), "have expired"),
        (Fail(404, "NoSuchBucket"), "bucket 'bucket' does not exist at http://127.0.0.1:"),
        (Fail(501, "NotImplemented"), "lacks something that safe uploads need"),
    ],
)
def test_a_refusal_is_one_sentence_after_one_request(
    server: ScriptedS3, store: Store, tmp_path: Path, fault: Fail, sentence: str
) -> None:
    server.always("PutObject", fault)
    with pytest.raises(ConfigError, match=sentence) as caught:
        put(store, tmp_path, DATA)
    assert "\n" not in str(caught.value)
    assert server.log == ["PutObject"]


def test_a_changed_file_is_not_sent_to_the_end(
    server: ScriptedS3, store: Store, tmp_path: Path, data: bytes
) -> None:
    """Even a server that verifies nothing never sees the last byte, so it cannot store the file."""
    path = tmp_path / "file.bin"
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DataError, match="has checksum"):
        store.put_file(KEY, path, size_bytes=len(data), checksum=checksum_of(data))
    assert server.objects == {}
    assert server.uploads == {}
    assert server.log.count("PutObject") <= 1, "the same wrong bytes were sent again"
    assert "CompleteMultipartUpload" not in server.log


# --- reading ---


def test_reading_goes_on_where_a_connection_broke_off(
    server: ScriptedS3, store: Store, tmp_path: Path
) -> None:
    server.objects[PLACE] = Stored(PARTED)
    server.script("GetObject", CutReply(3 * MIB), CutReply(MIB), CutReply(0))
    assert store.read(KEY) == PARTED
    server.script("GetObject", CutReply(3 * MIB))
    assert store.download(KEY, tmp_path / "copy").size_bytes == len(PARTED)
    assert (tmp_path / "copy").read_bytes() == PARTED
    server.script("GetObject", CutReply(10))
    assert store.read(KEY, 100, 1000) == PARTED[100:1100]


def test_reading_that_gets_nowhere_is_transient(server: ScriptedS3, store: Store, tmp_path: Path) -> None:
    server.objects[PLACE] = Stored(PARTED)
    server.always("GetObject", CutReply(0))
    for call in (
        lambda: store.read(KEY),
        lambda: store.read(KEY, 1, 10),
        lambda: store.download(KEY, tmp_path / "copy"),
    ):
        with pytest.raises(TransientError, match=f"could not read {KEY}"):
            call()
    assert list(tmp_path.iterdir()) == []
