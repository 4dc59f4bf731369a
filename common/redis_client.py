"""The connection to the one Redis that all roles share, and what its failures mean.

Nothing in the client retries behind our back: a command that was sent may have been carried out,
so whoever sends it decides whether it may be sent again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, NoPermissionError, TryAgainError
from redis.retry import Retry

from common.settings.catalogue import RedisSettings
from hiddenfeed.errors import ConfigError, TransientError

#: Longest silence of a command of those who work; every blocking pop is shorter than this.
SOCKET_TIMEOUT_SECONDS = 15.0
CONNECT_TIMEOUT_SECONDS = 5.0
#: BLMOVE, TIME in scripts that write, and streams.
OLDEST_VERSION = (6, 2)

#: What "Redis is away" looks like to a caller of the client. See `is_away` for the few that hide in other classes.
AWAY = (redis.ConnectionError, redis.TimeoutError)
#: Replies of a server that is up but cannot serve for now: out of memory, a replica during failover. The client has
#: classes for these and takes the code out of their text.
_FOR_NOW = (redis.OutOfMemoryError, redis.ReadOnlyError, ClusterDownError, TryAgainError)
#: The same, disk full and others, where the client has no class and the code stands at the start of the text.
_FOR_NOW_CODES = ("LOADING", "OOM", "MISCONF", "READONLY", "MASTERDOWN", "TRYAGAIN", "BUSY ", "NOREPLICAS")
#: What the client puts before the text of a command that failed in a pipeline or MULTI.
_IN_PIPELINE = "of pipeline caused error: "
_REFUSED = (redis.AuthenticationError, NoPermissionError)


def connect(settings: RedisSettings, *, wait_seconds: float = 0) -> redis.Redis:
    """A client of the Redis at `settings.redis_url`, proven by a PING.

    Waits up to `wait_seconds` for the server to come up. Raises ConfigError for a URL that is not
    one, a refused password, or a server that is too old; TransientError when there is no server.
    """
    client = make_client(settings)
    deadline = time.monotonic() + wait_seconds
    pause = Event()
    while True:
        try:
            with translated(client):
                _check_version(client)
            return client
        except TransientError as error:
            if time.monotonic() >= deadline:
                raise TransientError(f"{error}; start it or give --redis-url") from None
            pause.wait(0.2)


def make_client(settings: RedisSettings, *, timeout_seconds: float = SOCKET_TIMEOUT_SECONDS) -> redis.Redis:
    """A client that has sent nothing yet, whose commands wait `timeout_seconds` for an answer at most.

    Raises ConfigError for a URL or CA file that is wrong.
    """
    options: dict[str, Any] = {}
    if settings.redis_ca_bundle is not None:
        if not Path(settings.redis_ca_bundle).is_file():
            raise ConfigError(f"--redis-ca-bundle: {settings.redis_ca_bundle} is not a file")
        if not settings.redis_url.startswith("rediss://"):
            raise ConfigError("--redis-ca-bundle is for TLS: the Redis URL must start with rediss://")
        options["ssl_ca_certs"] = settings.redis_ca_bundle
    try:
        return redis.Redis.from_url(
            settings.redis_url,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=min(timeout_seconds, CONNECT_TIMEOUT_SECONDS),
            socket_keepalive=True,
            health_check_interval=30,
            retry=Retry(NoBackoff(), 0),
            **options,
        )
    except ValueError as error:
        # urlsplit's own messages name at most the port or the scheme, never the password.
        raise ConfigError(
            f"--redis-url: {hide_password(settings.redis_url)} is not a Redis URL: {error}"
        ) from None


@contextmanager
def translated(client: redis.Redis) -> Iterator[None]:
    """Turn the client's errors into ours: away is TransientError, refused is ConfigError."""
    try:
        yield
    except redis.RedisError as error:
        raise translate(error, address_of(client)) from None


def translate(error: redis.RedisError, address: str) -> TransientError | ConfigError | redis.RedisError:
    """Our error for one of the client's; the same error if it is neither an outage nor a refusal."""
    if isinstance(error, _REFUSED):
        return ConfigError(f"Redis at {address} refuses us: {error}; give the password in --redis-url")
    if isinstance(error, redis.TimeoutError):
        return TransientError(f"Redis at {address} does not answer")
    if is_away(error):
        return TransientError(f"Redis at {address} is not there: {_reason(error)}")
    return error


def is_away(error: BaseException) -> bool:
    """True for errors that go away by themselves once the server or the network is back."""
    if isinstance(error, (*AWAY, *_FOR_NOW)):
        return True
    return isinstance(error, redis.ResponseError) and _reply(error).startswith(_FOR_NOW_CODES)


def clock_of(client: redis.Redis) -> float:
    """Redis's clock, in seconds since the epoch: the one by which ages are counted, because those of hosts differ.

    Raises TransientError when Redis is away.
    """
    with translated(client):
        return parse_clock(client.time())


def parse_clock(reply: Sequence[int]) -> float:
    """Seconds since the epoch out of the reply to TIME."""
    seconds, microseconds = reply
    return int(seconds) + int(microseconds) / 1e6


def address_of(client: redis.Redis) -> str:
    """`host:port` or the socket's path, without login or password."""
    options = client.connection_pool.connection_kwargs
    return str(options["path"]) if "path" in options else f"{options.get('host')}:{options.get('port')}"


def hide_password(url: str) -> str:
    """The URL as it may be shown."""
    return re.sub(r"(//[^:@/]*):.*@", r"\1:***@", url)


def text(value: Any) -> str:
    """A reply, bytes or text, as text; bytes that are not UTF-8 are shown as escapes, never an error."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _check_version(client: redis.Redis) -> None:
    version = text(client.info("server")["redis_version"])
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_VERSION:
        raise ConfigError(f"Redis at {address_of(client)} has version {version}; 6.2 or newer is needed")


def _reply(error: BaseException) -> str:
    """The server's own words, without the command that they were the answer to."""
    return str(error).rpartition(_IN_PIPELINE)[2]


def _reason(error: BaseException) -> str:
    """`connection refused` out of `Error 111 connecting to 127.0.0.1:6379. Connection refused.`"""
    reason = (
        re.sub(r"^Error (-?\d+ )?(while )?connecting to (unix socket: )?\S+\.\s+", "", _reply(error))
        .strip()
        .rstrip(".")
    )
    return (reason[:1].lower() + reason[1:]) or "connection lost"


def database_of(url: str) -> str:
    """The database number in a URL's path, `0` when there is none."""
    return urlsplit(url).path.strip("/") or "0"
