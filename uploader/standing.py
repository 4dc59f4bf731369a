"""What stands in the store under a batch's key: the batch, whole, or something else; asked before a local file goes for its sake."""

from __future__ import annotations

import msgspec

from common.messages import UploadFile
from hiddenfeed.batch_file import read_header, whole_file_checksum
from hiddenfeed.checksum import parse
from hiddenfeed.errors import DataError, MissingObjectError, TransientError
from hiddenfeed.evidence import MAX_NOTE_BYTES, QuarantineNote
from hiddenfeed.store.base import ObjectInfo, Store
from hiddenfeed.store.s3_judge import is_whole


def is_stored(store: Store, message: UploadFile) -> bool:
    """Whether the store holds the batch, as this file or as another extraction of it.

    An object that says of itself what it was meant to be, and is it, is believed; any other has to be a batch file
    of the batch, or a note on it, to the last byte. Raises TransientError for what is neither, as a person has to
    take it away, or the endpoint is no store at all.
    """
    info = store.head(message.key)
    if info is None:
        return False
    if is_whole(info) or (info.size_bytes, info.checksum) == (message.size_bytes, message.checksum):
        return True
    try:
        if message.key.endswith(".json"):
            _check_note(store, message, info)
        else:
            _check_file(store, message, info)
    except MissingObjectError:
        return False
    except DataError as error:
        raise TransientError(
            f"{store.url}/{message.key} is in the way, {info.size_bytes} bytes that are not batch "
            f"{message.batch.batch_id} of run {message.batch.run_id} ({error}): the file stays in the spool; take the object "
            f"away, then `python -m producer retry-failed {message.batch.run_id}`"
        ) from error
    return True


def _check_file(store: Store, message: UploadFile, info: ObjectInfo) -> None:
    read = store.head(message.key, checksum=True)
    if read is None:
        raise MissingObjectError(f"{message.key} is gone")
    if (read.size_bytes, read.checksum) == (message.size_bytes, message.checksum):
        return
    header, raw = read_header(store, info)
    found, expected = (header.facts.run_id, header.facts.batch_id), message.batch
    if found != (expected.run_id, expected.batch_id):
        raise DataError(f"it is batch {found[1]} of run {found[0]}")
    meant = whole_file_checksum(raw, header.layout, header.checksums)
    if read.checksum is None or parse(read.checksum)[0] != parse(meant)[0] or read.checksum != meant:
        raise DataError(f"its bytes have checksum {read.checksum}, and its header makes {meant}")


def _check_note(store: Store, message: UploadFile, info: ObjectInfo) -> None:
    if info.size_bytes > MAX_NOTE_BYTES:
        raise DataError("too much for a note")
    try:
        note = msgspec.json.decode(store.read(message.key), type=QuarantineNote)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"it is no note: {error}") from None
    if (note.run_id, note.batch_id) != (message.batch.run_id, message.batch.batch_id):
        raise DataError(f"it is a note on batch {note.batch_id} of run {note.run_id}")
