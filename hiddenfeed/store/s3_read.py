"""Reading objects of an S3 store: what is there, its bytes, on where a connection broke off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.checksum import CRC32, CRC64NVME, RunningChecksum
from hiddenfeed.errors import MissingObjectError, TransientError
from hiddenfeed.layout import check_key
from hiddenfeed.store.base import ObjectInfo
from hiddenfeed.store.s3_errors import NOT_FOUND, error_code, from_client, from_reply
from hiddenfeed.store.s3_foreign import needed
from hiddenfeed.store.s3_link import S3Link

#: Asked beyond its end, an object has no bytes.
_BEYOND_END = frozenset({"InvalidRange", "416"})
_READ_BYTES = 1024 * 1024


class S3Reads:
    """Reads through one link; safe to share between threads."""

    def __init__(self, link: S3Link) -> None:
        self._link, self._place, self._attempts = link, link.place, link.options.s3_max_attempts

    def read_back(self, key: str, algorithm: str) -> ObjectInfo | None:
        """The object with the checksum of its bytes, read for that; None if there is none."""
        reply = self.head_reply(key)
        return None if reply is None else self.as_read(key, reply, algorithm)

    def as_read(self, key: str, reply: Any, algorithm: str) -> ObjectInfo:
        """The object that `reply` (a HEAD's) describes, with the checksum of its bytes."""
        running = RunningChecksum(algorithm)
        for block in self.stream(key, reply):
            running.update(block)
        info = info_of(key, reply)
        return ObjectInfo(key=key, size_bytes=info.size_bytes, checksum=running.value, metadata=info.metadata)

    def head_reply(self, key: str) -> Any | None:
        """What boto3's `head_object` replies, with a size and an ETag; None if there is no such object."""
        try:
            reply = self._link.head_object(self._place.full_key(check_key(key)))
            for field in ("ContentLength", "ETag"):
                needed(reply, field, self._place.endpoint, f"look at {key}")
            return reply
        except ClientError as error:
            if error_code(error) in NOT_FOUND:
                return None
            raise from_reply(error, self._place, f"look at {key}") from error
        except BotoCoreError as error:
            raise from_client(error, self._place, f"look at {key}") from error

    def existing(self, key: str) -> Any:
        """The same; raises MissingObjectError if there is no such object."""
        reply = self.head_reply(key)
        if reply is None:
            raise MissingObjectError(f"{self._place.url}/{key} does not exist")
        return reply

    def stream(self, key: str, reply: Any) -> Iterator[bytes]:
        """All bytes of the object that `reply` (a HEAD's) describes, going on where a connection broke off."""
        size, position, broken = int(reply["ContentLength"]), 0, 0
        while position < size:
            before, reason = position, None
            try:
                body = self._link.client.get_object(
                    Bucket=self._place.bucket,
                    Key=self._place.full_key(key),
                    Range=f"bytes={position}-{size - 1}",
                    IfMatch=reply["ETag"],
                )["Body"]
                with closing(body):
                    for block in body.iter_chunks(_READ_BYTES):
                        position += len(block)
                        yield block
            except ClientError as error:
                raise from_reply(error, self._place, f"read {key}") from error
            except BotoCoreError as error:
                reason = from_client(error, self._place, f"read {key}")
            else:
                reason = TransientError(f"could not read {key}: the object ended at byte {position}")
            broken = 0 if position > before else broken + 1
            if broken >= self._attempts:
                raise reason

    def section(self, key: str, start: int, length: int | None) -> bytes:
        """Up to `length` bytes from `start`, all that follow for None; none beyond the object's end."""
        end = "" if length is None else start + length - 1
        for attempt in range(1, self._attempts + 1):
            try:
                reply = self._link.client.get_object(
                    Bucket=self._place.bucket,
                    Key=self._place.full_key(check_key(key)),
                    Range=f"bytes={start}-{end}",
                )
                with closing(reply["Body"]) as body:
                    return bytes(body.read())
            except ClientError as error:
                if error_code(error) in _BEYOND_END:
                    return b""
                raise from_reply(error, self._place, f"read {key}") from error
            except BotoCoreError as error:
                if attempt == self._attempts:
                    raise from_client(error, self._place, f"read {key}") from error
        raise AssertionError("unreachable")


def info_of(key: str, reply: Any) -> ObjectInfo:
    """What a HEAD's reply says; a checksum over parts instead of bytes is no use to us."""
    checksum = None
    if reply.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
        for algorithm in (CRC64NVME, CRC32):
            if value := reply.get(f"Checksum{algorithm.upper()}"):
                checksum = f"{algorithm}:{value}"
                break
    # Some servers write the names their own way.
    metadata = {name.lower(): value for name, value in reply.get("Metadata", {}).items()}
    return ObjectInfo(key=key, size_bytes=int(reply["ContentLength"]), checksum=checksum, metadata=metadata)
