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
        str | None, Meta(description="S3 endpoint, e.g. http://127.0.0.1:8333; AWS when not set")
    ] = None
    s3_region: Annotated[str, Meta(description="S3 region")] = "us-east-1"
    s3_profile: Annotated[
        str | None, Meta(description="AWS profile; the default credential chain when not set")
    ] = None
    s3_addressing: Annotated[
        Literal["auto", "path", "virtual"],
        Meta(description="bucket in the path or in the host name; auto is path for a custom endpoint"),
    ] = "auto"
    s3_ca_bundle: Annotated[str | None, Meta(description="file of CA certificates for the S3 endpoint")] = (
        None
    )
    s3_connect_timeout_seconds: Annotated[
        float,
        Meta(gt=0, description="limit for connecting, and for a body send that stalls", extra={"unit": "s"}),
    ] = 10.0
    s3_read_timeout_seconds: Annotated[
        float, Meta(gt=0, description="limit for waiting on a reply", extra={"unit": "s"})
    ] = 60.0
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
