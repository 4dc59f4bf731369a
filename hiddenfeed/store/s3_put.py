"""One verified put into S3: in one request or in parts, unless there is an object already, and proven afterwards.

An object tells in its metadata which size and checksum it was meant to have. So what is found
under a key can be judged without knowing who wrote it: whole, or damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import IO, TYPE_CHECKING, Any, cast

from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.checksum import combine, parse
from hiddenfeed.errors import DataError, HiddenfeedError, TransientError
from hiddenfeed.store.base import ObjectInfo, PutOutcome
from hiddenfeed.store.s3_client import S3Place
from hiddenfeed.store.s3_errors import (
    CONFLICT,
    NO_UPLOAD,
    PRECONDITION_FAILED,
    error_code,
    from_client,
    from_reply,
    translated,
)
from hiddenfeed.store.verified_file import VerifiedBody, VerifiedFile

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_log = logging.getLogger(__name__)

_DECLARED_CHECKSUM = "hiddenfeed-checksum"
_DECLARED_SIZE = "hiddenfeed-size"
_MAX_PARTS = 10_000
_MIB = 1024 * 1024


class Verdict(Enum):
    """What an object under our key is to us."""

    MISSING = "missing"
    SAME = "same"
    OTHER = "other"
    DAMAGED = "damaged"


def judge(found: ObjectInfo | None, size_bytes: int, checksum: str) -> Verdict:
    """Compare what the store holds with what we have, and with what it was meant to be."""
    if found is None:
        return Verdict.MISSING
    declared_size = found.metadata.get(_DECLARED_SIZE)
    declared_checksum = found.metadata.get(_DECLARED_CHECKSUM)
    if declared_size is not None and declared_size != str(found.size_bytes):
        return Verdict.DAMAGED
    if found.checksum is not None and declared_checksum is not None:
        comparable = found.checksum.partition(":")[0] == declared_checksum.partition(":")[0]
        if comparable and found.checksum != declared_checksum:
            return Verdict.DAMAGED
    # A store that keeps no checksum is judged by what it was told, and by the size.
    known = {found.checksum, declared_checksum} - {None}
    same = found.size_bytes == size_bytes and (not known or checksum in known)
    return Verdict.SAME if same else Verdict.OTHER


def part_bytes(size_bytes: int, wanted: int) -> int:
    """The size of a part: what is wanted, or as many whole MiB as 10,000 parts need."""
    least = -(-size_bytes // _MAX_PARTS)
    return max(wanted, -(-least // _MIB) * _MIB)


def declared(size_bytes: int, checksum: str, metadata: Mapping[str, str] | None = None) -> dict[str, str]:
    """An object's metadata, with the size and checksum it is meant to have."""
    return {**(metadata or {}), _DECLARED_SIZE: str(size_bytes), _DECLARED_CHECKSUM: checksum}


def checksum_argument(checksum: str) -> dict[str, Any]:
    """`{"ChecksumCRC64NVME": base64}`: the argument of a call that makes S3 verify the body."""
    algorithm, _ = parse(checksum)
    return {f"Checksum{algorithm.upper()}": checksum.partition(":")[2]}


def _as_stream(body: bytes | VerifiedBody) -> IO[bytes] | bytes:
    """The body, for type stubs that know no stream but those of the standard library."""
    return cast("IO[bytes] | bytes", body)


class S3Put:
    """One put of one file or document under one key."""

    def __init__(
        self, client: S3Client, place: S3Place, key: str, head: Callable[[str], ObjectInfo | None]
    ) -> None:
        self._client, self._place, self._key, self._head = client, place, key, head
        self._doing = f"store {key}"
        self._object: dict[str, Any] = {"Bucket": place.bucket, "Key": place.full_key(key)}

    def document(self, data: bytes, checksum: str, *, if_absent: bool) -> PutOutcome:
        """Store `data`; without `if_absent` in place of whatever is there."""
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if if_absent else {}
        return self._in_one(data, len(data), checksum, {}, condition)

    def file(
        self, source: VerifiedFile, metadata: Mapping[str, str] | None, threshold: int, wanted_part: int
    ) -> PutOutcome:
        """Store the file unless there is an object; above `threshold` bytes in parts of about `wanted_part` bytes."""
        if source.size_bytes <= threshold:
            condition = {"IfNoneMatch": "*"}
            return self._in_one(source.body(), source.size_bytes, source.checksum, metadata or {}, condition)
        # One small question saves many large answers when the batch was stored before.
        found = self._head(self._key)
        if found is not None:
            return self._settled(found, source.size_bytes, source.checksum, acknowledged=False)
        return self._in_parts(source, metadata or {}, part_bytes(source.size_bytes, wanted_part))

    def _in_one(
        self,
        data: bytes | VerifiedBody,
        size_bytes: int,
        checksum: str,
        metadata: Mapping[str, str],
        condition: dict[str, Any],
    ) -> PutOutcome:
        try:
            self._client.put_object(
                **self._object,
                **condition,
                **checksum_argument(checksum),
                Body=_as_stream(data),
                ContentLength=size_bytes,
                Metadata=declared(size_bytes, checksum, metadata),
            )
        except ClientError as error:
            if error_code(error) not in PRECONDITION_FAILED | CONFLICT:
                raise from_reply(error, self._place, self._doing) from error
            found = self._head(self._key)
            if found is None:  # its owner deleted it, or neither of two writers has won
                raise from_reply(error, self._place, self._doing) from error
            return self._settled(found, size_bytes, checksum, acknowledged=False)
        except BotoCoreError as error:
            raise self._client_failure(error, data) from error
        return self._settled(self._head(self._key), size_bytes, checksum, acknowledged=True)

    def _in_parts(self, source: VerifiedFile, metadata: Mapping[str, str], size_of_part: int) -> PutOutcome:
        with translated(self._place, self._doing):
            upload_id = self._client.create_multipart_upload(
                **self._object,
                ChecksumAlgorithm=source.algorithm.upper(),  # type: ignore[arg-type]
                ChecksumType="FULL_OBJECT",
                Metadata=declared(source.size_bytes, source.checksum, metadata),
            )["UploadId"]
        try:
            parts = self._send_parts(source, upload_id, size_of_part)
        except BaseException:
            self._abort(upload_id)
            raise
        return self._complete(source, upload_id, parts)

    def _send_parts(self, source: VerifiedFile, upload_id: str, size_of_part: int) -> list[dict[str, Any]]:
        """Send all parts in order; returns what Complete wants to know. Raises DataError if the file is not whole."""
        parts: list[dict[str, Any]] = []
        pieces: list[tuple[str, int]] = []
        for number, start in enumerate(range(0, source.size_bytes, size_of_part), start=1):
            length = min(size_of_part, source.size_bytes - start)
            body = source.part(start, length)
            assert body.checksum is not None
            pieces.append((body.checksum, length))
            try:
                reply = self._client.upload_part(
                    **self._object,
                    **checksum_argument(body.checksum),
                    UploadId=upload_id,
                    PartNumber=number,
                    Body=_as_stream(body),
                    ContentLength=length,
                )
            except ClientError as error:
                raise from_reply(error, self._place, self._doing) from error
            except BotoCoreError as error:
                raise self._client_failure(error, body) from error
            parts.append({"PartNumber": number, "ETag": reply["ETag"], **checksum_argument(body.checksum)})
        whole = combine(pieces)
        if whole != source.checksum:
            raise DataError(
                f"{source.path} has checksum {whole} where its writer announced {source.checksum}"
            )
        return parts

    def _complete(self, source: VerifiedFile, upload_id: str, parts: list[dict[str, Any]]) -> PutOutcome:
        """Make the parts an object. After an error only a look at the key tells what happened."""
        try:
            self._client.complete_multipart_upload(
                **self._object,
                **checksum_argument(source.checksum),
                UploadId=upload_id,
                ChecksumType="FULL_OBJECT",
                MpuObjectSize=source.size_bytes,
                IfNoneMatch="*",
                MultipartUpload={"Parts": parts},  # type: ignore[typeddict-item]
            )
        except (ClientError, BotoCoreError) as error:
            return self._after_failed_complete(source, upload_id, error)
        found = self._head(self._key)
        return self._settled(found, source.size_bytes, source.checksum, acknowledged=True)

    def _after_failed_complete(
        self, source: VerifiedFile, upload_id: str, error: ClientError | BotoCoreError
    ) -> PutOutcome:
        code = error_code(error) if isinstance(error, ClientError) else ""
        found = self._head(self._key)
        # The upload is gone and our object is there: we succeeded, and the reply was lost.
        if judge(found, source.size_bytes, source.checksum) is Verdict.SAME and code in NO_UPLOAD:
            return PutOutcome.STORED
        self._abort(upload_id)
        if found is not None:
            return self._settled(found, source.size_bytes, source.checksum, acknowledged=False)
        if isinstance(error, ClientError):
            raise from_reply(error, self._place, self._doing) from error
        raise from_client(error, self._place, self._doing) from error

    def _settled(
        self, found: ObjectInfo | None, size_bytes: int, checksum: str, *, acknowledged: bool
    ) -> PutOutcome:
        """The outcome, given what the store holds now; a damaged object is removed so that it can be stored again."""
        verdict = judge(found, size_bytes, checksum)
        if verdict is Verdict.SAME:
            return PutOutcome.STORED if acknowledged else PutOutcome.ALREADY_THERE
        if verdict is Verdict.OTHER:
            return PutOutcome.OTHER_WINS
        if verdict is Verdict.MISSING:
            raise TransientError(
                f"could not {self._doing}: {self._place.endpoint} accepted it, but it is not there"
            )
        with translated(self._place, f"remove the damaged {self._key}"):
            self._client.delete_object(**self._object)
        raise TransientError(
            f"could not {self._doing}: {self._place.endpoint} held other bytes than it was given; they were removed"
        )

    def _client_failure(self, error: BotoCoreError, body: bytes | VerifiedBody) -> HiddenfeedError:
        """Our own refusal to send a wrong file, which boto3 wraps; else what boto3 means."""
        if isinstance(body, VerifiedBody) and body.failure is not None:
            return body.failure
        return from_client(error, self._place, self._doing)

    def _abort(self, upload_id: str) -> None:
        """Give up a multipart upload, so that its parts cost no space; a failure to do so is only reported."""
        try:
            self._client.abort_multipart_upload(**self._object, UploadId=upload_id)
        except ClientError as error:
            if error_code(error) not in NO_UPLOAD:
                _log.warning("parts of %s stay in the store as upload %s: %s", self._key, upload_id, error)
        except BotoCoreError as error:
            _log.warning("parts of %s stay in the store as upload %s: %s", self._key, upload_id, error)
