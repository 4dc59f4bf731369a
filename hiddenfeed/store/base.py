"""What every store can do, whatever it is made of: an S3 prefix or a plain directory.

Keys are those of `hiddenfeed.layout`, relative to the store's root. Every method raises
`TransientError` when the store is away, `ConfigError` when it refuses us (no such bucket, wrong
credentials) and `DataError` for a key that leaves the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says of one object."""

    key: str
    size_bytes: int
    #: `algorithm:base64` as in `hiddenfeed.checksum`; None where the store keeps none or a listing omits it.
    checksum: str | None = None
    #: Small strings stored with the object, for people; empty in listings and where a store keeps none.
    metadata: dict[str, str] = {}


class PutOutcome(Enum):
    """How a verified put ended. In all three the store holds one whole object under the key."""

    STORED = "stored"
    #: An identical object was there already (a redelivery, or a reply that was lost).
    ALREADY_THERE = "already-there"
    #: Another whole object was there first; it wins and ours is dropped.
    OTHER_WINS = "other-wins"


class UploadNote(msgspec.Struct, frozen=True, kw_only=True):
    """An upload in parts that was begun: enough to go on with it, or to give it up."""

    upload_id: str
    part_bytes: int
    size_bytes: int
    #: Of the whole file, `algorithm:base64`.
    checksum: str
    #: Seconds since the epoch.
    began_at: float


class UploadNotes(Protocol):
    """Where uploads in parts are remembered, so that a crash costs at most the parts that were under way.

    Methods raise `TransientError` when they cannot do their work now.
    """

    def load(self, key: str) -> UploadNote | None:
        """The upload that was begun for `key`, if any."""
        ...

    def save(self, key: str, note: UploadNote) -> None:
        """Remember an upload, in place of an earlier one of the same key."""
        ...

    def forget(self, key: str, upload_id: str) -> None:
        """It is complete or given up; nothing happens if another took its place."""
        ...


class Store(Protocol):
    """One root that holds runs."""

    @property
    def url(self) -> str:
        """The root as a person would type it: `s3://bucket/prefix` or an absolute path."""
        ...

    def check(self, *, create: bool = False) -> None:
        """Prove that the root is there; raises `ConfigError` or `TransientError` with the reason otherwise.

        With `create`, which is for roles that write, a directory is created and proven writable,
        and what dead writers left half-written is swept. A bucket is never created. Nothing else
        creates a directory, and one that goes away later, or is replaced, is a `ConfigError` of
        every method that would write there or find something missing.
        """
        ...

    def head(self, key: str, *, checksum: bool = False) -> ObjectInfo | None:
        """Size and metadata of the object, and its checksum where the store keeps one; None if there is none.

        With `checksum` it is always there: computed by reading the object where the store keeps none.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`; those of one folder in key order. Checksums may be None."""
        ...

    def folders(self) -> Iterator[str]:
        """First segments of all keys that have more than one, each once, without reading all keys."""
        ...

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes `[start, start + length)`, or to the end; fewer where the object ends before.

        The whole object is verified by its checksum where the store keeps one; a range is not.
        Raises `MissingObjectError`.
        """
        ...

    def download(self, key: str, path: Path) -> ObjectInfo:
        """Write the whole object to `path` (created or replaced, never seen half) and verify its checksum.

        Its folder must exist. Raises `MissingObjectError`, or `TransientError` if what arrived is
        not what is stored.
        """
        ...

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> PutOutcome:
        """Store a small document whole, verified by checksum. Without `if_absent` it replaces.

        Raises `DataError` for an empty one, which stores treat differently.
        """
        ...

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        size_bytes: int,
        checksum: str,
        metadata: Mapping[str, str] | None = None,
    ) -> PutOutcome:
        """Store the file under `key` unless there is an object already, and prove that it is there.

        `checksum` was computed by whoever wrote the file; the store verifies it on arrival, and
        size and checksum are read back before this returns. A file that is missing, empty, a link
        or not what size and checksum say raises `DataError` and leaves nothing under the key.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the object; no error if there is none."""
        ...


class UnfinishedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that are no object yet, as the store tells of them."""

    key: str
    upload_id: str
    #: Seconds since the epoch, by the store's clock.
    began_at: float


@runtime_checkable
class KeepsParts(Protocol):
    """A store that keeps parts of unfinished uploads, invisible, until somebody gives them up."""

    @property
    def url(self) -> str:
        """As `Store.url`."""
        ...

    def head(self, key: str, *, checksum: bool = False) -> ObjectInfo | None:
        """As `Store.head`."""
        ...

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """All uploads below the root that are neither complete nor aborted."""
        ...

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Give one up; no error if it is gone."""
        ...

    def abort_spares_object(self) -> bool:
        """Whether giving one up leaves the object of its key alone: tried out in a place of its own. False if unknown."""
        ...
