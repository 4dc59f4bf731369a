"""A store under an S3 prefix: conditional writes, verified by the server and read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.checksum import ALGORITHM, RunningChecksum, checksum_of
from hiddenfeed.errors import DataError, TransientError
from hiddenfeed.layout import check_key
from hiddenfeed.local_file import replacing
from hiddenfeed.options import StoreOptions
from hiddenfeed.store.base import ObjectInfo, PutOutcome, UnfinishedUpload, UploadNotes
from hiddenfeed.store.deadline import transfer_deadline
from hiddenfeed.store.gate import RequestGate
from hiddenfeed.store.s3_begun import BegunUploads, spares_objects
from hiddenfeed.store.s3_client import parse_s3_url
from hiddenfeed.store.s3_errors import NO_UPLOAD, error_code, from_client, from_reply, translated
from hiddenfeed.store.s3_foreign import check_list, needed
from hiddenfeed.store.s3_link import S3Link
from hiddenfeed.store.s3_multipart import MultipartPut
from hiddenfeed.store.s3_put import S3Put
from hiddenfeed.store.s3_read import S3Reads, info_of
from hiddenfeed.store.verified_file import VerifiedFile

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

#: As many as S3 gives at a time.
_KEYS_PER_PAGE = 1000


class S3Store:
    """Objects below `s3://bucket/prefix`; safe to share between threads, opens connections as calls need them."""

    def __init__(
        self,
        url: str,
        options: StoreOptions,
        *,
        gate: RequestGate | None = None,
        notes: UploadNotes | None = None,
    ) -> None:
        """Raises ConfigError for a URL or options that cannot work; the server is not asked yet."""
        self._options = options
        self._link = S3Link(parse_s3_url(url), options, gate, notes)
        self._place = self._link.place
        self._reads = S3Reads(self._link)

    @property
    def _client(self) -> S3Client:
        return self._link.client

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`"""
        return self._place.url

    def check(self, *, create: bool = False) -> None:
        """See `Store.check`; `create` makes no difference, as a bucket is never created."""
        with translated(self._place, f"list {self.url}"):
            reply: Any = self._client.list_objects_v2(
                Bucket=self._place.bucket, Prefix=self._place.full_key(""), MaxKeys=1
            )
        check_list(reply, self._place.endpoint)

    def head(self, key: str, *, checksum: bool = False) -> ObjectInfo | None:
        """See `Store.head`."""
        reply = self._reads.head_reply(key)
        if reply is None:
            return None
        info = info_of(key, reply)
        if not checksum or info.checksum is not None:
            return info
        return self._reads.as_read(key, reply, ALGORITHM)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._place.bucket,
            Prefix=self._place.full_key(prefix),
            PaginationConfig={"PageSize": _KEYS_PER_PAGE},
        )
        skip = len(self._place.full_key(""))
        with translated(self._place, f"list {self.url}/{prefix}"):
            for page in pages:
                for entry in page.get("Contents", []):
                    full_key = str(self._needed(entry, "Key", "list"))
                    if full_key.endswith("/"):
                        continue  # what some tools leave in place of a folder
                    size_bytes = self._needed(entry, "Size", f"list {full_key}")
                    yield ObjectInfo(key=full_key[skip:], size_bytes=size_bytes)

    def folders(self) -> Iterator[str]:
        """See `Store.folders`."""
        root = self._place.full_key("")
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._place.bucket,
            Prefix=root,
            Delimiter="/",
            PaginationConfig={"PageSize": _KEYS_PER_PAGE},
        )
        with translated(self._place, f"list {self.url}"):
            for page in pages:
                for entry in page.get("CommonPrefixes", []):
                    yield str(self._needed(entry, "Prefix", "list")).removeprefix(root).rstrip("/")

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.read`."""
        if start == 0 and length is None:
            reply = self._reads.existing(key)
            data = b"".join(self._reads.stream(key, reply))
            expected = info_of(key, reply).checksum
            if expected is not None and checksum_of(data, expected.partition(":")[0]) != expected:
                raise TransientError(f"{self.url}/{key} arrived damaged")
            return data
        if length == 0:
            self._reads.existing(key)
            return b""
        return self._reads.section(key, start, length)

    def download(self, key: str, path: Path) -> ObjectInfo:
        """See `Store.download`."""
        reply = self._reads.existing(key)
        info = info_of(key, reply)
        running = RunningChecksum(info.checksum.partition(":")[0] if info.checksum else ALGORITHM)
        with replacing(path) as file:
            for block in self._reads.stream(key, reply):
                running.update(block)
                file.write(block)
            if info.checksum is not None and running.value != info.checksum:
                raise TransientError(f"{self.url}/{key} arrived damaged")
        return ObjectInfo(key=key, size_bytes=info.size_bytes, checksum=running.value, metadata=info.metadata)

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> PutOutcome:
        """See `Store.write`."""
        if not data:
            raise DataError(f"{key} would be empty; an empty object is never stored")
        return self._put(key).document(data, checksum_of(data), if_absent=if_absent)

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        size_bytes: int,
        checksum: str,
        metadata: Mapping[str, str] | None = None,
    ) -> PutOutcome:
        """See `Store.put_file`."""
        put = self._put(key)
        deadline = transfer_deadline(key, size_bytes, self._options.s3_min_bytes_per_second)
        with VerifiedFile(path, size_bytes, checksum, deadline) as source:
            try:
                if size_bytes <= self._options.multipart_threshold_bytes:
                    BegunUploads(put).give_up_before_one_request()
                    return put.file(source, metadata or {})
                return MultipartPut(put, source, metadata or {}).run()
            except TransientError:
                if deadline.left_seconds < 0:
                    # Perhaps too many share a slow link: with fewer at a time each has more of it.
                    self._link.gate.busy()
                raise

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        with translated(self._place, f"delete {check_key(key)}"):
            self._client.delete_object(Bucket=self._place.bucket, Key=self._place.full_key(key))

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """See `KeepsParts.unfinished_uploads`."""
        root = self._place.full_key("")
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._place.bucket, Prefix=root
        )
        with translated(self._place, f"list unfinished uploads of {self.url}"):
            for page in pages:
                for entry in page.get("Uploads", []):
                    key, doing = str(entry.get("Key", "")), "list unfinished uploads"
                    if key.startswith(root):
                        yield UnfinishedUpload(
                            key=key[len(root) :],
                            upload_id=self._needed(entry, "UploadId", doing),
                            began_at=self._needed(entry, "Initiated", doing).timestamp(),
                        )

    def abort_spares_object(self) -> bool:
        """See `KeepsParts.abort_spares_object`."""
        return spares_objects(self._link)

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See `KeepsParts.abort_upload`."""
        try:
            self._client.abort_multipart_upload(
                Bucket=self._place.bucket, Key=self._place.full_key(check_key(key)), UploadId=upload_id
            )
        except ClientError as error:
            if error_code(error) not in NO_UPLOAD:
                raise from_reply(error, self._place, f"give up an upload of {key}") from error
        except BotoCoreError as error:
            raise from_client(error, self._place, f"give up an upload of {key}") from error

    def _needed(self, reply: Any, field: str, doing: str) -> Any:
        return needed(reply, field, self._place.endpoint, doing)

    def _put(self, key: str) -> S3Put:
        return S3Put(self._link, check_key(key), self.head, self._reads.read_back)
