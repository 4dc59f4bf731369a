"""What travels through Redis: metadata of batches and files, never a tensor, never a token.

Frozen, versioned, JSON on the wire. A message of another version is refused, not guessed at.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hiddenfeed.errors import PermanentError

MESSAGE_VERSION = 1

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class ExtractBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One batch to extract: where its tokens are and how big it is."""

    version: int = MESSAGE_VERSION
    run_id: str
    batch_id: Count
    #: Key of the run's tokens.parquet, relative to the root of the store.
    tokens: str
    row_group: Count
    samples: Count
    #: Real tokens, padding not counted.
    tokens_total: Count
    #: Tokens of the longest sample.
    longest: Count
    #: Sum of the samples' squared lengths, for the time left; not said by programs that did not know it.
    squares: Count | UnsetType = UNSET


class BatchReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the extraction of one batch went; for people and the monitor, nothing depends on it."""

    worker: str
    device: str
    #: `NVIDIA H200` of `cuda:0`; not said by programs that did not know it.
    kind: str | UnsetType = UNSET
    read_seconds: Seconds = 0.0
    #: Time in the forward passes and the selection of taps.
    forward_seconds: Seconds = 0.0
    #: Time the device waited for us between the first and the last forward pass of the batch.
    stall_seconds: Seconds = 0.0
    write_seconds: Seconds = 0.0
    #: From the job's start to the rename of the file.
    total_seconds: Seconds = 0.0
    #: Tokens the device saw, padding included.
    padded_tokens: Count = 0
    #: Forward passes that were halved because memory ran out; not said where there were none.
    halvings: Count | UnsetType = UNSET
    #: What the guards saw, as in the file's metadata: name -> value; of a quarantined batch the `reason`.
    guards: dict[str, str] | UnsetType = UNSET
    #: Samples of the batch that could not be extracted, and why the first could not; not said where there are none.
    set_aside: Count | UnsetType = UNSET
    set_aside_reason: str | UnsetType = UNSET
    #: The same samples by what they failed, a name of `common.checks.CHECKS` each.
    failed_checks: dict[str, Count] | UnsetType = UNSET
    #: Tokens and sum of squared lengths of the others, whose states are in the file: what the seconds were spent on.
    computed_tokens: Count | UnsetType = UNSET
    computed_squares: Count | UnsetType = UNSET


class UploadFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One finished file in a spool, to be stored under its key and then deleted locally."""

    version: int = MESSAGE_VERSION
    #: The batch the file came from; what is sent back to extraction if the file is lost.
    batch: ExtractBatch
    #: Name of the spool; the upload queue is named after it.
    spool: str
    #: POSIX path relative to the spool's folder.
    path: str
    #: Key relative to the root of the store.
    key: str
    size_bytes: Count
    #: `algorithm:base64` over the whole file, from the bytes as they were written.
    checksum: str
    report: BatchReport


class UploadReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an upload job returns."""

    version: int = MESSAGE_VERSION
    run_id: str
    batch_id: Count
    key: str
    #: `stored`, `already-there`, `other-wins` or `sent-back` (the file was lost, its batch is extracted again).
    outcome: str
    size_bytes: Count
    upload_seconds: Seconds


MessageT = TypeVar("MessageT", ExtractBatch, UploadFile)


def parse_message(kind: type[MessageT], payload: Any) -> MessageT:
    """A message from what JSON decoding gave; raises PermanentError naming what is wrong with it."""
    version = payload.get("version") if isinstance(payload, dict) else None
    if version != MESSAGE_VERSION:
        raise PermanentError(
            f"{kind.__name__} message has version {version!r}; this program speaks version {MESSAGE_VERSION}"
        )
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise PermanentError(f"{kind.__name__} message is malformed: {error}") from None
