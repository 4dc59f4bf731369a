"""Answers that no S3 server gives: redirects elsewhere, pages of gateways and proxies, replies that lack something."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError, ResponseParserFactory

from hiddenfeed.errors import ConfigError, HiddenfeedError, PermanentError, TransientError

#: Of these at least one is in every list of a bucket.
_OF_A_LIST = frozenset({"Name", "IsTruncated", "KeyCount", "MaxKeys", "Contents"})
#: Whoever says so may say otherwise soon.
_PASSING = frozenset({408, 425, 429, 499})
_LONGEST_ADDRESS = 200


class UnreadableReplyError(BotoCoreError):
    """A reply that boto3 cannot take apart."""

    fmt = "{reason}"


class Parsers(ResponseParserFactory):
    """boto3's parsers, whose failures are errors of boto3's like all others instead of whatever Python raised."""

    def create_parser(self, protocol_name: str) -> Any:
        """The parser of a protocol."""
        parser = super().create_parser(protocol_name)
        parse = parser.parse

        def parse_or_say(response: Any, shape: Any) -> Any:
            try:
                return parse(response, shape)
            except (ResponseParserError, LookupError, TypeError, ValueError) as error:
                reason = str(error).splitlines() or [type(error).__name__]
                raise UnreadableReplyError(reason=reason[0]) from error

        parser.parse = parse_or_say  # type: ignore[method-assign]
        return parser


def leave_redirect(request_dict: Any, response: Any, operation: Any, **details: object) -> None:
    """A handler of boto3's: keep it from taking every redirect for one to another region.

    It asks for the bucket's region then, is redirected again, asks again, and so on without an end.
    """
    if response is None:
        return
    http, parsed = response
    if http is None or not 300 <= http.status_code < 400:
        return
    error = parsed.get("Error", {})
    region = "x-amz-bucket-region" in http.headers or "Region" in error
    if region or (_is_of_s3(error.get("Code", "")) and operation.name != "HeadBucket"):
        return
    request_dict["context"].setdefault("s3_redirect", {})["redirected"] = True


def is_bare(code: str) -> bool:
    """Whether an error has no name of S3's: a HEAD's, or somebody else's answer."""
    return not _is_of_s3(code)


def check_list(reply: Mapping[str, Any], endpoint: str) -> None:
    """Raise ConfigError unless that is a list of a bucket: a web server says 200 to everything."""
    if not _OF_A_LIST & set(reply):
        raise ConfigError(
            f"{endpoint} does not answer like an S3 server: asked for a list of the bucket, it sent something else; "
            "check --s3-endpoint"
        )


def needed(reply: Mapping[str, Any], field: str, endpoint: str, doing: str) -> Any:
    """What a reply must have; raises TransientError if it does not."""
    value = reply.get(field)
    if value is None or value == "":
        raise TransientError(f"could not {doing}: {endpoint} answered without {field}, as no S3 server does")
    return value


def redirected(error: ClientError, endpoint: str, doing: str) -> HiddenfeedError:
    """The meaning of a redirect that is none to another region."""
    metadata: Any = error.response.get("ResponseMetadata", {})
    location = str(metadata.get("HTTPHeaders", {}).get("location", ""))
    parts = urlsplit(location)
    address = parts._replace(query="", fragment="", netloc=parts.netloc.rpartition("@")[2]).geturl()
    whither = f"to {address[:_LONGEST_ADDRESS]}" if address else "without saying where to"
    return ConfigError(
        f"could not {doing}: {endpoint} redirects {whither}, which S3 does not do; "
        "give the address of the S3 server itself with --s3-endpoint"
    )


def by_status(status: int, said: str, endpoint: str, doing: str, *, bare: bool) -> HiddenfeedError:
    """The meaning of an error whose name means nothing to us; `said` is what was answered."""
    failed = f"could not {doing}: {endpoint}"
    if status >= 500 or status in _PASSING:
        return TransientError(f"{failed} failed ({said})")
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return ConfigError(
            f"{failed} cannot be reached without a login at a proxy ({said}); give it in HTTPS_PROXY or HTTP_PROXY"
        )
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return ConfigError(
            f"{failed} takes no request as large as this ({said}); raise its limit, or set "
            "--multipart-threshold-bytes and --multipart-part-bytes below it"
        )
    if status in (401, 403, 405, 421) or "Quota" in said:
        return ConfigError(f"{failed} does not allow it ({said}); check --s3-endpoint and the rights there")
    if bare:
        return ConfigError(
            f"{failed} answers {said} without a reason of S3's; it may be no S3 server, or want https://, "
            "other credentials or another region: check --s3-endpoint"
        )
    return PermanentError(f"{failed} refused it ({said})")


def not_found(said: str, endpoint: str, doing: str) -> HiddenfeedError:
    """The meaning of a 404 to a request that needs no object."""
    return ConfigError(
        f"could not {doing}: {endpoint} answers {said}; it may be no S3 server, or the bucket or path "
        "is wrong: check --s3-endpoint and --store"
    )


def phrase(status: int) -> str:
    """`404 Not Found`"""
    known = {each.value: each.phrase for each in HTTPStatus}
    return f"{status} {known.get(status, '')}".strip()


def _is_of_s3(code: str) -> bool:
    return bool(code) and not code.isdigit()
