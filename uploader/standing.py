"""What stands in the store under a batch's key: the batch, whole, or something else; asked before a local file goes for its sake."""

from __future__ import annotations

import uuid

import msgspec

from common.messages import UploadFile
from hiddenfeed.checksum import RunningChecksum, parse
from hiddenfeed.errors import DataError, MissingObjectError, PermanentError, TransientError
from hiddenfeed.store.base import ObjectInfo, Store
from hiddenfeed.store.s3_judge import proves_itself

_READ_BYTES = 8 * 1024 * 1024


def is_stored(store: Store, message: UploadFile) -> bool:
    """Whether the store holds the batch, as this file or as another extraction of it.

    An object is believed if the store's own checksum is the one that it was meant to have; any other has to be a
    batch file of the batch, or a note on it, to the last byte. Raises PermanentError for what is neither, as a person
    has to take it away, and TransientError if the endpoint has something under every key.
    """
    info = store.head(message.key)
    if info is None:
        return False
    if proves_itself(info) or (info.size_bytes, info.checksum) == (message.size_bytes, message.checksum):
        return True
    try:
        if message.key.endswith(".json"):
            _check_note(store, message, info)
        else:
            _check_file(store, message, info)
    except MissingObjectError:
        return False
    except DataError as error:
        nothing = f"{message.key}.{uuid.uuid4().hex}"
        if store.head(nothing) is not None:
            raise TransientError(
                f"{store.url} has something under every key, even {nothing}, so it does not answer like a store"
            ) from error
        raise PermanentError(
            f"{store.url}/{message.key} is in the way, {info.size_bytes} bytes that are not batch "
            f"{message.batch.batch_id} of run {message.batch.run_id} ({error}): the file stays in the spool; take the object "
            f"away (`hiddenfeed tidy {store.url}/{message.batch.run_id} --deep --remove`), then "
            f"`python -m producer retry-failed {message.batch.run_id}`"
        ) from error
    return True


def _check_file(store: Store, message: UploadFile, info: ObjectInfo) -> None:
    # numpy comes with it: an uploader is small, and this is rare.
    from hiddenfeed.batch_file import read_header, whole_file_checksum

    same_size = info.size_bytes == message.size_bytes
    if same_size and _checksum(store, info, parse(message.checksum)[0]) == message.checksum:
        return
    header, raw = read_header(store, info)
    found, expected = (header.facts.run_id, header.facts.batch_id), message.batch
    if found != (expected.run_id, expected.batch_id):
        raise DataError(f"it is batch {found[1]} of run {found[0]}")
    meant = whole_file_checksum(raw, header.layout, header.checksums)
    checksum = _checksum(store, info, parse(meant)[0])
    if checksum != meant:
        raise DataError(f"its bytes have checksum {checksum}, and its header makes {meant}")


def _checksum(store: Store, info: ObjectInfo, algorithm: str) -> str:
    """The object's checksum of that algorithm: the store's own, or of its bytes, read for that."""
    if info.checksum is not None and parse(info.checksum)[0] == algorithm:
        return info.checksum
    running = RunningChecksum(algorithm)
    for start in range(0, info.size_bytes, _READ_BYTES):
        running.update(store.read(info.key, start, min(_READ_BYTES, info.size_bytes - start)))
    return running.value


def _check_note(store: Store, message: UploadFile, info: ObjectInfo) -> None:
    from hiddenfeed.evidence import MAX_NOTE_BYTES, QuarantineNote

    if info.size_bytes > MAX_NOTE_BYTES:
        raise DataError("too much for a note")
    try:
        note = msgspec.json.decode(store.read(message.key), type=QuarantineNote)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"it is no note: {error}") from None
    if (note.run_id, note.batch_id) != (message.batch.run_id, message.batch.batch_id):
        raise DataError(f"it is a note on batch {note.batch_id} of run {note.run_id}")
