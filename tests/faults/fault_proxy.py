"""A proxy in front of a real S3 server that does to requests what networks and servers do to them.

It passes requests on unchanged, signatures and all, until it is told to disturb some of them.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from urllib.parse import unquote, urlsplit

#: Of one connection only, or ours to say anew.
_NOT_PASSED_ON = frozenset({"connection", "expect", "keep-alive", "transfer-encoding", "content-length"})
_UPSTREAM_SECONDS = 30.0
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>as told</Message></Error>"


class Disturbance(Enum):
    """What may happen to a request."""

    #: 503 SlowDown; the server never hears of it.
    UNAVAILABLE = "503"
    #: Half of the body arrives, then both connections are reset.
    CUT_BODY = "cut body"
    #: Neither a reply nor an end of the connection, until the disturbance is over.
    HANG = "hang"
    #: One byte of the body arrives as another.
    FLIP_BYTE = "flipped byte"
    #: Done as asked, then the connection is reset in place of the reply.
    LOSE_REPLY = "lost reply"
    #: Half of the reply's body, then the end of the connection.
    CUT_REPLY = "cut reply"
    #: Done as asked and acknowledged, but the object is gone right before the reply.
    VANISH = "vanished"
    #: A PUT is done as asked; after the reply to the first HEAD that follows, the object is gone.
    VANISH_LATER = "vanished later"


@dataclass(frozen=True)
class _Plan:
    """Which requests meet what."""

    disturbance: Disturbance
    methods: Collection[str]
    #: A part of the path that must be there.
    within: str
    share: float
    random: Random
    over: threading.Event = field(default_factory=threading.Event)
    #: Paths that vanished: each does so once, as the pipeline rightly gives up on one that never stays.
    vanished: set[str] = field(default_factory=set)
    #: Paths that vanish with the next HEAD.
    doomed: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class FaultProxy:
    """The proxy on loopback, running until `close`. At most one disturbance at a time."""

    def __init__(self, upstream: str, delete: Callable[[str], None], *, put_seconds: float = 0.0) -> None:
        """`upstream` is the server's `http://host:port`; `delete` removes an object by its path, `/bucket/key`.

        PUTs are passed on one every `put_seconds` at most, however fast the machine is.
        """
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        assert parts.port is not None
        self.upstream = (parts.hostname, parts.port)
        self.delete = delete
        #: Requests that were disturbed, by what happened to them.
        self.met: Counter[Disturbance] = Counter()
        self._plan: _Plan | None = None
        self._lock = threading.Lock()
        self._put_seconds, self._next_put = put_seconds, 0.0
        self._pause = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="fault proxy"
        )
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:port`"""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def disturbing(
        self,
        disturbance: Disturbance,
        random: Random,
        *,
        methods: Collection[str] = ("PUT",),
        within: str = "/batches/",
        share: float = 1.0,
    ) -> Iterator[None]:
        """Disturb a `share` of the requests by `methods` on paths with `within`, until the block ends."""
        plan = _Plan(disturbance, methods, within, share, random)
        self._plan = plan
        try:
            yield
        finally:
            self._plan = None
            plan.over.set()

    def close(self) -> None:
        """End the proxy; clients see their connections end."""
        if self._plan is not None:
            self._plan.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def pace(self, method: str) -> None:
        """Wait for a PUT's turn."""
        if method != "PUT" or not self._put_seconds:
            return
        with self._lock:
            turn = self._next_put = max(time.monotonic(), self._next_put + self._put_seconds)
        self._pause.wait(turn - time.monotonic())

    def plan_for(self, method: str, path: str) -> _Plan | None:
        """What a request meets; None for nothing."""
        plan = self._plan
        if plan is None or method not in plan.methods or plan.within not in path:
            return None
        with self._lock:
            if method == "HEAD" and plan.disturbance is Disturbance.VANISH_LATER:
                if path not in plan.doomed:
                    return None
                plan.doomed.remove(path)
            elif plan.random.random() >= plan.share:
                return None
            elif plan.disturbance in (Disturbance.VANISH, Disturbance.VANISH_LATER):
                if path in plan.vanished:
                    return None
                plan.vanished.add(path)
                if plan.disturbance is Disturbance.VANISH_LATER:
                    plan.doomed.add(path)
                    return None
            self.met[plan.disturbance] += 1
        return plan


class _Server(ThreadingHTTPServer):
    owner: FaultProxy
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that broke; that is what they are here for."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.owner.pace(self.command)
        plan = self.server.owner.plan_for(self.command, self.path)
        try:
            reply = self._disturbed(plan, body) if plan else self._pass_on(body)
        except (OSError, HTTPException):
            reply = None  # the server is not there
        if reply is None:
            self._reset()
        else:
            self._send(reply, cut=plan is not None and plan.disturbance is Disturbance.CUT_REPLY)

    def _disturbed(self, plan: _Plan, body: bytes) -> _Reply | None:
        """The reply after what the plan does; None for a reset."""
        kind = plan.disturbance
        if kind is Disturbance.UNAVAILABLE:
            return _Reply(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
        if kind is Disturbance.HANG:
            plan.over.wait()
            return None
        if kind is Disturbance.CUT_BODY:
            self._pass_on(body, only_bytes=len(body) // 2)
            return None
        if kind is Disturbance.FLIP_BYTE and body:
            place = plan.random.randrange(len(body))
            body = body[:place] + bytes([body[place] ^ 0x40]) + body[place + 1 :]
        reply = self._pass_on(body)
        if kind is Disturbance.LOSE_REPLY:
            return None
        vanishes = kind in (Disturbance.VANISH, Disturbance.VANISH_LATER)
        if vanishes and reply is not None and reply.status == 200:
            self.server.owner.delete(unquote(urlsplit(self.path).path))
        return reply

    def _pass_on(self, body: bytes, only_bytes: int | None = None) -> _Reply | None:
        """Ask the server; with `only_bytes` go away in the middle of the body."""
        connection = HTTPConnection(*self.server.owner.upstream, timeout=_UPSTREAM_SECONDS)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _NOT_PASSED_ON:
                    connection.putheader(name, value)
            if body or self.command in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body[:only_bytes])
            if only_bytes is not None:
                _reset(connection.sock)
                return None
            answer = connection.getresponse()
            headers = [
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in _NOT_PASSED_ON or (self.command == "HEAD" and name == "Content-Length")
            ]
            return _Reply(answer.status, headers, answer.read())
        finally:
            connection.close()

    def _send(self, reply: _Reply, *, cut: bool) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if cut:
            # An end instead of a reset, which would take along what was sent and not read yet.
            self.wfile.write(reply.body[: len(reply.body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(reply.body)

    def _reset(self) -> None:
        _reset(self.connection)
        self.close_connection = True


def _reset(connection: socket.socket) -> None:
    """Have the connection closed so that the other side sees a reset, not an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
