"""Uploads in parts that came to nothing: none of them is left in the store, and giving them up harms no object."""

from __future__ import annotations

from pathlib import Path

import pytest

from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import DataError, TransientError
from hiddenfeed.store import PutOutcome
from hiddenfeed.store.base import KeepsParts
from hiddenfeed.store.s3_judge import declared
from tests.faults.scripted_faults import CutBody, Fail, Ignore, Lack, TakeAlong, Well
from tests.faults.scripted_s3 import ScriptedS3, Stored
from tests.faults.scripted_store import DATA, KEY, PART, PLACE, Notes, opened, put


@pytest.fixture
def notes() -> Notes:
    return Notes()


def test_what_goes_in_one_request_after_all_gives_up_the_parts_of_before(
    server: ScriptedS3, notes: Notes, tmp_path: Path
) -> None:
    server.script("UploadPart", Well(), CutBody(1000))
    with pytest.raises(TransientError):
        put(opened(server, notes), tmp_path)
    assert (len(server.uploads), list(notes.kept)) == (1, [KEY])
    higher = opened(server, notes, multipart_threshold_bytes=4 * PART)
    # A server that takes the object away as well has none yet.
    server.script("AbortMultipartUpload", TakeAlong())
    assert put(higher, tmp_path) is PutOutcome.STORED
    assert (server.uploads, notes.kept) == ({}, {})
    assert server.objects[PLACE].data == DATA


def test_what_goes_in_one_request_needs_no_notes(
    server: ScriptedS3, notes: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(key: str) -> None:
        raise TransientError("the notes are away")

    monkeypatch.setattr(notes, "load", away)
    assert put(opened(server, notes), tmp_path, DATA[:1000]) is PutOutcome.STORED


@pytest.mark.parametrize("noted", [True, False])
def test_a_complete_that_did_nothing_leaves_one_upload_at_most(
    server: ScriptedS3, notes: Notes, tmp_path: Path, noted: bool
) -> None:
    store = opened(server, notes if noted else None)
    server.always("CompleteMultipartUpload", Ignore())
    for _ in range(3):
        with pytest.raises(TransientError, match="accepted it, but it is not there"):
            put(store, tmp_path)
        assert [note.upload_id for note in notes.kept.values()] == list(server.uploads), (
            "not to be found again"
        )
    assert server.log.count("CreateMultipartUpload") == (1 if noted else 3)
    server.always("CompleteMultipartUpload", Well())
    assert put(store, tmp_path) is PutOutcome.STORED
    assert server.parts_sent == [1, 2, 3] * (1 if noted else 4), "parts that were there were sent again"
    assert (server.uploads, notes.kept) == ({}, {})


@pytest.mark.parametrize("declares", [True, False], ids=["ours", "a stranger's"])
def test_parts_beside_another_object_are_given_up_whatever_complete_says(
    server: ScriptedS3, notes: Notes, tmp_path: Path, declares: bool
) -> None:
    server.lacks.add(Lack.CONDITIONS)
    other = DATA[::-1]
    said = {f"x-amz-meta-{name}": text for name, text in declared(len(other), checksum_of(other)).items()}
    server.objects[PLACE] = Stored(other, said if declares else {})
    server.script("HeadObject", Fail(404, "NotFound"))
    server.script("CompleteMultipartUpload", Ignore())
    if declares:
        assert put(opened(server, notes), tmp_path) is PutOutcome.OTHER_WINS
    else:
        with pytest.raises(TransientError, match="accepted it, but something else is there"):
            put(opened(server, notes), tmp_path)
    assert server.objects[PLACE].data == other
    assert (server.uploads, notes.kept) == ({}, {})


def test_an_upload_that_could_not_be_given_up_is_not_forgotten(
    server: ScriptedS3, notes: Notes, tmp_path: Path
) -> None:
    server.script("AbortMultipartUpload", Fail(503, "SlowDown"))
    with pytest.raises(DataError, match="has checksum"):
        put(opened(server, notes), tmp_path, announced=DATA[::-1])
    assert (len(server.uploads), list(notes.kept)) == (1, [KEY])
    assert put(opened(server, notes), tmp_path) is PutOutcome.STORED
    assert (server.uploads, notes.kept) == ({}, {})


@pytest.mark.parametrize("takes", [True, False])
def test_a_store_that_takes_objects_along_with_parts_is_found_out(server: ScriptedS3, takes: bool) -> None:
    store = opened(server)
    assert isinstance(store, KeepsParts)
    server.always("AbortMultipartUpload", TakeAlong() if takes else Well())
    assert store.abort_spares_object() is not takes
    assert (server.objects, server.uploads) == ({}, {})
    server.always("UploadPart", Fail(501, "NotImplemented"))
    assert not store.abort_spares_object()
    assert (server.objects, server.uploads) == ({}, {})
