"""Uploads in parts that were begun: remembered, looked at, given up; and whether giving up harms an object."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from typing import Any

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.errors import HiddenfeedError
from hiddenfeed.store.base import UploadNote
from hiddenfeed.store.s3_errors import NO_UPLOAD, error_code
from hiddenfeed.store.s3_foreign import needed
from hiddenfeed.store.s3_link import S3Link
from hiddenfeed.store.s3_put import S3Put

_log = logging.getLogger(__name__)


class Part(msgspec.Struct, frozen=True):
    """A part that the store has."""

    number: int
    size_bytes: int
    etag: str
    #: `algorithm:base64`; None where the store does not tell.
    checksum: str | None


class BegunUploads:
    """What was begun for one key."""

    def __init__(self, put: S3Put) -> None:
        self._put, self._link = put, put.link

    def noted(self) -> UploadNote | None:
        """The upload that an earlier try noted; raises TransientError when the notes are away."""
        return self._link.notes.load(self._put.key) if self._link.notes is not None else None

    def give_up_noted(self) -> bool:
        """What was begun for the key is of no use any more; returns whether there was anything."""
        note = self.noted()
        if note is not None:
            self.abort(note.upload_id)
        return note is not None

    def give_up_before_one_request(self) -> None:
        """The same for a file that goes in one request, which needs no notes: where they are away the janitor finds it."""
        try:
            self.give_up_noted()
        except HiddenfeedError as error:
            _log.info("whether parts of %s are in the store is not known now: %s", self._put.key, error)

    def parts(self, upload_id: str, algorithm: str) -> dict[int, Part] | None:
        """What the store has of an upload, by number; None if it does not know it any more."""
        pages = self._link.client.get_paginator("list_parts").paginate(**self._put.object, UploadId=upload_id)
        field = f"Checksum{algorithm.upper()}"
        found: dict[int, Part] = {}
        try:
            for page in pages:
                for entry in page.get("Parts", []):
                    value: Any = entry.get(field)
                    checksum = f"{algorithm}:{value}" if value else None
                    if "PartNumber" not in entry or not entry.get("ETag"):
                        continue  # of no use: it is sent again
                    part = Part(entry["PartNumber"], entry.get("Size", 0), entry["ETag"], checksum)
                    found[part.number] = part
        except ClientError as error:
            if error_code(error) in NO_UPLOAD:
                return None
            raise self._put.meaning(error) from error
        except BotoCoreError as error:
            raise self._put.meaning(error) from error
        return found

    def abort(self, upload_id: str) -> None:
        """Give up an upload, so that its parts cost no space; a failure to do so is only reported, and the note stays."""
        try:
            self._link.client.abort_multipart_upload(**self._put.object, UploadId=upload_id)
        except (ClientError, BotoCoreError) as error:
            if not (isinstance(error, ClientError) and error_code(error) in NO_UPLOAD):
                _log.warning(
                    "parts of %s stay in the store as upload %s: %s", self._put.key, upload_id, error
                )
                return
        self.forget(upload_id)

    def forget(self, upload_id: str) -> None:
        """The upload is an object, or is gone. A note that stays costs nothing: what it names is not found again."""
        if self._link.notes is None:
            return
        try:
            self._link.notes.forget(self._put.key, upload_id)
        except HiddenfeedError as error:
            _log.info("the note of upload %s of %s stays: %s", upload_id, self._put.key, error)


def spares_objects(link: S3Link) -> bool:
    """Whether giving up an upload leaves the object of its key alone, which some servers did not; tried out.

    Makes an object of its own below the root and removes it. False where the store does not let us try.
    """
    key: dict[str, Any] = {
        "Bucket": link.place.bucket,
        "Key": link.place.full_key(f"scratch-{uuid.uuid4().hex}"),
    }
    client = link.client
    try:
        begun: Any = client.create_multipart_upload(**key, **link.object_arguments)
        upload_id = str(needed(begun, "UploadId", link.place.endpoint, "begin an upload in parts"))
        try:
            client.upload_part(**key, UploadId=upload_id, PartNumber=1, Body=b"part")
            client.put_object(**key, **link.object_arguments, Body=b"object")
        finally:
            client.abort_multipart_upload(**key, UploadId=upload_id)
        client.head_object(**key)
    except (ClientError, BotoCoreError, HiddenfeedError) as error:
        _log.info("giving up parts at %s may harm an object: %s", link.place.endpoint, error)
        return False
    finally:
        with suppress(ClientError, BotoCoreError):
            client.delete_object(**key)
    return True
