"""What the client's errors mean, and that no password is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from common.redis_client import address_of, hide_password, is_away, make_client, text, translate
from common.settings.catalogue import RedisSettings
from hiddenfeed.errors import ConfigError, TransientError


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (
            redis.ConnectionError("Error 111 connecting to 127.0.0.1:6379. Connection refused."),
            TransientError,
            "Redis at r:1 is not there: connection refused",
        ),
        (
            redis.ConnectionError(
                "Error 2 connecting to unix socket: /tmp/x.sock. No such file or directory."
            ),
            TransientError,
            "Redis at r:1 is not there: no such file or directory",
        ),
        (redis.ConnectionError(""), TransientError, "Redis at r:1 is not there: connection lost"),
        (
            redis.TimeoutError("Timeout reading"),
            TransientError,
            "Redis at r:1 does not answer",
        ),
        (redis.BusyLoadingError("loading"), TransientError, "Redis at r:1 is not there: loading"),
        (redis.OutOfMemoryError("OOM command not allowed"), TransientError, "not there: oOM"),
        (redis.ResponseError("MISCONF Errors writing to the AOF file"), TransientError, "not there: mISCONF"),
        (redis.AuthenticationError("WRONGPASS"), ConfigError, "Redis at r:1 refuses us: WRONGPASS"),
        (redis.AuthenticationError("NOAUTH"), ConfigError, "give the password in --redis-url"),
    ],
)
def test_an_outage_is_transient_and_a_refusal_is_for_a_person(
    error: redis.RedisError, kind: type[Exception], sentence: str
) -> None:
    translated = translate(error, "r:1")
    assert type(translated) is kind
    assert sentence in str(translated)


def test_a_mistake_of_ours_stays_what_it_is() -> None:
    error = redis.ResponseError("WRONGTYPE Operation against a key")
    assert translate(error, "r:1") is error
    assert not is_away(error)


@pytest.mark.parametrize("url", ["http://host/0", "redis://:secret@host:notaport/0", "nonsense"])
def test_a_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--redis-url: .* is not a Redis URL") as caught:
        make_client(RedisSettings(redis_url=url))
    assert "secret" not in str(caught.value)


def test_a_ca_bundle_must_be_there_and_needs_tls(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--redis-ca-bundle: .*ca\.pem is not a file"):
        make_client(RedisSettings(redis_url="rediss://h/0", redis_ca_bundle=str(tmp_path / "ca.pem")))
    (tmp_path / "ca.pem").touch()
    with pytest.raises(ConfigError, match="must start with rediss://"):
        make_client(RedisSettings(redis_url="redis://h/0", redis_ca_bundle=str(tmp_path / "ca.pem")))
    client = make_client(RedisSettings(redis_url="rediss://h/0", redis_ca_bundle=str(tmp_path / "ca.pem")))
    assert client.connection_pool.connection_kwargs["ssl_ca_certs"] == str(tmp_path / "ca.pem")
    client.close()


def test_an_address_has_no_password() -> None:
    client = make_client(RedisSettings(redis_url="redis://user:secret@host:1234/3"))
    assert address_of(client) == "host:1234"
    client.close()
    assert hide_password("redis://user:secret@host:1/0") == "redis://user:***@host:1/0"
    assert hide_password("redis://:se/cret@host:1/0") == "redis://:***@host:1/0"
    assert hide_password("redis://host:1/0") == "redis://host:1/0"


def test_bytes_that_are_no_text_are_shown_all_the_same() -> None:
    assert text(b"a\xff") == "a\\xff"
    assert text("a") == "a"
