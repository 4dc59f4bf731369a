"""What the doctor tries at a store, one small trial each, and the settings that follow. Everything it makes it removes."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, ReadTimeoutError

from hiddenfeed.checksum import ALGORITHM, checksum_of
from hiddenfeed.errors import ConfigError, HiddenfeedError
from hiddenfeed.options import MIB, StoreOptions
from hiddenfeed.store.s3_client import S3Place, make_client, parse_s3_url
from hiddenfeed.store.s3_errors import DAMAGED, PRECONDITION_FAILED, error_code, from_client, from_reply
from hiddenfeed.store.s3_foreign import check_list
from uploader.scratch import FIELD, LAST_PART_BYTES, PART_BYTES, Finding, Lacks, Report, Scratch

#: A single request takes this much at every store.
_LARGEST_PUT_BYTES = 5 * 1024 * MIB
#: A request of the doctor's is small: a store that needs longer is away.
_PATIENCE_SECONDS = 10.0
_UNVERIFIED = "a body with a wrong checksum was taken; files are verified here while they are read"
_REPLACED = "an object was replaced; the uploader looks before and after each write instead"
#: How stores refuse parts that do not make the whole that was announced.
_NOT_THE_WHOLE = DAMAGED | {"InvalidRequest", "InvalidPart"}


def try_store(
    url: str, options: StoreOptions, say: Callable[[Finding], object] = lambda finding: None
) -> Report:
    """Try everything, telling `say` of each finding; raises ConfigError where no trial can begin, TransientError if the store is away."""
    quick = msgspec.structs.replace(
        options,
        s3_connect_timeout_seconds=min(options.s3_connect_timeout_seconds, _PATIENCE_SECONDS),
        s3_read_timeout_seconds=min(options.s3_read_timeout_seconds, _PATIENCE_SECONDS),
        s3_max_attempts=min(options.s3_max_attempts, 2),
    )
    report = Report(say=say)
    reached = _reach(url, quick, report)
    scratch = Scratch(url, reached, report)
    try:
        _Trials(scratch, reached).run()
    finally:
        scratch.clean_up()
    return report


def _reach(url: str, options: StoreOptions, report: Report) -> StoreOptions:
    """Find the addressing that reaches the bucket; returns the options with it."""
    other: Literal["path", "virtual"] = "path" if options.s3_addressing == "virtual" else "virtual"
    first: HiddenfeedError | None = None
    for addressing in (options.s3_addressing, other):
        tried = msgspec.structs.replace(options, s3_addressing=addressing)
        client, endpoint = make_client(tried)
        bucket, prefix = parse_s3_url(url)
        place = S3Place(bucket=bucket, prefix=prefix, endpoint=endpoint)
        try:
            found: Any = client.list_objects_v2(Bucket=bucket, Prefix=place.full_key(""), MaxKeys=1)
            check_list(found, endpoint)
        except ConfigError as error:
            first = first or error
        except ClientError as error:
            first = first or from_reply(error, place, f"list {place.url}")
        except (ConnectTimeoutError, ReadTimeoutError) as error:
            first = first or from_client(error, place, f"list {place.url}")
            break  # it is no faster under another name
        except BotoCoreError as error:
            first = first or from_client(error, place, f"list {place.url}")
        else:
            if addressing != options.s3_addressing:
                report.settings["s3_addressing"] = addressing
            where = "the host's name" if is_virtual(client, bucket) else "the path"
            report.add(Finding("reach the bucket and list it", "works", f"the bucket is in {where}"))
            return tried
    assert first is not None
    raise first


def is_virtual(client: Any, bucket: str) -> bool:
    """Whether the client puts the bucket into the host's name."""
    url: str = client.generate_presigned_url("head_bucket", Params={"Bucket": bucket})
    return str(urlsplit(url).hostname).startswith(f"{bucket}.")


class _Trials:
    """The trials of one store, each a method that says how it went."""

    def __init__(self, scratch: Scratch, options: StoreOptions) -> None:
        self._scratch, self._options = scratch, options
        self._settings = scratch.report.settings

    def run(self) -> None:
        """All of them, in an order in which each needs only what came before."""
        attempt = self._scratch.attempt
        if not attempt("write and read", self._write_and_read, vital=True):
            return
        attempt("read a range", self._read_range)
        self._find_integrity()
        attempt("HEAD tells the checksum", self._head_tells)
        conditional = attempt("refuse to replace (If-None-Match)", self._conditional)
        if attempt("upload in parts", self._parts):
            attempt("verify the whole of an upload in parts", self._whole)
            conditional &= attempt("refuse to replace by an upload in parts", self._conditional_parts)
            attempt("list parts and unfinished uploads", self._list_parts)
            attempt("give up an upload in parts", self._abort)
        else:
            self._settings["multipart_threshold_bytes"] = str(_LARGEST_PUT_BYTES)
        if not conditional and self._options.s3_conditional_writes:
            self._settings["s3_conditional_writes"] = "false"
        attempt("delete", self._delete, vital=True)

    # -- small objects ----------------------------------------------------------------------------

    def _write_and_read(self) -> str:
        scratch, data = self._scratch, os.urandom(1000)
        began = time.perf_counter()
        scratch.put("plain", data)
        took = time.perf_counter() - began
        if scratch.client.get_object(**scratch.at("plain"))["Body"].read() != data:
            raise Lacks("other bytes came back than were stored")
        return f"a small request takes {1000 * took:.0f} ms"

    def _read_range(self) -> str:
        scratch = self._scratch
        whole = scratch.client.get_object(**scratch.at("plain"))["Body"].read()
        part = scratch.client.get_object(**scratch.at("plain"), Range="bytes=100-199")["Body"].read()
        if part != whole[100:200]:
            raise Lacks("readers of single samples will not work")
        return ""

    def _find_integrity(self) -> None:
        """Find the first way in which the store verifies what it receives."""
        wanted = self._options.s3_checksum
        ways = {
            "header": ("verify a body by its checksum", self._verify_header),
            "md5": ("verify a body by its MD5", self._verify_md5),
        }
        for mode in sorted(ways, key=lambda each: each != wanted):
            if self._scratch.attempt(*ways[mode]):
                self._scratch.verifies = mode == "header"
                if mode != wanted:
                    self._settings["s3_checksum"] = mode
                return
        if wanted != "off":
            self._settings["s3_checksum"] = "off"

    def _verify_header(self) -> str:
        data = os.urandom(1000)
        self._scratch.put("sum", data, **{FIELD: checksum_of(data).partition(":")[2]})
        wrong = {FIELD: checksum_of(data + b"x").partition(":")[2]}
        self._scratch.refused("wrong-sum", data, DAMAGED, _UNVERIFIED, **wrong)
        return ALGORITHM

    def _verify_md5(self) -> str:
        wrong = base64.b64encode(hashlib.md5(b"other", usedforsecurity=False).digest()).decode()
        otherwise = "a body with a wrong MD5 was taken as well"
        self._scratch.refused("wrong-md5", b"body", DAMAGED, otherwise, ContentMD5=wrong)
        return "slower: every file is read twice"

    def _head_tells(self) -> str:
        scratch = self._scratch
        data = b"told"
        scratch.put("told", data, **{FIELD: checksum_of(data).partition(":")[2]})
        if not scratch.client.head_object(**scratch.at("told"), ChecksumMode="ENABLED").get(FIELD):
            raise Lacks("files are read here once more after they are stored")
        return ""

    def _conditional(self) -> str:
        self._scratch.put("first", b"first", IfNoneMatch="*")
        self._scratch.refused("first", b"second", PRECONDITION_FAILED, _REPLACED, IfNoneMatch="*")
        return ""

    def _delete(self) -> str:
        scratch = self._scratch
        scratch.client.delete_object(**scratch.at("plain"))
        found = scratch.client.list_objects_v2(Bucket=scratch.place.bucket, Prefix=scratch.folder + "plain")
        if found.get("Contents"):
            raise Lacks("a deleted object is still listed")
        return ""

    # -- parts ------------------------------------------------------------------------------------

    def _parts(self) -> str:
        scratch = self._scratch
        whole = scratch.upload("parts")
        found = scratch.client.head_object(**scratch.at("parts"), ChecksumMode="ENABLED")
        size = PART_BYTES + LAST_PART_BYTES
        if found["ContentLength"] != size:
            raise Lacks(f"the object has {found['ContentLength']} bytes instead of {size}")
        return "with the checksum of the whole" if found.get(FIELD) == whole.partition(":")[2] else ""

    def _whole(self) -> str:
        if not self._scratch.verifies:
            raise Lacks("the store verifies nothing; files are verified here while they are read")
        wrong = {FIELD: checksum_of(b"other").partition(":")[2]}
        try:
            self._scratch.upload("wrong-parts", **wrong)
        except ClientError as error:
            if error_code(error) in _NOT_THE_WHOLE:
                return ""
            raise
        raise Lacks("parts with a wrong checksum of the whole were taken")

    def _conditional_parts(self) -> str:
        try:
            self._scratch.upload("parts", IfNoneMatch="*")
        except ClientError as error:
            if error_code(error) in PRECONDITION_FAILED:
                return ""
            raise
        raise Lacks(_REPLACED)

    def _list_parts(self) -> str:
        scratch = self._scratch
        upload_id = scratch.begin("unfinished")
        scratch.send_part("unfinished", upload_id, 1, b"x")
        parts = scratch.client.list_parts(**scratch.at("unfinished"), UploadId=upload_id).get("Parts", [])
        if len(parts) != 1:
            raise Lacks("interrupted uploads in parts begin anew")
        if upload_id not in scratch.unfinished():
            raise Lacks("forgotten uploads are not found; set a lifecycle rule that aborts them")
        return "" if parts[0].get(FIELD) or not scratch.verifies else "without checksums of parts"

    def _abort(self) -> str:
        scratch = self._scratch
        upload_id = scratch.begin("aborted")
        scratch.client.abort_multipart_upload(**scratch.at("aborted"), UploadId=upload_id)
        if upload_id in scratch.unfinished():
            raise Lacks("it is still there; set a lifecycle rule that aborts unfinished uploads")
        return ""
