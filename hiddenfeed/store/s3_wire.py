"""Connections of our own to S3 endpoints, and who sends what over them.

boto3 reads a body in pieces and sends each; at a few GB/s that is most of what an upload costs.
So requests that carry a file go this way, signed and judged by boto3 or as boto3 would. Where there
is a proxy, boto3's own way is taken.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import urllib3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import (
    BotoCoreError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
    SSLError,
)
from botocore.httpsession import create_urllib3_context
from botocore.utils import get_environ_proxies
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError as ConnectTimedOut
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.util.ssl_match_hostname import CertificateError

from hiddenfeed.options import StoreOptions
from hiddenfeed.store.s3_client import trusted_certificates
from hiddenfeed.store.s3_line import Line, Reply
from hiddenfeed.store.s3_sign import host_of
from hiddenfeed.store.verified_file import VerifiedBody

#: Operations whose bodies may be files.
_OPERATIONS = ("PutObject", "UploadPart")


class Wire:
    """Connections that are kept, by endpoint. Safe to share between threads; opens none before it is needed."""

    def __init__(self, options: StoreOptions, connections: int) -> None:
        """Keeps up to `connections` per endpoint while they are not used."""
        self._options = options
        #: By origin, whether no proxy is in between; to find out takes a look at the whole environment.
        self._direct: dict[str, bool] = {}
        self._most = connections
        self._idle: defaultdict[str, deque[Line]] = defaultdict(deque)
        self._foregone = threading.local()
        weakref.finalize(self, _hang_up, self._idle)

    def install(self, client: Any) -> None:
        """Take over the requests of a client that carry files."""
        for operation in _OPERATIONS:
            client.meta.events.register(f"before-send.s3.{operation}", self._send)

    def reaches(self, url: str) -> bool:
        """Whether requests for it may go over these connections: no proxy is in between."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._direct:
            self._direct[origin] = not get_environ_proxies(url)
        return self._direct[origin]

    def exchange(self, origin: str, method: str, head: bytes, body: VerifiedBody | None = None) -> Reply:
        """The reply to one request, `head` being all of it but the body; raises what boto3 would, or what the body raises."""
        try:
            line = self._take(origin)
        except NewConnectionError as error:
            raise EndpointConnectionError(endpoint_url=origin, error=error) from error
        except ConnectTimedOut as error:
            raise ConnectTimeoutError(endpoint_url=origin, error=error) from error
        except (ssl.SSLError, CertificateError) as error:
            raise SSLError(endpoint_url=origin, error=error) from error
        except (HTTPError, OSError) as error:
            raise HTTPClientError(error=error) from error
        try:
            reply = line.exchange(method, head, body)
        except BaseException as error:
            line.close()
            if isinstance(error, TimeoutError):
                raise ReadTimeoutError(endpoint_url=origin, error=error) from error
            if isinstance(error, OSError | http.client.HTTPException):
                raise ConnectionClosedError(endpoint_url=origin, error=error) from error
            raise
        self._give_back(origin, line)
        return reply

    @contextmanager
    def foregone(self, body: VerifiedBody, outcome: Reply | BotoCoreError) -> Iterator[None]:
        """What boto3 gets in this thread when it first sends the body: it went already, and that came of it.

        So boto3 judges the reply, tells who watches, waits, and tries again, as if it had sent the request.
        """
        self._foregone.attempt = (body, outcome)
        try:
            yield
        finally:
            self._foregone.attempt = None

    def _take(self, origin: str) -> Line:
        idle = self._idle[origin]
        while True:
            try:
                line = idle.pop()
            except IndexError:
                return Line(self._connection(origin), self._options.s3_read_timeout_seconds)
            if line.is_quiet():
                return line
            line.close()

    def _give_back(self, origin: str, line: Line) -> None:
        idle = self._idle[origin]
        if line.reusable and len(idle) < self._most:
            idle.append(line)
        else:
            line.close()

    def _connection(self, origin: str) -> HTTPConnection:
        parts = urlsplit(origin)
        named: Any = {
            "host": parts.hostname or "",
            "port": parts.port,
            "timeout": self._options.s3_connect_timeout_seconds,
            "socket_options": [
                *HTTPConnection.default_socket_options,
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            ],
        }
        if parts.scheme == "http":
            return HTTPConnection(**named)
        return HTTPSConnection(**named, ssl_context=self._tls)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """As boto3 has it."""
        context: ssl.SSLContext = create_urllib3_context()
        context.load_verify_locations(cafile=trusted_certificates(self._options))
        return context

    def _send(self, request: Any, **details: object) -> AWSResponse | None:
        """A handler of boto3's: a response, or None to leave the request to boto3. Raises boto3's own errors."""
        body = request.body
        if not isinstance(body, VerifiedBody) or not self.reaches(request.url):
            return None
        outcome = self._outcome_before(body)
        if outcome is None:
            parts = urlsplit(request.url)
            headers = {"Host": host_of(parts), **dict(request.headers.items())}
            lines = "".join(f"{name}: {_text(value)}\r\n" for name, value in headers.items())
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            head = f"{request.method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
            outcome = self.exchange(f"{parts.scheme}://{parts.netloc}", request.method, head, body)
        if isinstance(outcome, BotoCoreError):
            raise outcome
        return _response(request.url, outcome)

    def _outcome_before(self, body: VerifiedBody) -> Reply | BotoCoreError | None:
        attempt = getattr(self._foregone, "attempt", None)
        if attempt is None or attempt[0] is not body:
            return None
        self._foregone.attempt = None
        outcome: Reply | BotoCoreError = attempt[1]
        return outcome


def _hang_up(idle: dict[str, deque[Line]]) -> None:
    for lines in idle.values():
        for line in lines:
            line.close()


def _response(url: str, reply: Reply) -> AWSResponse:
    """The reply as boto3 has replies."""
    raw = urllib3.HTTPResponse(
        io.BytesIO(reply.body),
        headers=reply.headers,
        status=reply.status,
        preload_content=False,
        decode_content=False,
    )
    headers: Any = raw.headers
    return AWSResponse(url, reply.status, headers, raw)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
