"""One connection to an S3 endpoint: a request goes out, its reply comes back, with as little in between as there can be.

A plain reply is taken apart here; every other one (in chunks, without a length, after an interim
one) by the standard library, which takes longer. Files go from the page cache into the socket
where there is no TLS.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import struct
from typing import TYPE_CHECKING

import msgspec
from urllib3.connection import HTTPConnection

from hiddenfeed.store.verified_file import VerifiedBody

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_RECEIVE_BYTES = 64 * 1024
#: The request's head waits for the first bytes of its body, so that they share a packet.
_MORE = getattr(socket, "MSG_MORE", 0)
_END = b"\r\n\r\n"
#: Replies that have no body, whatever their headers say.
_BARE_STATUSES = frozenset({204, 304})


class Reply(msgspec.Struct, frozen=True):
    """What a server said."""

    status: int
    #: By name in lower case.
    headers: dict[str, str]
    body: bytes


class SendingError(OSError):
    """The connection failed, or took nothing for too long, before all of the request was out; `__cause__` says how."""


class Line:
    """An open connection; one thread at a time may use it."""

    def __init__(self, connection: HTTPConnection, patience_seconds: float) -> None:
        """Connects: raises what urllib3 and ssl raise. A silence of `patience_seconds` is the end of it."""
        connection.connect()
        assert connection.sock is not None
        self._socket: socket.socket = connection.sock
        self._plain = not isinstance(self._socket, ssl.SSLSocket)
        if self._plain:
            # Kept by the kernel, which saves a call before each that sends or receives.
            limit = struct.pack("ll", int(patience_seconds), int(patience_seconds % 1 * 1e6))
            self._socket.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, limit)
        else:
            self._socket.settimeout(patience_seconds)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        #: Whether another request may follow.
        self.reusable = True

    def is_quiet(self) -> bool:
        """Whether nothing came since the last reply; whatever does is the server's farewell."""
        return not self._readable.poll(0)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def exchange(self, method: str, head: bytes, body: VerifiedBody | None) -> Reply:
        """The reply to a request. After any exception the connection is of no use.

        Raises SendingError, TimeoutError if no reply comes in time, OSError or http.client's
        HTTPException for a connection that breaks or makes no sense, and what the body raises.
        """
        try:
            self._send(head, body)
        except BrokenPipeError:
            self.reusable = False  # perhaps it has said why before it hung up
        except BlockingIOError:
            raise SendingError from TimeoutError("it took nothing in time")
        except OSError as error:
            raise SendingError from error
        try:
            return self._reply(method)
        except BlockingIOError as error:
            raise TimeoutError("no reply in time") from error

    def _send(self, head: bytes, body: VerifiedBody | None) -> None:
        if body is None:
            self._socket.sendall(head)
            return
        if self._plain:
            self._socket.sendall(head, _MORE)
        else:
            self._socket.sendall(head)
        body.send_to(self._socket)

    def _reply(self, method: str) -> Reply:
        data = self._receive()
        while (end := data.find(_END)) < 0:
            if len(data) > _RECEIVE_BYTES:
                raise http.client.LineTooLong("header")
            data += self._receive()
        reply = self._taken_apart(method, data, end)
        return self._by_library(method, data) if reply is None else reply

    def _receive(self) -> bytes:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise http.client.RemoteDisconnected("remote end closed connection without response")
        return data

    def _taken_apart(self, method: str, data: bytes, end: int) -> Reply | None:
        """A plain reply whose head ends at `end`; None: there is more to it."""
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        if not first.startswith("HTTP/1.1 ") or not first[9:12].isdigit():
            return None
        status, headers = int(first[9:12]), {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        bare = method == "HEAD" or status in _BARE_STATUSES
        length = "0" if bare else headers.get("content-length", "")
        plain = len(headers) == len(lines) and status >= 200 and length.isdigit()
        stays = headers.get("connection", "keep-alive").lower() == "keep-alive"
        if not plain or not stays or "transfer-encoding" in headers:
            return None
        body = data[end + len(_END) :]
        while len(body) < int(length):
            body += self._receive()
        if len(body) > int(length):
            self.reusable = False  # nobody asked for the rest
        return Reply(status, headers, body[: int(length)])

    def _by_library(self, method: str, data: bytes) -> Reply:
        stream = _Resumed(data, self._socket)
        reply = http.client.HTTPResponse(stream, method=method)  # type: ignore[arg-type]
        with reply:
            reply.begin()
            self.reusable = self.reusable and not reply.will_close
            headers: dict[str, str] = {}
            for name, value in reply.getheaders():
                lower = name.lower()
                headers[lower] = f"{headers[lower]}, {value}" if lower in headers else value
            headers.pop("transfer-encoding", None)  # what follows is in one piece
            return Reply(reply.status, headers, reply.read())


class _Resumed(io.RawIOBase):
    """A connection's bytes from some that were read already on, as `http.client` wants a socket."""

    def __init__(self, data: bytes, connection: socket.socket) -> None:
        self._data, self._connection = memoryview(data), connection

    def makefile(self, mode: str) -> io.BufferedReader:
        """The stream that a reply is read from."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer as far as there is something."""
        if self._data:
            view = memoryview(buffer)
            count = min(len(view), len(self._data))
            view[:count], self._data = self._data[:count], self._data[count:]
            return count
        return self._connection.recv_into(buffer)
