"""A server that speaks enough S3 to be uploaded to and throws every body away: a process of its own.

It remembers size, checksums and metadata of each object, so that a HEAD can prove what was put,
and verifies small bodies only, so that a client may take it for a store that verifies.
`python -m benchmarks.upload_sink [--delay-ms N] [--mb-per-second N] [--tls CERTIFICATE KEY]` prints its
port; it ends when its standard input does. The delay is added before each reply, the rate holds for
each connection: a far-away store whose connections are slow one by one. `GET /-/puts` answers with a
JSON list of when bodies were replied to, in seconds of this machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import ssl
import sys
import threading
import time
from typing import BinaryIO
from urllib.parse import parse_qs, urlsplit

from hiddenfeed.checksum import CRC64NVME, checksum_of

_MB = 1_000_000
_BLOCK_BYTES = 1024 * 1024
#: Throttled connections get this much at a time; small enough that kernel buffers hide little.
_THROTTLED_RECEIVE_BUFFER = 256 * 1024
_VERIFIED_BYTES = 64 * 1024
#: What only the benchmark asks for.
PUTS_PATH = "/-/puts"
_CHECKSUM = "x-amz-checksum-crc64nvme"
#: What a client sent to be kept with its object.
_KEPT = ("x-amz-checksum-", "x-amz-meta-")
_DROPPED_KEPT = ("x-amz-checksum-algorithm", "x-amz-checksum-mode", "x-amz-checksum-type")

Headers = dict[str, str]


class Sink:
    """What all connections share."""

    def __init__(
        self, delay_seconds: float, bytes_per_second: float | None, tls: ssl.SSLContext | None
    ) -> None:
        self.delay_seconds, self.bytes_per_second, self.tls = delay_seconds, bytes_per_second, tls
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[int, Headers]] = {}
        self._uploads: dict[str, tuple[Headers, dict[str, int]]] = {}
        self._numbers = itertools.count()
        #: When each body that is larger than a test of whether we verify was replied to.
        self.replied_at: list[float] = []

    def reply(
        self, method: str, path: str, query: dict[str, list[str]], headers: Headers, size: int
    ) -> tuple[int, Headers, bytes]:
        """(status, headers, body) for a request whose body of `size` bytes is gone."""
        upload_id = query.get("uploadId", [""])[0]
        with self._lock:
            if method == "PUT":
                return self._put(path, query, headers, size, upload_id)
            if method == "POST":
                return self._post(path, headers, upload_id)
            if method == "DELETE":
                self._objects.pop(path, None)
                self._uploads.pop(upload_id, None)
                return 204, {}, b""
            if path in self._objects:
                length, kept = self._objects[path]
                return 200, {**kept, "Content-Length": str(length)}, b""
        if path == PUTS_PATH:
            return 200, {}, json.dumps(self.replied_at).encode()
        if method == "HEAD":
            return 404, {}, b""
        return 200, {}, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"

    def _put(
        self, path: str, query: dict[str, list[str]], headers: Headers, size: int, upload_id: str
    ) -> tuple[int, Headers, bytes]:
        if upload_id in self._uploads:
            self._uploads[upload_id][1][query["partNumber"][0]] = size
        else:
            self._objects[path] = (size, _kept(headers))
        return 200, {}, b""

    def _post(self, path: str, headers: Headers, upload_id: str) -> tuple[int, Headers, bytes]:
        if not upload_id:
            upload_id = f"upload-{next(self._numbers)}"
            self._uploads[upload_id] = (_kept(headers), {})
            body = f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
            return 200, {}, body.encode()
        kept, parts = self._uploads.pop(upload_id, ({}, {}))
        self._objects[path] = (sum(parts.values()), {**kept, **_kept(headers)})
        return 200, {}, b"<CompleteMultipartUploadResult><ETag>x-1</ETag></CompleteMultipartUploadResult>"


def _kept(headers: Headers) -> Headers:
    return {
        name: value for name, value in headers.items() if name.startswith(_KEPT) and name not in _DROPPED_KEPT
    }


def _serve(sink: Sink, connection: socket.socket) -> None:
    """All requests of one connection."""
    block = bytearray(_BLOCK_BYTES)
    try:
        if sink.tls is not None:
            connection = sink.tls.wrap_socket(connection, server_side=True)
        with connection, connection.makefile("rb") as reader:
            while line := reader.readline():
                method, target, _ = line.decode("latin-1").split(" ", 2)
                headers = _read_headers(reader)
                if "expect" in headers:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                size = int(headers.get("content-length", 0))
                announced = headers.get(_CHECKSUM) if method == "PUT" else None
                right = _discard(sink, connection, reader, block, size, announced)
                if sink.delay_seconds and target != PUTS_PATH:
                    time.sleep(sink.delay_seconds)  # the latency that is asked for
                if right:
                    parts = urlsplit(target)
                    query = parse_qs(parts.query, keep_blank_values=True)
                    status, extra, body = sink.reply(method, parts.path, query, headers, size)
                else:
                    status, extra, body = 400, {}, b"<Error><Code>BadDigest</Code></Error>"
                answer = {"ETag": '"x"', "Content-Length": str(len(body)), **extra}
                lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in answer.items())]
                if size > _VERIFIED_BYTES:
                    sink.replied_at.append(time.monotonic())
                connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    except (ConnectionError, ssl.SSLEOFError):
        return  # the client is done


def _read_headers(reader: BinaryIO) -> Headers:
    headers: Headers = {}
    while (line := reader.readline().decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return headers


def _discard(
    sink: Sink,
    connection: socket.socket,
    reader: BinaryIO,
    block: bytearray,
    size: int,
    checksum: str | None,
) -> bool:
    """Take `size` bytes off the connection; without TLS the kernel drops them uncopied. False if they are wrong."""
    if size <= _VERIFIED_BYTES:
        body = reader.read(size)
        return checksum is None or checksum_of(body, CRC64NVME).partition(":")[2] == checksum
    left = size - len(reader.read1(min(size, _BLOCK_BYTES)))  # type: ignore[attr-defined]
    began, rate = time.monotonic(), sink.bytes_per_second
    flags = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_TRUNC
    while left:
        count = connection.recv_into(block, min(left, _BLOCK_BYTES), flags)
        if not count:
            raise ConnectionError("the client ended in mid-body")
        left -= count
        if rate is not None:
            ahead = (size - left) / rate - (time.monotonic() - began)
            if ahead > 0.01:
                time.sleep(ahead)  # the rate that is asked for
    return True


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--mb-per-second", type=float, default=None)
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    chosen = parser.parse_args()
    rate = None if chosen.mb_per_second is None else chosen.mb_per_second * _MB
    tls = None
    if chosen.tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*chosen.tls)
    sink = Sink(chosen.delay_ms / 1000, rate, tls)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    if rate is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _THROTTLED_RECEIVE_BUFFER)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_serve, args=(sink, connection), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
