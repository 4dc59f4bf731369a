"""Real servers for the tests: one Redis and one S3 per test session, shared by all xdist workers.

The servers start when the first test asks for one and end with the session, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
import redis

from hiddenfeed.options import StoreOptions
from standalone.servers import RedisServer, S3Server, redis_folder, s3_folder, start_redis, start_s3

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_FOLDER = "HFTESTS_SERVERS"
_BUCKET = "tests"
#: Stops the session's servers once the session's process is gone, and removes their data.
_JANITOR = """
import shutil, sys
sys.stdin.read()
from pathlib import Path
from standalone.servers import stop_all
stop_all(Path(sys.argv[1]))
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""
_janitor = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """Name the servers' folder in the process that began the session; xdist workers inherit the name."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a script's background job is started: its children would inherit it, and tests of Ctrl-C fail.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    # A short path: the servers put sockets in it, whose names are limited to about 100 bytes.
    folder = tempfile.mkdtemp(prefix="hftests-")
    os.environ[_FOLDER] = folder
    config.stash[_janitor] = subprocess.Popen(
        [sys.executable, "-c", _JANITOR, folder],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
        start_new_session=True,
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the janitor see the end of the session, and wait for it."""
    janitor = config.stash.get(_janitor, None)
    if janitor is not None and janitor.stdin is not None:
        janitor.stdin.close()
        janitor.wait()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting and no credentials of the person who runs the tests reach a test."""
    for name in os.environ:
        if name.startswith(("HIDDENFEED_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)


# --- Redis ---


@pytest.fixture(scope="session")
def redis_server() -> RedisServer:
    """The session's Redis server, shared by all workers. Never stop or restart it: see `private_redis`."""
    return start_redis(redis_folder(Path(os.environ[_FOLDER])))


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """URL of an empty database that no other worker uses."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    url = redis_server.database_url(int(worker.removeprefix("gw")))
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client on the empty database, replies as bytes."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def private_redis(tmp_path: Path) -> Iterator[Callable[[], RedisServer]]:
    """A function that starts this test's own Redis, or starts it again after the test killed it; same port, same data."""
    folder = redis_folder(tmp_path)
    started: list[RedisServer] = []

    def start() -> RedisServer:
        started.append(start_redis(folder))
        return started[-1]

    yield start
    for server in started:
        server.stop()


# --- S3 ---


@dataclass(frozen=True)
class S3Access:
    """How a test reaches its part of an S3 server; the credentials are in the environment as well."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    #: Unique to the test, without slashes at its ends.
    prefix: str

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`"""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def options(self) -> StoreOptions:
        """Options that lead `open_store` to the server."""
        return StoreOptions(s3_endpoint=self.endpoint)

    @contextmanager
    def client(self) -> Iterator[S3Client]:
        """boto3's own client, for what a store does not do.

        Made from the keys: boto3's default session keeps those of the first server it saw.
        """
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )
        try:
            yield client
        finally:
            client.close()


@pytest.fixture(scope="session")
def s3_server() -> S3Server:
    """The session's S3 server, shared by all workers. Never stop or restart it: see `private_s3`."""
    return start_s3(s3_folder(Path(os.environ[_FOLDER])), _BUCKET)


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Access:
    """Access to the session's bucket under a prefix of the test's own."""
    return _access(s3_server, monkeypatch)


@pytest.fixture
def store_url_s3(s3: S3Access) -> str:
    """URL of an empty store in S3; open it with `s3.options`."""
    return s3.url


@pytest.fixture
def private_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], tuple[S3Server, S3Access]]]:
    """A function that starts this test's own S3 server, or starts it again after the test killed it; same ports, same data."""
    started: list[S3Server] = []

    def start() -> tuple[S3Server, S3Access]:
        server = start_s3(s3_folder(tmp_path), _BUCKET)
        started.append(server)
        return server, _access(server, monkeypatch)

    yield start
    for server in started:
        server.stop()


def _access(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Access:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return S3Access(
        server.endpoint,
        server.bucket,
        server.access_key,
        server.secret_key,
        prefix=f"t-{uuid.uuid4().hex[:12]}",
    )
