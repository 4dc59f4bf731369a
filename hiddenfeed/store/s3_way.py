"""How boto3 sends one kind of request: learned from one that it sent, enough to send others of the kind without it.

boto3 takes longer over a request than a small body does on its way. What it does is the same each
time, though, but for the key, the checksum and the time. A way is believed only if it would have
made the very request that boto3 made, signature included; else boto3 goes on doing all the work.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.exceptions import BotoCoreError, ClientError

from hiddenfeed.store.s3_client import SIGNATURE
from hiddenfeed.store.s3_sign import UNSIGNED_PAYLOAD, authorization, host_of, now

#: Headers of a request's own that every way sets itself, or that nobody needs.
_EACH_TIME = frozenset(
    {
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "authorization",
        "host",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
    }
)
#: Headers that depend on what is sent: a way that does not know how to make them is none.
_OF_THE_BODY = re.compile(r"content-length|content-md5|x-amz-meta-.*|x-amz-checksum-(crc|sha).*")
#: Values that are sent and signed as they are.
_PLAIN = re.compile(r"[!-~]+(?: [!-~]+)*")
_NAME = re.compile(r"[a-z0-9._-]+")
#: A kind that was not learned from so many requests is left to boto3.
_MOST_TRIES = 3


class Way(msgspec.Struct, frozen=True):
    """One kind of request to one bucket."""

    #: `http://host:port`.
    origin: str
    #: Escaped, up to the key.
    path: str
    #: What every request of the kind has: signed headers, and finished lines of others.
    signed: dict[str, str]
    unsigned: str
    signer: Any
    service: str
    region: str

    def head(self, method: str, full_key: str, query: str, own: Mapping[str, str]) -> bytes:
        """A request up to its body. `own` are this one's headers; `query` is escaped and in order.

        Raises what boto3 raises if there are no credentials (any more).
        """
        keys = self.signer.get_auth_instance(self.service, self.region, SIGNATURE).credentials
        signed = {**self.signed, **own, "x-amz-date": now()}
        if keys.token:
            signed["x-amz-security-token"] = keys.token
        path = self.path + full_key
        proof = authorization(
            keys.access_key,
            keys.secret_key,
            self.region,
            self.service,
            method=method,
            path=path,
            query=query,
            signed=signed,
        )
        lines = "\r\n".join([f"{name}: {value}" for name, value in signed.items()])
        target = f"{path}?{query}" if query else path
        return (
            f"{method} {target} HTTP/1.1\r\n{lines}\r\n{self.unsigned}authorization: {proof}\r\n\r\n".encode()
        )


class _Seen(msgspec.Struct):
    """A request of boto3's."""

    url: str
    signer: Any
    service: str
    region: str
    #: As they left, by name in lower case.
    headers: dict[str, str] = {}
    method: str = ""


class Ways:
    """The ways of one operation of one client. Safe to share between threads."""

    def __init__(self, client: Any, operation: str, reaches: Callable[[str], bool]) -> None:
        """Watches what the client sends; there are ways for addresses that `reaches` says yes to."""
        self._reaches = reaches
        self._seen = threading.local()
        #: By the names of the request's own headers, as other headers may come with them.
        self._known: dict[tuple[str, ...], Way] = {}
        self._tries: Counter[tuple[str, ...]] = Counter()
        client.meta.events.register(f"before-sign.s3.{operation}", self._see_signer)
        client.meta.events.register_first(f"before-send.s3.{operation}", self._see_headers)

    def known(self, own: Mapping[str, str]) -> Way | None:
        """The way for a request with such headers of its own; None: ask boto3."""
        way = self._known.get(_kind(own))
        plain = all(map(_NAME.fullmatch, own)) and all(map(_PLAIN.fullmatch, own.values()))
        return way if plain else None

    def learn(self, full_key: str, query: str, own: Mapping[str, str]) -> None:
        """This thread's last request of boto3's was this one, and went well."""
        seen: _Seen | None = getattr(self._seen, "request", None)
        kind = _kind(own)
        if seen is None or kind in self._known or self._tries[kind] == _MOST_TRIES:
            return
        self._tries[kind] += 1
        try:
            way = _way(seen, full_key, query, own)
        except (BotoCoreError, ClientError):
            return  # the credentials ended right now, which is no fault of a request that went well
        if way is not None:
            self._known[kind] = way

    def _see_signer(
        self,
        request: AWSRequest,
        request_signer: Any,
        signing_name: str,
        region_name: str,
        signature_version: str,
        **details: object,
    ) -> None:
        """boto3 is about to sign."""
        signing = request.context.get("signing", {})
        self._seen.request = None
        if signature_version == SIGNATURE and self._reaches(request.url or ""):
            self._seen.request = _Seen(
                url=request.url or "",
                signer=request_signer,
                service=signing.get("signing_name", signing_name),
                region=signing.get("region", region_name),
            )

    def _see_headers(self, request: AWSPreparedRequest, **details: object) -> None:
        """boto3 is about to send."""
        seen: _Seen | None = getattr(self._seen, "request", None)
        if seen is not None:
            seen.method = request.method
            seen.headers = {name.lower(): _text(value) for name, value in request.headers.items()}


def _kind(own: Mapping[str, str]) -> tuple[str, ...]:
    return tuple([name for name in own if not name.startswith("x-amz-meta-")])


def _way(seen: _Seen, full_key: str, query: str, own: Mapping[str, str]) -> Way | None:
    """What was seen, as a way; None if it would make other requests than boto3 does."""
    parts, headers = urlsplit(seen.url), seen.headers
    covered = headers.get("authorization", "").partition("SignedHeaders=")[2].partition(",")[0].split(";")
    constant = {name: value for name, value in headers.items() if name not in own and name not in _EACH_TIME}
    host = host_of(parts)
    alike = (
        parts.path.endswith(f"/{full_key}")
        and sorted(parts.query.split("&")) == sorted(query.split("&"))
        and {name: headers.get(name) for name in own} == dict(own)
        and not any(map(_OF_THE_BODY.fullmatch, constant))
        and {*own, "host", "x-amz-date", "x-amz-content-sha256"} <= set(covered)
        and headers.get("x-amz-content-sha256") == UNSIGNED_PAYLOAD
        and all(map(_PLAIN.fullmatch, headers.values()))
    )
    if not alike:
        return None
    keys = seen.signer.get_auth_instance(seen.service, seen.region, SIGNATURE).credentials
    proof = authorization(
        keys.access_key,
        keys.secret_key,
        seen.region,
        seen.service,
        method=seen.method,
        path=parts.path,
        query=query,
        signed={name: host if name == "host" else headers.get(name, "") for name in covered},
    )
    if proof != headers["authorization"]:
        return None
    unsigned = {name: value for name, value in constant.items() if name not in covered}
    return Way(
        origin=f"{parts.scheme}://{parts.netloc}",
        path=parts.path.removesuffix(full_key),
        signed={
            "host": host,
            "x-amz-content-sha256": UNSIGNED_PAYLOAD,
            **{name: value for name, value in constant.items() if name in covered},
        },
        unsigned="".join(f"{name}: {value}\r\n" for name, value in unsigned.items()),
        signer=seen.signer,
        service=seen.service,
        region=seen.region,
    )


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
