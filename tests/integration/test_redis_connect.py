"""Connecting to Redis: what cannot be is one sentence, without the password."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis

from common.queues import queue_counts
from common.redis_client import connect, make_client
from common.settings.catalogue import RedisSettings
from hiddenfeed.errors import ConfigError, TransientError
from standalone.ports import free_ports
from standalone.redis_server import RedisServer


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
