"""One verified put into S3: in one request, or in parts by `s3_multipart`, and proven afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, cast

from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.checksum import parse
from hiddenfeed.errors import DataError, HiddenfeedError, TransientError
from hiddenfeed.store.base import ObjectInfo, PutOutcome
from hiddenfeed.store.s3_errors import (
    CONFLICT,
    DAMAGED,
    PRECONDITION_FAILED,
    error_code,
    from_client,
    from_reply,
    translated,
)
from hiddenfeed.store.s3_judge import Verdict, declared, is_whole, judge, needs_reading
from hiddenfeed.store.s3_link import S3Link
from hiddenfeed.store.s3_send import own_headers, tells_md5
from hiddenfeed.store.verified_file import VerifiedBody, VerifiedFile

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def as_stream(body: VerifiedBody) -> IO[bytes]:
    """The body, for type stubs that know no stream but those of the standard library."""
    return cast("IO[bytes]", body)


class S3Put:
    """One put of one file or document under one key."""

    def __init__(
        self,
        link: S3Link,
        key: str,
        head: Callable[[str], ObjectInfo | None],
        read_back: Callable[[str, str], ObjectInfo | None],
    ) -> None:
        """`head` looks at an object, `read_back` reads it for the checksum of an algorithm."""
        self.link, self.key, self._head, self._read_back = link, key, head, read_back
        self.doing = f"store {key}"
        #: Whether the store's ETags told the MD5 of all that was sent.
        self.compared = False
        self.object: dict[str, Any] = {"Bucket": link.place.bucket, "Key": link.place.full_key(key)}

    def document(self, data: bytes, checksum: str, *, if_absent: bool) -> PutOutcome:
        """Store `data`; without `if_absent` in place of whatever is there."""
        if if_absent and (there := self._there_already(len(data), checksum)):
            return there
        condition = self.link.condition() if if_absent else {}
        integrity = {**self.link.integrity(checksum), **self.link.document_md5(data)}
        try:
            reply: Any = self.link.client.put_object(
                **self.object,
                **self.link.object_arguments,
                **condition,
                **integrity,
                Body=data,
                ContentLength=len(data),
                Metadata=declared(len(data), checksum),
            )
        except (ClientError, BotoCoreError) as error:
            return self._after_failure(error, len(data), checksum)
        self.compared = tells_md5(str(reply.get("ETag", "")), integrity)
        return self.settled(self.head(), len(data), checksum, acknowledged=True)

    def file(self, source: VerifiedFile, metadata: Mapping[str, str]) -> PutOutcome:
        """Store the file in one request unless there is an object."""
        size, checksum, link = source.size_bytes, source.checksum, self.link
        if there := self._there_already(size, checksum):
            return there
        body = source.body(store_verifies=link.verifies(size))
        integrity = {**link.integrity(checksum), **link.section_md5(source, 0, size)}
        try:
            with link.gate.request(source.deadline):
                etag = self._send_file(body, size, declared(size, checksum, metadata), integrity)
        except ClientError as error:
            if error_code(error) in DAMAGED:
                source.check_bytes()
            return self._after_failure(error, size, checksum)
        except BotoCoreError as error:
            if body.failure is not None:  # our own refusal, wrapped
                raise body.failure from error
            return self._after_failure(error, size, checksum)
        self.compared = tells_md5(etag, integrity)
        return self.proven(source, self.head())

    def proven(self, source: VerifiedFile, found: ObjectInfo | None) -> PutOutcome:
        """The outcome of a put that the store acknowledged, given what it holds now."""
        if found is not None and found.checksum != source.checksum:
            # The store does not tell what it verified: the file itself must be right at least.
            try:
                source.check_bytes()
            except DataError:
                if judge(found, source.size_bytes, source.checksum) is Verdict.SAME:
                    self.remove()
                raise
        return self.settled(found, source.size_bytes, source.checksum, acknowledged=True)

    def head(self) -> ObjectInfo | None:
        """What the store holds under the key now."""
        return self._head(self.key)

    def settled(
        self, found: ObjectInfo | None, size_bytes: int, checksum: str, *, acknowledged: bool
    ) -> PutOutcome:
        """The outcome, given what the store holds now; a damaged object is removed so that it can be stored again."""
        verdict, endpoint = judge(found, size_bytes, checksum), self.link.place.endpoint
        compared = acknowledged and (self.compared or self.link.has_verified)
        if needs_reading(found, size_bytes, checksum, compared=compared):
            verdict = judge(self._read_back(self.key, parse(checksum)[0]), size_bytes, checksum)
        if verdict is Verdict.SAME:
            return PutOutcome.STORED if acknowledged else PutOutcome.ALREADY_THERE
        if verdict is Verdict.OTHER:
            if acknowledged and not (found and is_whole(found)):
                raise TransientError(
                    f"could not {self.doing}: {endpoint} accepted it, but something else is there"
                )
            return PutOutcome.OTHER_WINS
        if verdict is Verdict.MISSING:
            raise TransientError(f"could not {self.doing}: {endpoint} accepted it, but it is not there")
        self.remove()
        raise TransientError(
            f"could not {self.doing}: {endpoint} held other bytes than it was given; they were removed"
        )

    def meaning(self, error: ClientError | BotoCoreError) -> HiddenfeedError:
        """The error as ours."""
        if isinstance(error, ClientError):
            return from_reply(error, self.link.place, self.doing)
        return from_client(error, self.link.place, self.doing)

    def _send_file(
        self, body: VerifiedBody, size_bytes: int, metadata: dict[str, str], integrity: dict[str, Any]
    ) -> str:
        """The ETag, "" if the store told none."""

        def by_boto3(client: S3Client) -> Any:
            return client.put_object(
                **self.object,
                **self.link.object_arguments,
                **self.link.condition(),
                **integrity,
                Body=as_stream(body),
                ContentLength=size_bytes,
                Metadata=metadata,
            )

        own = own_headers(size_bytes, integrity, metadata)
        return self.link.send("PutObject", self.object["Key"], body, own, by_boto3)

    def _there_already(self, size_bytes: int, checksum: str) -> PutOutcome | None:
        """Where the store knows no conditions, a look stands in for one: what is there is not replaced."""
        if self.link.options.s3_conditional_writes:
            return None
        found = self.head()
        return None if found is None else self.settled(found, size_bytes, checksum, acknowledged=False)

    def _after_failure(
        self, error: ClientError | BotoCoreError, size_bytes: int, checksum: str
    ) -> PutOutcome:
        """Something is there already, or the error is what it says."""
        if isinstance(error, ClientError) and error_code(error) in PRECONDITION_FAILED | CONFLICT:
            found = self.head()
            if found is not None:  # else its owner deleted it, or neither of two writers has won
                return self.settled(found, size_bytes, checksum, acknowledged=False)
        raise self.meaning(error) from error

    def remove(self) -> None:
        """Take away what is under the key: it is not what it should be."""
        with translated(self.link.place, f"remove the damaged {self.key}"):
            self.link.client.delete_object(**self.object)
