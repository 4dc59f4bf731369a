"""The S3 client: the URL taken apart, and boto3 set up so that it neither hashes, signs nor copies bodies.

Payload signing off and a checksum computed beforehand belong together: either alone makes
botocore read every body once more. What protects the bytes is the checksum, which the server
verifies, and TLS where the endpoint is https.
"""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.layout import check_key
from hiddenfeed.options import StoreOptions
from hiddenfeed.store.s3_foreign import Parsers, leave_redirect

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
#: Idle connections that may be kept; they are opened one by one, as many as calls run at a time.
POOL_CONNECTIONS = 520
#: Our name for botocore's own S3 signature, which awscrt takes the place of where it is installed.
SIGNATURE = "hiddenfeed-s3v4"


class S3Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store's root lies."""

    bucket: str
    #: Without slashes at its ends; may be empty.
    prefix: str
    #: The endpoint as a person knows it, for messages.
    endpoint: str

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`"""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def full_key(self, key: str) -> str:
        """The key inside the bucket of a key relative to the root."""
        return f"{self.prefix}/{key}" if self.prefix else key


def parse_s3_url(url: str) -> tuple[str, str]:
    """(bucket, prefix) of `s3://bucket/prefix`; raises ConfigError naming what is wrong."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"store {url!r}: {bucket!r} cannot be a bucket's name; write s3://bucket/prefix")
    try:
        if prefix:
            check_key(prefix)
    except DataError as error:
        raise ConfigError(
            f"store {url!r}: the prefix may have letters, digits, '.', '-', '_' and '/'"
        ) from error
    return bucket, prefix


def make_client(options: StoreOptions) -> tuple[S3Client, str]:
    """(client, endpoint as shown to people); opens no connection.

    Raises ConfigError if the profile is unknown, the endpoint is no URL or the region is empty.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    if options.s3_endpoint is not None:
        _check_endpoint(options.s3_endpoint)
    if not options.s3_region.strip():
        raise ConfigError("--s3-region is empty: name the bucket's region, or leave the setting out")
    if options.s3_ca_bundle is not None:
        _check_ca_bundle(options.s3_ca_bundle)
    if options.s3_kms_key is not None and not options.s3_encryption.startswith("aws:kms"):
        raise ConfigError("--s3-kms-key needs --s3-encryption aws:kms")
    config = Config(
        s3={"payload_signing_enabled": False, "addressing_style": _addressing(options)},
        signature_version="s3v4",
        connect_timeout=options.s3_connect_timeout_seconds,
        read_timeout=options.s3_read_timeout_seconds,
        max_pool_connections=POOL_CONNECTIONS,
        tcp_keepalive=True,
        retries={"mode": "standard", "total_max_attempts": options.s3_max_attempts},
        # We give a checksum with every body and verify every whole object ourselves.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # Names and types are what the type checker has seen; what a person sets the store refuses.
        parameter_validation=False,
    )
    try:
        session = make_session(options)
        session._session.register_component("response_parser_factory", Parsers())
        client = session.client(
            "s3",
            region_name=options.s3_region,
            endpoint_url=options.s3_endpoint,
            verify=options.s3_ca_bundle,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"S3 cannot be set up: {error}") from error
    _shape(client, options)
    return client, client.meta.endpoint_url


def make_session(options: StoreOptions) -> Any:
    """boto3's session with the credentials that the options name; nothing is asked for them yet.

    All that can expire is renewed by boto3 before it does: assumed roles, roles of the machine,
    of a web identity, and what a profile's `credential_process` prints.
    """
    import boto3
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    session = boto3.session.Session(profile_name=options.s3_profile)
    if options.s3_role_arn is None:
        return session
    core: Any = session._session

    def create_client(service: str, **named: Any) -> Any:
        return core.create_client(service, **{"region_name": options.s3_region, **named})

    source = core.get_credentials()
    if source is None:
        raise ConfigError("--s3-role-arn needs credentials to assume the role with, and there are none")
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=create_client, source_credentials=source, role_arn=options.s3_role_arn
    )
    core._credentials = DeferredRefreshableCredentials(
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    return session


def trusted_certificates(options: StoreOptions) -> str:
    """The file of those whom boto3 trusts with these options."""
    import botocore.session
    from botocore.httpsession import get_cert_path

    core = botocore.session.Session(profile=options.s3_profile)
    return str(options.s3_ca_bundle or core.get_config_variable("ca_bundle") or get_cert_path(True))


def object_arguments(options: StoreOptions) -> dict[str, Any]:
    """What every new object is given: storage class, encryption, tags."""
    arguments = {
        "StorageClass": options.s3_storage_class,
        "ServerSideEncryption": None if options.s3_encryption == "default" else options.s3_encryption,
        "SSEKMSKeyId": options.s3_kms_key,
        "Tagging": options.s3_tags,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _shape(client: Any, options: StoreOptions) -> None:
    """Let every request of the client be as the options say, and cost little."""
    from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth

    events = client.meta.events
    AUTH_TYPE_MAPS.setdefault(SIGNATURE, S3SigV4Auth)
    events.register_first("choose-signer.s3", _choose_signer)
    events.register_first("needs-retry.s3", leave_redirect)
    if not options.s3_expect_continue:

        def no_expect(params: dict[str, Any], **details: object) -> None:
            params["headers"].pop("Expect", None)

        events.register_last("before-call.s3", no_expect)
    if options.s3_requester_pays:

        def pay(params: dict[str, Any], **details: object) -> None:
            params["headers"]["x-amz-request-payer"] = "requester"

        events.register("before-call.s3", pay)


def _choose_signer(context: dict[str, Any], signature_version: str, **details: object) -> str | None:
    """Signing in Python instead of awscrt, which takes every request apart and puts it together again.

    None leaves the choice to botocore: addresses signed beforehand, and whatever is no plain S3 request.
    """
    plain = context.get("auth_type") in (None, "v4", "s3v4") and signature_version in ("v4", "s3v4")
    return SIGNATURE if plain else None


def _addressing(options: StoreOptions) -> Literal["auto", "path", "virtual"]:
    """Other servers than AWS are mostly reached by one name only, so buckets go into the path."""
    custom = (
        options.s3_endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    )
    return "path" if options.s3_addressing == "auto" and custom else options.s3_addressing


def _check_ca_bundle(path: str) -> None:
    """Raise ConfigError now rather than with every request."""
    if not Path(path).is_file():
        raise ConfigError(f"--s3-ca-bundle: there is no file {path}")
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ConfigError(
            f"--s3-ca-bundle: {path} holds no certificates that can be read ({error})"
        ) from error


def _check_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ConfigError("--s3-endpoint must be http://host:port or https://host:port, without a login")
