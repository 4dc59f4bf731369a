"""A small S3 server that fails on cue: what a real one cannot be made to do.

It stores whole objects and multipart uploads in memory, checks CRC64NVME and If-None-Match unless
it is told to be a server that does not, and for each operation follows a script of faults, one per
request, and behaves once that is used up.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hiddenfeed.checksum import CRC64NVME, checksum_of
from tests.certificates import Certificate
from tests.faults.scripted_faults import (
    Corrupt,
    CutBody,
    CutReply,
    Fail,
    Fault,
    Foreign,
    Forget,
    Hang,
    Hold,
    Ignore,
    Lack,
    LoseReply,
    RefuseEarly,
    StopReading,
    TakeAlong,
    Together,
    Trickle,
    Well,
)

_CHECKSUM = "x-amz-checksum-crc64nvme"


@dataclass(frozen=True)
class Stored:
    """One object."""

    data: bytes
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def checksum(self) -> str:
        """Base64 of the CRC64NVME, as headers carry it."""
        return checksum_of(self.data, CRC64NVME).partition(":")[2]


@dataclass
class Upload:
    """A multipart upload that is not complete."""

    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class ScriptedS3:
    """The server; a context manager. `objects` and `uploads` may be looked at and changed by the test."""

    def __init__(self, certificate: Certificate | None = None) -> None:
        """With a certificate it speaks TLS."""
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        #: Names of the operations asked for, in order.
        self.log: list[str] = []
        #: Numbers of the parts that were sent, in order.
        self.parts_sent: list[int] = []
        #: Headers of the requests, in the same order as their operations.
        self.headers: list[dict[str, str]] = []
        self.lacks: set[Lack] = set()
        #: Whether ETags of bodies are the MD5 of what arrived.
        self.md5_etags = False
        #: Most requests that carried data at a time.
        self.most_at_a_time = 0
        self.at_a_time = 0
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self._scripts: dict[str, list[Fault]] = defaultdict(list)
        self._always: dict[str, Fault] = {}
        #: Connections that were opened.
        self.connections = 0
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.path, certificate.key)
            # The handshake is the handler's, so that a client that never makes one holds up nobody.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:port`, or https"""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def script(self, operation: str, *faults: Fault) -> None:
        """What the next requests for `operation` meet, in order."""
        self._scripts[operation] += faults

    def always(self, operation: str, fault: Fault) -> None:
        """What every request for `operation` meets from now on; `Well()` ends it."""
        self._always[operation] = fault

    def next_fault(self, operation: str, headers: dict[str, str]) -> Fault:
        """Note a request and tell what it meets."""
        with self.lock:
            self.log.append(operation)
            self.headers.append(headers)
            scripted = self._scripts[operation]
            return scripted.pop(0) if scripted else self._always.get(operation, Well())

    def __enter__(self) -> ScriptedS3:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    owner: ScriptedS3
    #: Of those that connect at once none has to knock again, which takes seconds.
    request_queue_size = 1024
    daemon_threads = True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Count it."""
        self.owner.connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away; that is what they are here for."""
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Dropped(Exception):  # noqa: N818 - not an error: the script wants the connection gone
    pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    #: Else every reply with a body waits for the client to acknowledge its headers, 40 ms.
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        self._serve("UploadPart" if "partNumber" in self._query() else "PutObject")

    def do_POST(self) -> None:
        self._serve("CompleteMultipartUpload" if "uploadId" in self._query() else "CreateMultipartUpload")

    def do_DELETE(self) -> None:
        self._serve("AbortMultipartUpload" if "uploadId" in self._query() else "DeleteObject")

    def do_HEAD(self) -> None:
        self._serve("HeadObject")

    def do_GET(self) -> None:
        query = self._query()
        if "uploadId" in query:
            self._serve("ListParts")
        elif "uploads" in query:
            self._serve("ListMultipartUploads")
        else:
            self._serve("ListObjects" if "list-type" in query else "GetObject")

    def _query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def _key(self) -> str:
        path = urlsplit(self.path).path
        return path.removeprefix("/" if self._by_host() else "/bucket/")

    def _by_host(self) -> bool:
        return self.headers.get("Host", "").startswith("bucket.")

    def _serve(self, operation: str) -> None:
        owner = self.server.owner
        fault = owner.next_fault(operation, {name.lower(): value for name, value in self.headers.items()})
        carries = operation in ("PutObject", "UploadPart")
        with owner.lock:
            owner.at_a_time += carries
            owner.most_at_a_time = max(owner.most_at_a_time, owner.at_a_time)
        try:
            self._meet(operation, fault)
        except _Dropped:
            self._reset()
        finally:
            with owner.lock:
                owner.at_a_time -= carries

    def _meet(self, operation: str, fault: Fault) -> None:
        owner = self.server.owner
        if isinstance(fault, RefuseEarly):
            self._error(fault.status, fault.code)
            self.close_connection = True
            return
        if isinstance(fault, Trickle):
            while not owner.closing.wait(fault.pause_seconds):
                self.rfile.read1(1 << 20)
            raise _Dropped
        if isinstance(fault, StopReading):
            owner.closing.wait()
            raise _Dropped
        body = self._read_body(fault)
        if isinstance(fault, Hang):
            owner.closing.wait()
            raise _Dropped
        if isinstance(fault, Fail):
            self._error(fault.status, fault.code)
            return
        if isinstance(fault, Foreign):
            self._foreign(fault)
            return
        if (Lack.HOSTS if self._by_host() else Lack.PATHS) in owner.lacks:
            self._error(404, "NoSuchBucket")
            return
        if isinstance(fault, Hold):
            fault.until.wait()
        if isinstance(fault, Together):
            fault.barrier.wait(20)
        getattr(self, f"_{operation}")(body, fault)

    def _read_body(self, fault: Fault) -> bytes:
        length = int(self.headers.get("Content-Length", 0))
        if isinstance(fault, CutBody):
            self.rfile.read(min(length, fault.after_bytes))
            raise _Dropped
        body = self.rfile.read(length)
        if len(body) < length:
            raise _Dropped
        return body

    def _reset(self) -> None:
        """Close so that the client sees a reset, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _reply(
        self,
        status: int,
        body: bytes = b"",
        fault: Fault | None = None,
        headers: Mapping[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        if isinstance(fault, LoseReply):
            raise _Dropped
        self.send_response(status)
        for name, value in {"ETag": '"etag"', **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if isinstance(fault, CutReply):
            # An end instead of a reset, which would take along what was sent and not read yet.
            self.wfile.write(body[: fault.after_bytes])
            self.close_connection = True
            return
        if self.command != "HEAD":
            self.wfile.write(body)

    def _foreign(self, fault: Foreign) -> None:
        self.send_response(fault.status)
        for name, value in {"Content-Length": str(len(fault.body)), **fault.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(fault.body)

    def _error(self, status: int, code: str) -> None:
        self._reply(status, f"<Error><Code>{code}</Code><Message>as scripted</Message></Error>".encode())

    def _metadata(self) -> dict[str, str]:
        return {
            name.lower(): value
            for name, value in self.headers.items()
            if name.lower().startswith("x-amz-meta-")
        }

    def _blocked(self) -> bool:
        """Reply 412 if the request must not replace what is there."""
        if Lack.CONDITIONS in self.server.owner.lacks:
            return False
        if self.headers.get("If-None-Match") == "*" and self._key() in self.server.owner.objects:
            self._error(412, "PreconditionFailed")
            return True
        return False

    def _damaged(self, body: bytes) -> bool:
        """True if what arrived is not what the request's checksum says."""
        announced = self.headers.get(_CHECKSUM)
        if Lack.CHECKSUMS in self.server.owner.lacks or announced is None:
            return False
        return announced != Stored(body).checksum

    def _etag(self, arrived: bytes) -> dict[str, str]:
        if not self.server.owner.md5_etags:
            return {}
        return {"ETag": f'"{hashlib.md5(arrived, usedforsecurity=False).hexdigest()}"'}

    def _store(self, data: bytes, metadata: dict[str, str], fault: Fault) -> None:
        if isinstance(fault, Corrupt):
            data = _corrupted(data)
        if not isinstance(fault, Forget):
            self.server.owner.objects[self._key()] = Stored(data, metadata)

    # --- operations ---

    def _PutObject(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        with self.server.owner.lock:
            if self._blocked():
                return
            if self._damaged(body):
                self._error(400, "BadDigest")
                return
            self._store(body, self._metadata(), fault)
            arrived = self.server.owner.objects.get(self._key(), Stored(body)).data
        self._reply(200, fault=fault, headers=self._etag(arrived))

    def _CreateMultipartUpload(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        with self.server.owner.lock:
            upload_id = f"upload-{len(self.server.owner.log)}"
            self.server.owner.uploads[upload_id] = Upload(self._key(), self._metadata())
        answer = (
            f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
        )
        self._reply(200, answer.encode(), fault)

    def _UploadPart(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        upload = self.server.owner.uploads.get(self._query()["uploadId"][0])
        if upload is None:
            self._error(404, "NoSuchUpload")
            return
        if _CHECKSUM not in self.headers and Lack.BARE_PARTS in self.server.owner.lacks:
            self._error(400, "InvalidRequest")
            return
        if self._damaged(body):
            self._error(400, "BadDigest")
            return
        number = int(self._query()["partNumber"][0])
        upload.parts[number] = _corrupted(body) if isinstance(fault, Corrupt) else body
        self.server.owner.parts_sent.append(number)
        self._reply(200, fault=fault, headers=self._etag(upload.parts[number]))

    def _CompleteMultipartUpload(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        with self.server.owner.lock:
            upload_id = self._query()["uploadId"][0]
            upload = self.server.owner.uploads.get(upload_id)
            if upload is None:
                self._error(404, "NoSuchUpload")
                return
            if self._blocked():
                return
            data = b"".join(upload.parts[number] for number in sorted(upload.parts))
            if self._damaged(data):
                self._error(400, "BadDigest")
                return
            if not isinstance(fault, Ignore):
                self._store(data, upload.metadata, fault)
                del self.server.owner.uploads[upload_id]
        answer = (
            b"<CompleteMultipartUploadResult><ETag>&quot;etag-1&quot;</ETag></CompleteMultipartUploadResult>"
        )
        self._reply(200, answer, fault)

    def _AbortMultipartUpload(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        with self.server.owner.lock:
            self.server.owner.uploads.pop(self._query()["uploadId"][0], None)
            if isinstance(fault, TakeAlong):
                self.server.owner.objects.pop(self._key(), None)
        self._reply(204, fault=fault)

    def _DeleteObject(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        with self.server.owner.lock:
            self.server.owner.objects.pop(self._key(), None)
        self._reply(204, fault=fault)

    def _HeadObject(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        found = self.server.owner.objects.get(self._key())
        if found is None:
            self._reply(404)
            return
        told = {} if Lack.CHECKSUMS in self.server.owner.lacks else {_CHECKSUM: found.checksum}
        headers = {**told, **found.metadata}
        self._reply(200, fault=fault, headers=headers, length=len(found.data))

    def _GetObject(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        found = self.server.owner.objects.get(self._key())
        if found is None:
            self._error(404, "NoSuchKey")
            return
        start, _, end = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        data = found.data[int(start) : int(end) + 1 if end else None]
        self._reply(206, data, fault)

    def _ListObjects(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        prefix = self._query().get("prefix", [""])[0]
        entries = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(stored.data)}</Size></Contents>"
            for key, stored in sorted(self.server.owner.objects.items())
            if key.startswith(prefix)
        )
        self._reply(200, f"<ListBucketResult><Name>bucket</Name>{entries}</ListBucketResult>".encode(), fault)

    def _ListParts(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        owner = self.server.owner
        upload = owner.uploads.get(self._query()["uploadId"][0])
        if upload is None:
            self._error(404, "NoSuchUpload")
            return

        def told(data: bytes) -> str:
            checksum = Stored(data).checksum
            return (
                ""
                if Lack.PART_CHECKSUMS in owner.lacks
                else f"<ChecksumCRC64NVME>{checksum}</ChecksumCRC64NVME>"
            )

        entries = "".join(
            f"<Part><PartNumber>{number}</PartNumber><Size>{len(data)}</Size><ETag>e</ETag>{told(data)}</Part>"
            for number, data in sorted(upload.parts.items())
        )
        self._reply(200, f"<ListPartsResult>{entries}</ListPartsResult>".encode(), fault)

    def _ListMultipartUploads(self, body: bytes, fault: Fault) -> None:  # noqa: N802
        prefix = self._query().get("prefix", [""])[0]
        entries = "".join(
            f"<Upload><Key>{upload.key}</Key><UploadId>{upload_id}</UploadId>"
            f"<Initiated>{upload.began_at:%Y-%m-%dT%H:%M:%S.000Z}</Initiated></Upload>"
            for upload_id, upload in self.server.owner.uploads.items()
            if upload.key.startswith(prefix)
        )
        answer = f"<ListMultipartUploadsResult>{entries}</ListMultipartUploadsResult>"
        self._reply(200, answer.encode(), fault)


def _corrupted(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])
