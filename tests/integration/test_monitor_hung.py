"""A Redis that takes connections and never answers: said soon, and nobody hangs with it."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from common.settings.resolve import resolve
from hiddenfeed.options import StoreOptions
from monitor import __main__ as monitor_main
from monitor import web
from monitor.bootstrap import wire
from monitor.live import watch
from monitor.snapshot import take_snapshot
from monitor.views import Snapshot
from monitor.web import Current, make_app
from tests.monitor_scene import NOW, scene

WAIT_SECONDS = 10


@pytest.fixture
def hung_redis() -> Iterator[str]:
    """URL of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def test_the_monitor_waits_for_seconds_only(hung_redis: str) -> None:
    settings = resolve(monitor_main.GROUPS, {}, {"HIDDENFEED_REDIS_URL": hung_redis}, complete=False)
    options = wire(settings).client.connection_pool.connection_kwargs
    assert max(options["socket_timeout"], options["socket_connect_timeout"]) <= 5
    assert settings.group(StoreOptions).s3_read_timeout_seconds > 5


def test_a_redis_that_does_not_answer_is_one_sentence(hung_redis: str) -> None:
    words = ["--once", "--redis-url", hung_redis, "--monitor-patience-seconds", "0.2"]
    done = subprocess.run(
        [sys.executable, "-m", "monitor", *words], capture_output=True, text=True, timeout=60, check=False
    )
    address = hung_redis.removeprefix("redis://").removesuffix("/0")
    assert (done.returncode, done.stderr) == (75, f"error: Redis at {address} does not answer\n")


def test_the_live_view_ends_though_a_look_does_not() -> None:
    stop, looking, release = Event(), Event(), Event()

    def read() -> Snapshot:
        looking.set()
        release.wait()
        return take_snapshot(scene(), NOW)

    viewer = Thread(target=watch, args=(read, 1.0, stop, Console(file=io.StringIO())), daemon=True)
    viewer.start()
    try:
        assert looking.wait(WAIT_SECONDS)
        stop.set()
        viewer.join(WAIT_SECONDS)
        assert not viewer.is_alive()
    finally:
        release.set()


def test_health_is_told_from_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_HEALTH_SECONDS", 0.05)
    monkeypatch.setattr(web, "kept_seconds", lambda snapshot: -1.0)
    gate, error = Event(), ""

    def read() -> Snapshot:
        assert gate.wait(WAIT_SECONDS), "the probe waits for Redis"
        return take_snapshot(scene(redis_error=error), NOW)

    current = Current(read)
    with TestClient(make_app(current, 1.0)) as client:
        # Nothing is known before the first look has ended.
        reply = client.get("/healthz")
        assert (reply.status_code, "has not ended" in reply.json()["reason"]) == (503, True)
        gate.set()
        monkeypatch.setattr(web, "_HEALTH_SECONDS", WAIT_SECONDS)
        assert client.get("/healthz").status_code == 200
        gate.clear()
        monkeypatch.setattr(web, "_HEALTH_SECONDS", 0.05)
        # The next look hangs: what the last one saw holds.
        assert client.get("/healthz").status_code == 200
        # And no longer than that it could be true.
        with monkeypatch.context() as patched:
            patched.setattr(web, "_BELIEVED_SECONDS", 0.0)
            assert client.get("/healthz").status_code == 503
        error = "Redis at h:1 does not answer"
        gate.set()
        monkeypatch.setattr(web, "_HEALTH_SECONDS", WAIT_SECONDS)
        reply = client.get("/healthz")
        assert (reply.status_code, reply.json()["reason"]) == (503, "Redis at h:1 does not answer")
