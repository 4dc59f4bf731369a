"""A Redis that is up and refuses writes for now, as a real server and the real client put it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from common.redis_client import is_away, make_client, translated
from common.settings.catalogue import RedisSettings
from hiddenfeed.errors import TransientError
from standalone.servers import RedisServer

WRITE = "redis.call('SET', KEYS[1], 'x')"


def plain(client: redis.Redis) -> None:
    client.set("key", "x")


def by_script(client: redis.Redis) -> None:
    client.eval(WRITE, 1, "key")


def in_multi(client: redis.Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.get("key")
        pipe.set("key", "x")
        pipe.execute()


def by_script_in_multi(client: redis.Redis) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.eval(WRITE, 1, "key")
        pipe.execute()


def fill_memory(client: redis.Redis) -> None:
    client.set("much", b"x" * 2_000_000)
    client.config_set("maxmemory", "1mb")


def make_replica(client: redis.Redis) -> None:
    client.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]


def demand_replicas(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", "1")


@pytest.mark.parametrize("refuse", [fill_memory, make_replica, demand_replicas])
@pytest.mark.parametrize("write", [plain, by_script, in_multi, by_script_in_multi])
def test_a_server_that_refuses_writes_for_now_is_an_outage(
    private_redis: Callable[[], RedisServer],
    refuse: Callable[[redis.Redis], None],
    write: Callable[[redis.Redis], None],
) -> None:
    with make_client(RedisSettings(redis_url=private_redis().url)) as client:
        write(client)
        refuse(client)
        with pytest.raises(redis.ResponseError) as refused:
            write(client)
        assert is_away(refused.value)
        with pytest.raises(TransientError) as told, translated(client):
            write(client)
        assert "Command #" not in str(told.value)
