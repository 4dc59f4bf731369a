"""How to reach a store. Declared here because the library reads stores without the roles.

A field's `Meta` is its whole declaration: description, unit and limits; flags, environment
names and documentation are made from it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MIB = 1024 * 1024


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """S3 client settings; a directory store needs none of them."""

    s3_endpoint: Annotated[
        str | None,
        Meta(
            description="S3 endpoint, e.g. http://127.0.0.1:8333; AWS when not set", extra={"metavar": "url"}
        ),
    ] = None
    s3_region: Annotated[str, Meta(description="S3 region", extra={"metavar": "region"})] = "us-east-1"
    s3_profile: Annotated[
        str | None,
        Meta(description="AWS profile; the default credential chain when not set", extra={"metavar": "name"}),
    ] = None
    s3_role_arn: Annotated[
        str | None,
        Meta(
            description="role to assume with those credentials; renewed before it expires",
            extra={"metavar": "arn"},
        ),
    ] = None
    s3_addressing: Annotated[
        Literal["auto", "path", "virtual"],
        Meta(description="bucket in the path or in the host name; auto is path for a custom endpoint"),
    ] = "auto"
    s3_checksum: Annotated[
        Literal["header", "md5", "off"],
        Meta(
            description="what a store gets to verify bytes with: the file's CRC, Content-MD5 (slower), or nothing; without "
            "a checksum of the store's own each object is read back, as many bytes again"
        ),
    ] = "header"
    s3_conditional_writes: Annotated[
        bool,
        Meta(description="write with If-None-Match; without, a look before and after each write stands in"),
    ] = True
    s3_expect_continue: Annotated[
        bool,
        Meta(description="ask before sending a body (Expect: 100-continue); costs a round trip each"),
    ] = False
    s3_storage_class: Annotated[
        str | None,
        Meta(
            description="storage class of new objects, e.g. STANDARD_IA; the bucket's when not set",
            extra={"metavar": "class"},
        ),
    ] = None
    s3_encryption: Annotated[
        Literal["default", "AES256", "aws:kms", "aws:kms:dsse"],
        Meta(description="encryption of new objects by the store; default is the bucket's"),
    ] = "default"
    s3_kms_key: Annotated[
        str | None,
        Meta(
            description="key of --s3-encryption aws:kms; the account's own when not set",
            extra={"metavar": "key"},
        ),
    ] = None
    s3_tags: Annotated[
        str | None,
        Meta(description="tags of new objects, e.g. team=speech&keep=90d", extra={"metavar": "tags"}),
    ] = None
    s3_requester_pays: Annotated[bool, Meta(description="accept to pay for requests to another's bucket")] = (
        False
    )
    s3_ca_bundle: Annotated[
        str | None, Meta(description="file of CA certificates for the S3 endpoint", extra={"metavar": "file"})
    ] = None
    s3_connect_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="limit for connecting; behind a proxy for a body that stalls as well",
            extra={"unit": "s"},
        ),
    ] = 10.0
    s3_read_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0, description="limit for waiting on a reply, or for a body that stalls", extra={"unit": "s"}
        ),
    ] = 60.0
    s3_min_bytes_per_second: Annotated[
        int,
        Meta(
            ge=1,
            description="a file that arrives more slowly is given up and started anew",
            extra={"unit": "bytes/s"},
        ),
    ] = MIB // 4
    s3_max_attempts: Annotated[int, Meta(ge=1, description="attempts of one S3 call inside the client")] = 4
    multipart_threshold_bytes: Annotated[
        int, Meta(ge=5 * MIB, description="files above this are uploaded in parts", extra={"unit": "bytes"})
    ] = 128 * MIB
    multipart_part_bytes: Annotated[
        int,
        Meta(
            ge=5 * MIB,
            description="size of a part, raised where 10,000 parts do not do",
            extra={"unit": "bytes"},
        ),
    ] = 32 * MIB
    multipart_parts_in_flight: Annotated[
        int, Meta(ge=1, le=64, description="parts of one file under way at a time")
    ] = 4
