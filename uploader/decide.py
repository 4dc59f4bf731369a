"""What to do about one finished file, and about files that no job speaks of. Pure: facts in, decisions out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from common.messages import UploadFile
from common.queues import extract_job_id, upload_job_id
from common.spool import SpoolFile
from common.spool_path import parse_spool_path
from hiddenfeed.checksum import parse
from hiddenfeed.errors import DataError, PermanentError
from hiddenfeed.layout import batch_key, quarantine_note_key
from hiddenfeed.options import StoreOptions
from hiddenfeed.store.base import PutOutcome

Outcome = Literal["stored", "already-there", "other-wins", "sent-back"]

#: States in which an upload job still has a use for its file, or a person has.
_NEEDS_ITS_FILE = frozenset({"queued", "started", "scheduled", "deferred", "failed"})
#: The state in which an extraction may have its file finished and not yet announced.
_COMPUTING = frozenset({"started"})


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an upload job ends."""

    outcome: Outcome
    #: Extract the batch again: nobody has its bytes any more.
    extract_again: bool = False
    #: For the log; None when everything went as planned.
    remark: str | None = None


def check_message(message: UploadFile, spool_name: str) -> None:
    """Raise PermanentError unless the message is ours and its path and key are those of its batch."""
    batch = message.batch
    if message.spool != spool_name:
        raise PermanentError(
            f"the file is in spool {message.spool!r} and this uploader serves {spool_name!r}"
        )
    run_id, batch_id, suffix = parse_spool_path(message.path)
    if (run_id, batch_id) != (batch.run_id, batch.batch_id):
        raise PermanentError(
            f"path {message.path!r} is not a file of batch {batch.batch_id} of {batch.run_id}"
        )
    try:
        keys = {".safetensors": batch_key(run_id, batch_id), ".json": quarantine_note_key(run_id, batch_id)}
        parse(message.checksum)
    except DataError as error:
        raise PermanentError(f"UploadFile message of {message.path}: {error}") from None
    if message.key != keys[suffix]:
        raise PermanentError(
            f"key {message.key!r} is not that of {message.path!r}, which is {keys[suffix]!r}"
        )
    if not message.size_bytes:
        raise PermanentError(f"UploadFile message of {message.path} announces an empty file")


def after_put(outcome: PutOutcome) -> Ending:
    """The store holds a whole object, ours or an earlier one."""
    if outcome is PutOutcome.OTHER_WINS:
        return Ending(
            outcome="other-wins",
            remark="another extraction of the batch was stored first; this one is dropped",
        )
    return Ending(outcome="stored" if outcome is PutOutcome.STORED else "already-there")


def without_file(problem: str, *, stored: bool) -> Ending:
    """The file is gone, or is not what its writer announced; `stored` is whether the store has the batch."""
    if stored:
        return Ending(outcome="already-there", remark=f"{problem}; the store has the batch")
    return Ending(outcome="sent-back", extract_again=True, remark=f"{problem}; the batch is extracted again")


def request_count(options: StoreOptions) -> Callable[[int], int]:
    """From the size of a file in bytes to how many requests it keeps busy at a time."""

    def count(size_bytes: int) -> int:
        if size_bytes <= options.multipart_threshold_bytes:
            return 1
        return min(options.multipart_parts_in_flight, -(-size_bytes // options.multipart_part_bytes))

    return count


def job_ids(files: Sequence[SpoolFile]) -> list[str]:
    """The jobs whose states `leftovers` wants to know."""
    return sorted(
        {make_id(file.run_id, file.batch_id) for file in files for make_id in (upload_job_id, extract_job_id)}
    )


def aged(files: Sequence[SpoolFile], *, now: float, least_age_seconds: float) -> list[SpoolFile]:
    """Files whose writer has had `least_age_seconds` to announce them."""
    return [file for file in files if now - file.modified_at >= least_age_seconds]


def leftovers(files: Sequence[SpoolFile], states: Mapping[str, str | None]) -> list[SpoolFile]:
    """Files that no job will ever come for, one of each batch at most: two cannot have the same job."""
    found = {
        (file.run_id, file.batch_id): file
        for file in files
        if states.get(upload_job_id(file.run_id, file.batch_id)) not in _NEEDS_ITS_FILE
        and states.get(extract_job_id(file.run_id, file.batch_id)) not in _COMPUTING
    }
    return list(found.values())
