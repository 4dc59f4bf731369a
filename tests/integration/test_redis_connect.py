"""Connecting to Redis: what cannot be is one sentence, without the password."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from common.queues import queue_counts
from common.redis_client import connect, make_client
from common.settings.catalogue import RedisSettings
from hiddenfeed.errors import ConfigError, TransientError
from standalone.ports import free_ports
from standalone.redis_server import RedisServer
from tests.certificates import make_certificate, needs_openssl


def test_no_server_is_a_transient_error_that_says_what_to_do() -> None:
    [port] = free_ports(1)
    settings = RedisSettings(redis_url=f"redis://:secret@127.0.0.1:{port}/0")
    with pytest.raises(TransientError) as caught:
        connect(settings)
    assert str(caught.value) == (
        f"Redis at 127.0.0.1:{port} is not there: connection refused; start it or give --redis-url"
    )
    with pytest.raises(TransientError, match="is not there: connection refused"):
        queue_counts(make_client(settings), "extract-x")


@pytest.mark.parametrize("login", ["", ":wrong@"], ids=["no password", "wrong password"])
def test_a_refused_password_is_for_a_person(redis_server: RedisServer, login: str) -> None:
    settings = RedisSettings(redis_url=f"redis://{login}{redis_server.address}/0")
    with pytest.raises(ConfigError, match=r"refuses us: .*; give the password in --redis-url") as caught:
        connect(settings, wait_seconds=60)
    assert "wrong@" not in str(caught.value)


def test_a_server_that_comes_up_is_waited_for(private_redis: Callable[[], RedisServer]) -> None:
    server = private_redis()
    server.stop()
    clients: list[redis.Redis] = []
    waiting = threading.Thread(
        target=lambda: clients.append(connect(RedisSettings(redis_url=server.url), wait_seconds=60))
    )
    waiting.start()
    private_redis()
    waiting.join(60)
    [client] = clients
    assert client.ping()
    client.close()


# --- TLS ---


class TlsFront(socketserver.ThreadingTCPServer):
    """Speaks TLS and passes everything on to a server that does not."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, behind: tuple[str, int], certificate: Path, key: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.behind = behind
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, key)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that does not trust us goes away; that is what it is to do."""


class _Passing(socketserver.BaseRequestHandler):
    server: TlsFront

    def handle(self) -> None:
        with (
            self.server.context.wrap_socket(self.request, server_side=True) as front,
            socket.create_connection(self.server.behind) as back,
        ):
            answers = threading.Thread(target=_pump, args=(back, front), daemon=True)
            answers.start()
            _pump(front, back)
            back.shutdown(socket.SHUT_RDWR)
            answers.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(65536):
        sink.sendall(data)


@needs_openssl
def test_a_redis_behind_tls_is_trusted_by_its_ca_alone(redis_server: RedisServer, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    plain = urlsplit(redis_server.url)
    with TlsFront((str(plain.hostname), int(plain.port or 0)), certificate.path, certificate.key) as front:
        serving = threading.Thread(target=front.serve_forever, args=(0.05,))
        serving.start()
        try:
            url = f"rediss://:{plain.password}@127.0.0.1:{front.server_address[1]}/0"
            with connect(RedisSettings(redis_url=url, redis_ca_bundle=str(certificate.path))) as client:
                assert client.ping()
            with pytest.raises(TransientError, match="CERTIFICATE_VERIFY_FAILED"):
                connect(RedisSettings(redis_url=url))
            with pytest.raises(TransientError, match="is not there"):
                connect(RedisSettings(redis_url=url.replace("rediss:", "redis:")))
        finally:
            front.shutdown()
            serving.join()
