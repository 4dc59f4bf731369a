"""How many requests a gate lets pass: limits from outside, complaints of the store, deadlines."""

from __future__ import annotations

import threading

import pytest

from hiddenfeed.errors import TransientError
from hiddenfeed.store.deadline import Deadline, transfer_deadline
from hiddenfeed.store.gate import AdaptiveLimit, RequestGate


def test_a_complaint_halves_what_is_under_way_and_successes_restore_it() -> None:
    adaptive = AdaptiveLimit()
    assert adaptive.under(100) == 100
    assert adaptive.busy(40, at=0.0)
    assert adaptive.under(100) == 20
    assert adaptive.under(8) == 8
    for _ in range(2 * 20):
        adaptive.fine(100)
    assert adaptive.under(100) == 21
    for _ in range(100 * 100):
        adaptive.fine(100)
    assert adaptive.limit is None


def test_replies_of_one_moment_are_one_complaint() -> None:
    adaptive = AdaptiveLimit()
    assert adaptive.busy(32, at=10.0)
    assert not adaptive.busy(31, at=10.5)
    assert adaptive.under(100) == 16
    assert adaptive.busy(16, at=11.0)
    assert adaptive.under(100) == 8


def test_a_store_that_always_complains_still_gets_one_request() -> None:
    adaptive = AdaptiveLimit()
    for second in range(20):
        adaptive.busy(32, at=float(second))
    assert adaptive.under(100) == 1


def test_no_more_pass_than_the_limit_which_may_change() -> None:
    limit, passed, leave = 2, threading.Semaphore(0), threading.Event()
    gate = RequestGate(lambda: limit)

    def request() -> None:
        with gate.request():
            passed.release()
            leave.wait(30)

    threads = [threading.Thread(target=request) for _ in range(5)]
    for thread in threads:
        thread.start()
    try:
        assert passed.acquire(timeout=30)
        assert passed.acquire(timeout=30)
        assert gate.in_use == 2
        assert not passed.acquire(timeout=0.1)
        limit = 4
        assert passed.acquire(timeout=30)
        assert passed.acquire(timeout=30)
        usage = gate.take_usage()
        assert (usage.peak, usage.waited) == (4, True)
    finally:
        limit = 5
        leave.set()
        for thread in threads:
            thread.join(30)
    assert gate.in_use == 0


def test_waiting_ends_with_the_deadline() -> None:
    now = 0.0
    gate = RequestGate(lambda: 1)
    deadline = Deadline(5, "run-1/a was not stored", clock=lambda: now)
    with gate.request():
        now = 6.0
        with (
            pytest.raises(TransientError, match=r"^run-1/a was not stored within 5 s, so"),
            gate.request(deadline),
        ):
            pass
    with gate.request(deadline):
        pass


def test_a_deadline_grows_with_the_file() -> None:
    small, large = transfer_deadline("a", 1, 1000), transfer_deadline("a", 1_000_000, 1000)
    assert large.left_seconds - small.left_seconds == pytest.approx(1000, abs=5)
