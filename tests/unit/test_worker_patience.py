"""When lapsed leases may be acted on."""

from __future__ import annotations

import pytest

from common.settings.catalogue import QueueSettings
from common.worker.chores import TICK_SECONDS, Patience
from common.worker.turn import ASIDE_SECONDS

SETTINGS = QueueSettings(lease_seconds=45, heartbeat_seconds=10)
LONG_UP = 1e6


def after_rounds(seconds: float) -> Patience:
    """A worker that has done its rounds every second for so long."""
    patience = Patience(SETTINGS, at=0.0)
    for at in range(1, int(seconds) + 1):
        patience.tick(float(at))
    return patience


def test_in_quiet_times_there_is_nothing_to_wait_for() -> None:
    patience = after_rounds(100)
    assert patience.over(100.0, LONG_UP)


def test_after_trouble_one_beat_is_waited() -> None:
    patience = after_rounds(100)
    patience.trouble(100.0)
    assert not patience.over(110.0, LONG_UP)
    assert patience.over(111.0, LONG_UP)


def test_an_outage_may_last_until_the_worker_that_stood_aside_looks_again() -> None:
    patience = after_rounds(100)
    patience.outage(100.0)
    ends = 100.0 + ASIDE_SECONDS + TICK_SECONDS
    assert not patience.over(ends + SETTINGS.heartbeat_seconds, LONG_UP)
    assert patience.over(ends + SETTINGS.heartbeat_seconds + 2 * TICK_SECONDS, LONG_UP)


def test_a_server_that_has_just_started_is_given_one_beat() -> None:
    patience = after_rounds(100)
    assert not patience.over(100.0, server_up_seconds=10.0)
    assert patience.over(100.0, server_up_seconds=12.0)


@pytest.mark.parametrize("jump", [60.0, -60.0], ids=["asleep or clock forward", "clock back"])
def test_a_process_that_was_frozen_or_whose_clock_jumped_waits_as_well(jump: float) -> None:
    patience = after_rounds(100)
    patience.tick(100.0 + jump)
    assert not patience.over(100.0 + jump, LONG_UP)
    assert patience.over(100.0 + jump + 11.0, LONG_UP)


def test_a_round_that_takes_a_little_longer_is_no_trouble() -> None:
    patience = after_rounds(100)
    patience.tick(108.0)
    assert patience.over(108.0, LONG_UP)
