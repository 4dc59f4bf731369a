"""One verified put into S3 in parts: several at a time, remembered before the first, gone on with after a crash."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.checksum import combine
from hiddenfeed.errors import DataError, HiddenfeedError, TransientError
from hiddenfeed.store.base import ObjectInfo, PutOutcome, UploadNote
from hiddenfeed.store.s3_begun import BegunUploads, Part
from hiddenfeed.store.s3_errors import DAMAGED, NO_UPLOAD, error_code, translated
from hiddenfeed.store.s3_foreign import needed
from hiddenfeed.store.s3_judge import Verdict, declared, judge
from hiddenfeed.store.s3_put import S3Put, as_stream
from hiddenfeed.store.s3_send import own_headers, tells_md5
from hiddenfeed.store.verified_file import VerifiedBody, VerifiedFile

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_log = logging.getLogger(__name__)

_MAX_PARTS = 10_000
_MIB = 1024 * 1024


def part_bytes(size_bytes: int, wanted: int) -> int:
    """The size of a part: what is wanted, or as many whole MiB as 10,000 parts need."""
    least = -(-size_bytes // _MAX_PARTS)
    return max(wanted, -(-least // _MIB) * _MIB)


class MultipartPut:
    """One put of one file under one key, in parts."""

    def __init__(self, put: S3Put, source: VerifiedFile, metadata: Mapping[str, str]) -> None:
        self._put, self._source, self._link = put, source, put.link
        self._metadata = declared(source.size_bytes, source.checksum, metadata)
        self._part_bytes = part_bytes(source.size_bytes, put.link.options.multipart_part_bytes)
        self._begun = BegunUploads(put)
        self._abort, self._forget = self._begun.abort, self._begun.forget
        self._failed = threading.Event()
        self._verified = self._link.verifies(source.size_bytes)
        #: Parts without checksums of their own, as the store verifies the whole when it is complete. A part's
        #: own takes one more reading of it, which is most of what sending it costs.
        self._bare = self._verified and self._link.whole_checksum_will_do

    def run(self) -> PutOutcome:
        """Store the file unless there is an object; see `Store.put_file`."""
        source = self._source
        # One small question saves many large answers when the batch was stored before.
        found = self._put.head()
        if found is not None:
            if self._begun.give_up_noted():
                found = self._put.head()  # some servers took the object away with the parts
            return self._put.settled(found, source.size_bytes, source.checksum, acknowledged=False)
        upload_id, there = self._resume()
        self._put.compared = not there
        if upload_id is None:
            upload_id = self._begin()
        try:
            parts = self._send_parts(upload_id, there)
        except TransientError:
            if self._link.notes is None:
                self._abort(upload_id)
            if self._bare and not self._link.whole_checksum_will_do:
                return MultipartPut(self._put, self._source, self._metadata).run()
            raise
        except BaseException:
            self._abort(upload_id)
            raise
        return self._complete(upload_id, parts)

    # -- beginning, or going on -------------------------------------------------------------------

    def _begin(self) -> str:
        """A new upload, remembered before anything is in it."""
        link, integrity = self._link, {}
        if link.options.s3_checksum == "header":
            integrity = {"ChecksumAlgorithm": self._source.algorithm.upper(), "ChecksumType": "FULL_OBJECT"}
        with translated(link.place, self._put.doing):
            begun: Any = link.client.create_multipart_upload(
                **self._put.object,
                **link.object_arguments,
                **integrity,  # type: ignore[arg-type]
                Metadata=self._metadata,
            )
        upload_id = str(needed(begun, "UploadId", link.place.endpoint, self._put.doing))
        if link.notes is not None:
            note = UploadNote(
                upload_id=upload_id,
                part_bytes=self._part_bytes,
                size_bytes=self._source.size_bytes,
                checksum=self._source.checksum,
                began_at=time.time(),
            )
            try:
                link.notes.save(self._put.key, note)
            except BaseException:
                self._abort(upload_id)
                raise
        return upload_id

    def _resume(self) -> tuple[str | None, dict[int, Part]]:
        """(upload to go on with, the parts it has); None if there is none of this very file."""
        note = self._begun.noted()
        if note is None:
            return None, {}
        same = (note.size_bytes, note.checksum) == (self._source.size_bytes, self._source.checksum)
        if not same:
            self._abort(note.upload_id)
            return None, {}
        there = self._begun.parts(note.upload_id, self._source.algorithm)
        if there is None:
            return None, {}
        self._part_bytes = note.part_bytes
        _log.info("going on with %s: %d parts are there", self._put.key, len(there))
        return note.upload_id, there

    # -- parts ------------------------------------------------------------------------------------

    def _send_parts(self, upload_id: str, there: Mapping[int, Part]) -> list[dict[str, Any]]:
        """Send what is missing; returns what Complete wants to know. Raises DataError if the file is not whole."""
        size, step = self._source.size_bytes, self._part_bytes
        starts = list(enumerate(range(0, size, step), start=1))
        at_a_time = min(len(starts), self._link.options.multipart_parts_in_flight)

        def send(numbered: tuple[int, int]) -> tuple[str | None, int, str]:
            number, start = numbered
            try:
                return self._send_part(upload_id, number, start, min(step, size - start), there.get(number))
            except BaseException:
                self._failed.set()
                raise

        with ThreadPoolExecutor(at_a_time, thread_name_prefix="part") as pool:
            sent = [future.result() for future in [pool.submit(send, numbered) for numbered in starts]]
        if not self._bare:
            self._check_whole(combine((checksum or "", length) for checksum, length, _ in sent))
        return [
            {"PartNumber": number, "ETag": etag, **(self._link.integrity(checksum) if checksum else {})}
            for number, (checksum, _, etag) in enumerate(sent, start=1)
        ]

    def _check_whole(self, checksum: str) -> None:
        if checksum != self._source.checksum:
            raise DataError(
                f"{self._source.path} has checksum {checksum} where its writer announced {self._source.checksum}"
            )

    def _send_part(
        self, upload_id: str, number: int, start: int, length: int, there: Part | None
    ) -> tuple[str | None, int, str]:
        """(checksum if it was taken, length, ETag) of a part that the store has now."""
        source, link = self._source, self._link
        if self._failed.is_set():
            raise TransientError(f"could not {self._put.doing}: another of its parts failed")
        sized = there is not None and there.size_bytes == length
        if there is not None and sized and there.checksum is None and self._bare:
            return None, length, there.etag  # the whole is verified in the end
        told = there is not None and there.checksum is not None
        checksum = source.part_checksum(start, length) if told or not self._bare else None
        if there is not None and sized and there.checksum == checksum is not None:
            return checksum, length, there.etag
        body = source.part(start, length, checksum or "", store_verifies=self._verified)
        integrity = {
            **(link.integrity(checksum) if checksum else {}),
            **link.section_md5(source, start, length),
        }
        try:
            with link.gate.request(source.deadline):
                etag = self._send_body(upload_id, number, body, integrity)
        except ClientError as error:
            self._note_refusal(upload_id, error_code(error), bare=checksum is None)
            raise self._put.meaning(error) from error
        except BotoCoreError as error:
            if body.failure is not None:  # our own refusal, wrapped
                raise body.failure from error
            raise self._put.meaning(error) from error
        return checksum, length, etag

    def _send_body(
        self, upload_id: str, number: int, body: VerifiedBody, integrity: Mapping[str, Any]
    ) -> str:
        """The ETag of a part."""

        def by_boto3(client: S3Client) -> Any:
            return client.upload_part(
                **self._put.object,
                **integrity,
                UploadId=upload_id,
                PartNumber=number,
                Body=as_stream(body),
                ContentLength=len(body),
            )

        etag = self._link.send(
            "UploadPart",
            self._put.object["Key"],
            body,
            own_headers(len(body), integrity),
            by_boto3,
            query=f"partNumber={number}&uploadId={quote(upload_id, safe='-._~')}",
        )
        if not tells_md5(etag, integrity):
            self._put.compared = False
        return str(needed({"ETag": etag}, "ETag", self._link.place.endpoint, self._put.doing))

    def _note_refusal(self, upload_id: str, code: str, *, bare: bool) -> None:
        """Learn from a part that the store did not take. Raises DataError if the file is why."""
        if code in DAMAGED:
            self._source.check_bytes()
        if code in NO_UPLOAD:
            self._forget(upload_id)
        if code == "InvalidRequest" and bare:
            self._link.whole_checksum_will_do = False
            raise TransientError(f"could not {self._put.doing}: the store wants a checksum with every part")

    # -- the end ----------------------------------------------------------------------------------

    def _complete(self, upload_id: str, parts: list[dict[str, Any]]) -> PutOutcome:
        """Make the parts an object. After an error only a look at the key tells what happened."""
        link, source = self._link, self._source
        integrity: dict[str, Any] = link.integrity(source.checksum)
        if integrity:
            integrity |= {"ChecksumType": "FULL_OBJECT", "MpuObjectSize": source.size_bytes}
        try:
            link.client.complete_multipart_upload(
                **self._put.object,
                **integrity,
                **link.condition(),
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},  # type: ignore[typeddict-item]
            )
        except (ClientError, BotoCoreError) as error:
            return self._after_failed_complete(upload_id, error)
        return self._prove(upload_id, self._put.head())

    def _prove(self, upload_id: str, found: ObjectInfo | None) -> PutOutcome:
        """The outcome of a Complete that the store acknowledged. Until the object is proven the note stays, as
        a store that did nothing has the parts yet; what nobody could go on with is given up."""
        if self._bare and found is not None and found.checksum is None:
            self._link.whole_checksum_will_do = False
            self._put.remove()
            self._abort(upload_id)
            raise TransientError(
                f"could not {self._put.doing}: the store did not verify the whole, so its parts are verified from now on"
            )
        try:
            outcome = self._put.proven(self._source, found)
        except HiddenfeedError as error:
            if found is not None or self._link.notes is None or isinstance(error, DataError):
                self._abort(upload_id)
            raise
        if outcome is PutOutcome.OTHER_WINS:
            return self._lost_to_other(upload_id)
        self._forget(upload_id)
        return outcome

    def _after_failed_complete(self, upload_id: str, error: ClientError | BotoCoreError) -> PutOutcome:
        source = self._source
        code = error_code(error) if isinstance(error, ClientError) else ""
        if code in DAMAGED and self._bare:
            try:
                source.check_bytes()
            except DataError:
                self._abort(upload_id)
                raise
        found = self._put.head()
        # The upload is gone and our object is there: we succeeded, and the reply was lost.
        if judge(found, source.size_bytes, source.checksum) is Verdict.SAME and code in NO_UPLOAD:
            return self._prove(upload_id, found)
        if found is not None:
            return self._lost_to_other(upload_id)
        meaning = self._put.meaning(error)
        if self._link.notes is None or code in DAMAGED | NO_UPLOAD or not isinstance(meaning, TransientError):
            self._abort(upload_id)
        raise meaning from error

    def _lost_to_other(self, upload_id: str) -> PutOutcome:
        """There is an object that is not of this upload. Looked at again, as some servers took it away with the parts."""
        self._abort(upload_id)
        source = self._source
        return self._put.settled(self._put.head(), source.size_bytes, source.checksum, acknowledged=False)
