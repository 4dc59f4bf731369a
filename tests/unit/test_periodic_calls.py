"""A thread that does one small thing now and then: when it calls, what it makes of failures, how it ends."""

from __future__ import annotations

from queue import Queue
from threading import Event

import pytest
import redis

from common.periodic import Periodic
from hiddenfeed.errors import ConfigError, TransientError


def test_it_calls_at_once_and_again_until_the_block_ends() -> None:
    calls: Queue[int] = Queue()
    with Periodic("counting", lambda: calls.put(1), 0.001):
        for _ in range(3):
            calls.get(timeout=20)
    calls = Queue()
    with Periodic("counting", lambda: calls.put(1), 3600):
        calls.get(timeout=20)
    assert calls.empty(), "it called again before its time"


def test_it_may_wait_first_and_ends_while_it_waits() -> None:
    called = Event()
    with Periodic("waiting", called.set, 3600, wait_first=True):
        pass
    assert not called.is_set()
    Periodic("never begun", called.set, 1).stop()


def test_an_outage_is_said_once_and_waited_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    outcomes: list[Exception | None] = [
        TransientError("away"),
        redis.ConnectionError("away"),
        ConfigError("refused"),
        None,
        redis.TimeoutError("away again"),
    ]

    def act() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    periodic = Periodic("looking", act, 1)
    for _ in range(5):
        periodic.once()
    assert [record.getMessage() for record in caplog.records] == ["looking waits"] * 2


def test_an_error_that_is_no_outage_is_told_with_its_traceback_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: Queue[int] = Queue()

    def act() -> None:
        calls.put(1)
        raise redis.ResponseError("WRONGTYPE")

    with Periodic("looking", act, 0.001):
        calls.get(timeout=20)
        calls.get(timeout=20)
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].getMessage() == "Redis refuses a command of looking; it is tried again later"
