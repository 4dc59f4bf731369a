"""Replies as servers write them, read off a connection of our own."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest
from urllib3.connection import HTTPConnection

from hiddenfeed.store.s3_line import Line, SendingError

PLAIN = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: 2\r\n\r\nab'
#: Larger than sockets' buffers.
LARGE = b"GET / HTTP/1.1\r\n" + b"x" * (16 << 20)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def line(listener: socket.socket) -> Iterator[Line]:
    connected = Line(HTTPConnection("127.0.0.1", listener.getsockname()[1]), 0.2)
    yield connected
    connected.close()


@pytest.fixture
def server(listener: socket.socket, line: Line) -> Iterator[socket.socket]:
    with listener.accept()[0] as connection:
        yield connection


@pytest.mark.parametrize(
    ("said", "status", "body", "stays"),
    [
        (PLAIN, 200, b"ab", True),
        (PLAIN.replace(b'ETag: "a"', b'etag:"a"\r\nConnection: Keep-Alive'), 200, b"ab", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, 200, b"ab", True),
        (
            b'HTTP/1.1 503 Slow Down\r\netag: "a"\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n',
            503,
            b"abc",
            True,
        ),
        (PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), 200, b"ab", False),
        (PLAIN.replace(b"1.1", b"1.0"), 200, b"ab", False),
        (b'HTTP/1.1 204 No Content\r\netag: "a"\r\n\r\n', 204, b"", True),
        (PLAIN + b"and more", 200, b"ab", False),
    ],
    ids=["plain", "kept", "interim", "chunks", "closing", "old", "bare", "too much"],
)
def test_replies(
    server: socket.socket, line: Line, said: bytes, status: int, body: bytes, stays: bool
) -> None:
    server.sendall(said)
    reply = line.exchange("PUT", b"PUT / HTTP/1.1\r\n\r\n", None)
    assert (reply.status, reply.body, reply.headers["etag"]) == (status, body, '"a"')
    assert "transfer-encoding" not in reply.headers
    assert line.reusable == stays


def test_a_reply_without_a_length_ends_with_its_connection(server: socket.socket, line: Line) -> None:
    server.sendall(b"HTTP/1.1 200 OK\r\n\r\nabc")
    server.shutdown(socket.SHUT_WR)
    assert line.exchange("PUT", b"PUT / HTTP/1.1\r\n\r\n", None).body == b"abc"
    assert not line.reusable


def test_a_reply_to_a_look_has_no_body_whatever_its_length(server: socket.socket, line: Line) -> None:
    server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    assert line.exchange("HEAD", b"HEAD / HTTP/1.1\r\n\r\n", None).headers["content-length"] == "1000"
    assert line.is_quiet()
    server.close()
    assert not line.is_quiet(), "a connection that the server has closed would be used again"


def test_headers_that_come_twice_are_one(server: socket.socket, line: Line) -> None:
    server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nVary: a\r\nVary: b\r\n\r\n")
    assert line.exchange("PUT", b"PUT / HTTP/1.1\r\n\r\n", None).headers["vary"] == "a, b"


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", b"HTTP/1.1 200 OK\r\n", b"hello\r\n\r\n"],
    ids=["nothing", "a part", "half a head", "no reply"],
)
def test_a_connection_that_ends_early_is_an_error(server: socket.socket, line: Line, said: bytes) -> None:
    server.sendall(said)
    server.shutdown(socket.SHUT_WR)
    with pytest.raises((OSError, http.client.HTTPException)):
        line.exchange("PUT", b"PUT / HTTP/1.1\r\n\r\n", None)


def test_silence_is_an_end_and_so_is_a_server_that_takes_nothing(server: socket.socket, line: Line) -> None:
    with pytest.raises(TimeoutError):
        line.exchange("PUT", b"PUT / HTTP/1.1\r\n\r\n", None)
    with pytest.raises(SendingError) as caught:
        line.exchange("PUT", LARGE, None)
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_what_a_server_says_before_it_hangs_up_is_heard(server: socket.socket, line: Line) -> None:
    """It refuses without reading, so that sending fails before the reply is looked at."""
    server.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    server.shutdown(socket.SHUT_RDWR)
    line._socket.shutdown(socket.SHUT_WR)
    assert line.exchange("PUT", b"PUT / HTTP/1.1\r\n\r\n", None).status == 403
    assert not line.reusable
