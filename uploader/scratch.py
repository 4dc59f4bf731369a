"""A folder in a store for trials: what each trial showed, small objects and uploads in parts, and no trace afterwards."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import msgspec
from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, ReadTimeoutError

from hiddenfeed.checksum import ALGORITHM, checksum_of, combine
from hiddenfeed.errors import HiddenfeedError, TransientError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store.s3_client import S3Place, make_client, object_arguments, parse_s3_url
from hiddenfeed.store.s3_errors import error_code, from_client, from_reply
from hiddenfeed.store.s3_foreign import needed

Mark = Literal["works", "lacks", "FAILS"]

#: No store takes smaller parts, but for the last.
PART_BYTES = 5 * MIB
LAST_PART_BYTES = 1000
#: A store that keeps us waiting so often is away.
_MOST_SILENCES = 2
#: The field that carries a checksum.
FIELD = f"Checksum{ALGORITHM.upper()}"


class Finding(msgspec.Struct, frozen=True):
    """What one trial showed."""

    what: str
    mark: Mark
    detail: str = ""


class Report(msgspec.Struct):
    """What all trials showed."""

    findings: list[Finding] = []
    #: Settings that differ from those the doctor was given, as text.
    settings: dict[str, str] = {}
    #: Told of each finding as it is made: a slow store takes its time.
    say: Callable[[Finding], object] = lambda finding: None

    def add(self, finding: Finding) -> None:
        """One more."""
        self.findings.append(finding)
        self.say(finding)

    @property
    def usable(self) -> bool:
        """Whether uploads work with `settings`."""
        return all(finding.mark != "FAILS" for finding in self.findings)


class Lacks(Exception):  # noqa: N818 - an answer, not an error
    """The store cannot do this, and there is a way without; the text says what was seen."""


class Scratch:
    """The folder, and the way to it. `client` is boto3's."""

    def __init__(self, url: str, options: StoreOptions, report: Report) -> None:
        bucket, prefix = parse_s3_url(url)
        self.client: Any
        self.client, endpoint = make_client(options)
        self.place = S3Place(bucket=bucket, prefix=prefix, endpoint=endpoint)
        self.folder = self.place.full_key(f"scratch-{uuid.uuid4().hex}/")
        self.report = report
        #: Whether the store is known to verify checksums.
        self.verifies = False
        self._extra = object_arguments(options)
        self._begun: list[tuple[str, str]] = []
        self._silences = 0

    def attempt(self, what: str, trial: Callable[[], str], *, vital: bool = False) -> bool:
        """Run one trial and note how it went; returns whether the store can do it. Without what is vital it is no use.

        Raises TransientError if the store has fallen silent, as it would for each trial that is left.
        """
        try:
            finding = Finding(what, "works", trial())
        except Lacks as answer:
            finding = Finding(what, "FAILS" if vital else "lacks", str(answer))
        except ClientError as error:
            finding = _failed(what, from_reply(error, self.place, what), vital=vital)
        except BotoCoreError as error:
            meaning = from_client(error, self.place, what)
            self._silences += isinstance(error, ConnectTimeoutError | ReadTimeoutError)
            if self._silences == _MOST_SILENCES:
                raise meaning from error
            finding = _failed(what, meaning, vital=vital)
        except TransientError as error:
            finding = _failed(what, error, vital=vital)
        self.report.add(finding)
        return finding.mark == "works"

    def at(self, name: str) -> dict[str, Any]:
        """Where an object of that name is."""
        return {"Bucket": self.place.bucket, "Key": self.folder + name}

    def put(self, name: str, data: bytes, **arguments: Any) -> None:
        """Store a small object."""
        self.client.put_object(**self.at(name), **self._extra, Body=data, **arguments)

    def refused(
        self, name: str, data: bytes, codes: frozenset[str], otherwise: str, **arguments: Any
    ) -> None:
        """Put what must be refused with one of `codes`; raises Lacks, saying `otherwise`, if it is taken."""
        try:
            self.put(name, data, **arguments)
        except ClientError as error:
            if error_code(error) in codes:
                return
            raise
        raise Lacks(otherwise)

    def begin(self, name: str) -> str:
        """Begin an upload in parts; returns its id."""
        sums: dict[str, Any] = {}
        if self.verifies:
            sums = {"ChecksumAlgorithm": ALGORITHM.upper(), "ChecksumType": "FULL_OBJECT"}
        begun = self.client.create_multipart_upload(**self.at(name), **self._extra, **sums)
        upload_id = str(needed(begun, "UploadId", self.place.endpoint, "begin an upload in parts"))
        self._begun.append((name, upload_id))
        return upload_id

    def send_part(self, name: str, upload_id: str, number: int, data: bytes) -> dict[str, Any]:
        """Upload one part; returns what Complete wants to know of it."""
        sums = self.sums(checksum_of(data))
        reply = self.client.upload_part(
            **self.at(name), UploadId=upload_id, PartNumber=number, Body=data, **sums
        )
        etag = needed(reply, "ETag", self.place.endpoint, "upload a part")
        return {"PartNumber": number, "ETag": etag, **sums}

    def upload(self, name: str, **complete: Any) -> str:
        """Upload two parts and complete them; returns the checksum of the whole."""
        upload_id, parts, pieces = self.begin(name), [], []
        for number, size in enumerate((PART_BYTES, LAST_PART_BYTES), start=1):
            data = os.urandom(size)
            pieces.append((checksum_of(data), size))
            parts.append(self.send_part(name, upload_id, number, data))
        whole = combine(pieces)
        if self.verifies:
            complete = {**self.sums(whole), "ChecksumType": "FULL_OBJECT", **complete}
        self.client.complete_multipart_upload(
            **self.at(name), UploadId=upload_id, MultipartUpload={"Parts": parts}, **complete
        )
        return whole

    def unfinished(self) -> set[str]:
        """Ids of uploads in parts that the store lists."""
        found = self.client.list_multipart_uploads(Bucket=self.place.bucket, Prefix=self.folder)
        return {entry["UploadId"] for entry in found.get("Uploads", [])}

    def sums(self, checksum: str) -> dict[str, Any]:
        """The argument that has a body verified, where the store does that."""
        return {FIELD: checksum.partition(":")[2]} if self.verifies else {}

    def clean_up(self) -> None:
        """Leave nothing behind, as far as the store lets us."""
        with suppress(ClientError, BotoCoreError):
            for name, upload_id in self._begun:
                with suppress(ClientError):
                    self.client.abort_multipart_upload(**self.at(name), UploadId=upload_id)
            found = self.client.list_objects_v2(Bucket=self.place.bucket, Prefix=self.folder)
            for entry in found.get("Contents", []):
                self.client.delete_object(Bucket=self.place.bucket, Key=entry["Key"])


def _failed(what: str, error: HiddenfeedError, *, vital: bool) -> Finding:
    return Finding(what, "FAILS" if vital else "lacks", str(error))
