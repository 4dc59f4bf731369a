"""How a file's bytes reach an S3 endpoint without TLS: from the page cache into the socket, not through Python.

boto3 reads a body in pieces and sends each; at a few GB/s that is most of what an upload costs.
So requests that carry a file go over connections of our own, signed and judged by boto3 as all
others. With TLS, or a proxy, boto3's own way is taken.
"""

from __future__ import annotations

import socket
from typing import Any

import urllib3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
)
from botocore.utils import get_environ_proxies
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import (
    ConnectTimeoutError as ConnectTimedOut,
)
from urllib3.exceptions import (
    HTTPError,
    NewConnectionError,
    ProtocolError,
)
from urllib3.exceptions import (
    ReadTimeoutError as ReadTimedOut,
)

from hiddenfeed.options import StoreOptions
from hiddenfeed.store.verified_file import VerifiedBody

#: Operations whose bodies may be files.
_OPERATIONS = ("PutObject", "UploadPart")


class _Connection(HTTPConnection):
    """Sends a verified body in its own way."""

    def send(self, data: Any) -> None:
        if isinstance(data, VerifiedBody):
            assert isinstance(self.sock, socket.socket)
            data.send_to(self.sock)
        else:
            super().send(data)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class Wire:
    """Connections to one endpoint for requests that carry files."""

    def __init__(self, options: StoreOptions, connections: int) -> None:
        self._patience_seconds = options.s3_read_timeout_seconds
        #: By host, whether no proxy is in between; to find out takes a look at the whole environment.
        self._direct: dict[str, bool] = {}
        keep_alive = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._manager = urllib3.PoolManager(
            timeout=urllib3.Timeout(
                connect=options.s3_connect_timeout_seconds, read=options.s3_read_timeout_seconds
            ),
            maxsize=connections,
            socket_options=[*HTTPConnection.default_socket_options, keep_alive],
        )
        self._manager.pool_classes_by_scheme = {"http": _Pool}

    def install(self, client: Any) -> None:
        """Take over the requests of a client that carry files."""
        for operation in _OPERATIONS:
            client.meta.events.register(f"before-send.s3.{operation}", self._send)

    def reaches(self, url: str) -> bool:
        """Whether requests for it may go over these connections: no TLS, no proxy."""
        if not url.startswith("http://"):
            return False
        host = url.removeprefix("http://").partition("/")[0]
        if host not in self._direct:
            self._direct[host] = not get_environ_proxies(url)
        return self._direct[host]

    def ask(self, method: str, url: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
        """One small request without a body, as it is; raises urllib3's HTTPError or OSError if it gets no answer."""
        return self._manager.request(method, url, headers=headers, retries=False, redirect=False)

    def _send(self, request: Any, **details: object) -> AWSResponse | None:
        """A handler of boto3's: a response, or None to leave the request to boto3. Raises boto3's own errors."""
        if not isinstance(request.body, VerifiedBody) or not self.reaches(request.url):
            return None
        # Many connections that share a busy link may each be still for longer than connecting takes.
        request.body.patience_seconds = self._patience_seconds
        # One piece, of a kind that our connection knows.
        pieces: Any = [request.body]
        try:
            pool = self._manager.connection_from_url(request.url)
            reply = pool.urlopen(
                request.method,
                request.url.removeprefix("http://").partition("/")[2].join(["/", ""]),
                body=pieces,
                headers=request.headers,
                retries=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )
            headers: Any = reply.headers
            response = AWSResponse(request.url, reply.status, headers, reply)
            _ = response.content  # read to its end, which gives the connection back
        except NewConnectionError as error:
            raise EndpointConnectionError(endpoint_url=request.url, error=error) from error
        except ConnectTimedOut as error:
            raise ConnectTimeoutError(endpoint_url=request.url, error=error) from error
        except ReadTimedOut as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
        except ProtocolError as error:
            raise ConnectionClosedError(endpoint_url=request.url, request=request, error=error) from error
        except (HTTPError, OSError) as error:
            raise HTTPClientError(error=error) from error
        return response
