"""What S3 and boto3 raise, as our errors: one sentence each, and the kind that says what happens next."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ReadTimeoutError,
)
from urllib3.util.ssl_match_hostname import CertificateError

from hiddenfeed.errors import ConfigError, HiddenfeedError, MissingObjectError, TransientError
from hiddenfeed.store.s3_client import S3Place
from hiddenfeed.store.s3_foreign import (
    UnreadableReplyError,
    by_status,
    is_bare,
    not_found,
    phrase,
    redirected,
)

PRECONDITION_FAILED = frozenset({"PreconditionFailed", "412"})
#: Two conditional writes met; neither has won for sure.
CONFLICT = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
#: The store asks for fewer requests.
BUSY = frozenset({"SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"})
#: What arrived is not what its checksum says.
DAMAGED = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"})
EXPIRED = frozenset({"ExpiredToken", "TokenRefreshRequired", "RequestExpired"})
NO_UPLOAD = frozenset({"NoSuchUpload"})
NOT_FOUND = frozenset({"NoSuchKey", "NotFound", "404"})
#: Operations that want an object to be there.
_OF_AN_OBJECT = frozenset({"HeadObject", "GetObject", "DeleteObject", "AbortMultipartUpload"})
#: Others than these keys may lie where they came from by now.
_KEYS_REFUSED = EXPIRED | {"InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"}
#: What a HEAD says of keys, having no room for a reason.
_KEYS_REFUSED_BARELY = frozenset({400, 401, 403})
#: How a message of TLS begins that says why a connection ends.
_TLS_ALERT = "\x15\x03"
#: What OpenSSL makes of an answer that is not TLS.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"})

#: Error codes, the kind of error they are to us, and its sentence. The first that fits is taken.
_MEANINGS: tuple[tuple[frozenset[str], type[HiddenfeedError], str], ...] = (
    (frozenset({"NoSuchBucket"}), ConfigError, "bucket {bucket!r} does not exist at {endpoint}"),
    (
        frozenset({"InvalidAccessKeyId", "InvalidToken"}),
        ConfigError,
        "{endpoint} does not know the access key; check AWS_ACCESS_KEY_ID",
    ),
    (
        frozenset({"SignatureDoesNotMatch"}),
        ConfigError,
        "{endpoint} refuses the credentials: the secret key does not belong to the access key",
    ),
    (
        EXPIRED,
        ConfigError,
        "the credentials for {endpoint} have expired",
    ),
    (
        frozenset({"RequestTimeTooSkewed"}),
        ConfigError,
        "{endpoint} refuses requests because this machine's clock is wrong",
    ),
    (
        frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "NotSignedUp", "403", "Forbidden"}),
        ConfigError,
        "{endpoint} does not allow us to {doing} ({reason})",
    ),
    (
        frozenset(
            {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
        ),
        ConfigError,
        "bucket {bucket!r} is in another region; set --s3-region ({reason})",
    ),
    (
        frozenset({"NotImplemented", "501"}),
        ConfigError,
        "{endpoint} cannot {doing}: it lacks something that safe uploads need ({reason})",
    ),
    (
        frozenset({"EntityTooLarge", "MaxMessageLengthExceeded"}),
        ConfigError,
        "{endpoint} takes no request as large as that to {doing} ({reason}); "
        "set --multipart-threshold-bytes and --multipart-part-bytes below its limit",
    ),
    (NOT_FOUND, MissingObjectError, "{url}: could not {doing}: there is no such object"),
    # The file is verified by whoever meets this, so what hurt the bytes was the network.
    (
        DAMAGED | {"IncompleteBody", "RequestTimeout", "InvalidPart"},
        TransientError,
        "could not {doing}: the data arrived damaged or cut ({reason})",
    ),
    (
        BUSY | {"TemporaryRedirect"},
        TransientError,
        "could not {doing}: {endpoint} is busy ({reason})",
    ),
    (CONFLICT | PRECONDITION_FAILED | NO_UPLOAD, TransientError, "could not {doing}: {reason}"),
)


def error_code(error: ClientError) -> str:
    """S3's name of the error, or the HTTP status where a reply has no body (HEAD)."""
    return str(error.response.get("Error", {}).get("Code", "") or _status(error))


def refuses_keys(reply: Any) -> bool:
    """Whether a reply, as boto3 has taken it apart, is a refusal of the credentials, or may be one."""
    code = str(reply.get("Error", {}).get("Code", ""))
    status = reply.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return code in _KEYS_REFUSED or (is_bare(code) and status in _KEYS_REFUSED_BARELY)


@contextmanager
def translated(place: S3Place, doing: str) -> Iterator[None]:
    """Turn whatever boto3 raises inside into our errors; `doing` reads like `store run/a.bin`."""
    try:
        yield
    except ClientError as error:
        raise from_reply(error, place, doing) from error
    except BotoCoreError as error:
        raise from_client(error, place, doing) from error


def from_reply(error: ClientError, place: S3Place, doing: str) -> HiddenfeedError:
    """The meaning of an error that the server replied with."""
    code, status = error_code(error), _status(error)
    message = str(error.response.get("Error", {}).get("Message", "")).strip().rstrip(".")
    reason = f"{code}: {message}" if message and message != code else code
    if error.operation_name.startswith("AssumeRole") and status < 500:  # asked for on the way to the store
        return ConfigError(
            f"could not {doing}: the role cannot be assumed ({reason}); check --s3-role-arn, or the profile's role"
        )
    bare = is_bare(code)
    said = phrase(status) if bare else reason
    if bare and 300 <= status < 400:
        return redirected(error, place.endpoint, doing)
    if code in NOT_FOUND and error.operation_name not in _OF_AN_OBJECT:
        return not_found(said, place.endpoint, doing)
    for codes, kind, sentence in _MEANINGS:
        if code in codes:
            return kind(
                sentence.format(
                    bucket=place.bucket, endpoint=place.endpoint, url=place.url, doing=doing, reason=reason
                )
            )
    return by_status(status, said if bare else f"{status} {said}", place.endpoint, doing, bare=bare)


def from_client(error: BotoCoreError, place: S3Place, doing: str) -> HiddenfeedError:
    """The meaning of an error that arose on our side: no reply, no credentials, no valid request."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigError(
            "there are no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --s3-profile"
        )
    if isinstance(error, ParamValidationError):
        return ConfigError(f"could not {doing}: {str(error).splitlines()[-1].strip()}")
    if isinstance(error, UnreadableReplyError):
        return TransientError(f"could not {doing}: {place.endpoint} sent no reply of S3's ({error})")
    distrust = _innermost(error)
    if isinstance(distrust, CertificateError):
        return ConfigError(
            f"the certificate of {place.endpoint} is another host's ({distrust}); "
            "give the name it was made for in --s3-endpoint"
        )
    if isinstance(distrust, ssl.SSLCertVerificationError):
        return ConfigError(
            f"the certificate of {place.endpoint} is not trusted ({distrust.verify_message}); "
            "give the file of the CA that signed it with --s3-ca-bundle"
        )
    if isinstance(distrust, ssl.SSLError) and distrust.reason in _NO_TLS:
        plain = place.endpoint.replace("https://", "http://", 1)
        return ConfigError(
            f"{place.endpoint} does not speak TLS ({_cause(error)}); if it speaks plain HTTP, set --s3-endpoint {plain}"
        )
    if isinstance(distrust, http.client.BadStatusLine) and str(distrust).startswith(_TLS_ALERT):
        return ConfigError(f"{place.endpoint} speaks TLS; set --s3-endpoint {_as_tls(place)}")
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return TransientError(f"S3 at {place.endpoint} is not reachable: {_cause(error)}")
    if isinstance(error, ReadTimeoutError):
        return TransientError(f"could not {doing}: {place.endpoint} did not answer in time")
    failed = f"could not {doing}: the connection to {place.endpoint} failed ({_cause(error)})"
    if isinstance(distrust, http.client.RemoteDisconnected | ConnectionResetError) and _is_plain(place):
        # What many servers do with a request that is not TLS.
        failed += f"; if it speaks TLS, set --s3-endpoint {_as_tls(place)}"
    return TransientError(failed)


def _is_plain(place: S3Place) -> bool:
    return place.endpoint.startswith("http://")


def _as_tls(place: S3Place) -> str:
    return place.endpoint.replace("http://", "https://", 1)


def _status(error: ClientError) -> int:
    metadata: Any = error.response.get("ResponseMetadata", {})
    return int(metadata.get("HTTPStatusCode", 0))


def _cause(error: BaseException) -> str:
    """The innermost reason, as the operating system puts it."""
    inner = _innermost(error)
    return str(getattr(inner, "strerror", None) or inner).strip().lower() or type(inner).__name__


def _innermost(error: BaseException) -> BaseException:
    """What the libraries have wrapped."""
    inner: BaseException = error
    while True:
        following = getattr(inner, "kwargs", {}).get("error") if isinstance(inner, BotoCoreError) else None
        following = following or getattr(inner, "reason", None) or inner.__cause__ or inner.__context__
        if not isinstance(following, BaseException) or following is inner:
            return inner
        inner = following
