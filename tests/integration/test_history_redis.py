"""History in Redis: one writer at a time, in steps, bounded, with an end."""

from __future__ import annotations

import redis

from common.history import Point, read_history, write_point

RUN = "seen-0123456789ab"


def _point(at: float) -> Point:
    return Point(
        at=at, batches=1, tokens=1, bytes=1, backlog=0, queued=0, started=0, failed=0, workers=1, uploaders=1
    )


def test_points_come_in_steps_from_one_writer(redis_client: redis.Redis) -> None:
    assert write_point(redis_client, RUN, "monitor-a", _point(1000.0)) == 2
    assert write_point(redis_client, RUN, "monitor-a", _point(1003.0)) == 0
    assert write_point(redis_client, RUN, "monitor-b", _point(1020.0)) == 0
    assert write_point(redis_client, RUN, "monitor-a", _point(1010.0)) == 1
    assert write_point(redis_client, RUN, "monitor-a", _point(1120.0)) == 2
    assert [point.at for point in read_history(redis_client, RUN)] == [1000, 1010, 1120]
    assert all(int(redis_client.ttl(key)) > 0 for key in redis_client.keys("hiddenfeed:history:*"))


def test_a_monitor_takes_over_from_a_producer(redis_client: redis.Redis) -> None:
    assert write_point(redis_client, RUN, "producer-a", _point(1000.0)) == 2
    assert write_point(redis_client, RUN, "producer-b", _point(1020.0)) == 0
    assert write_point(redis_client, RUN, "monitor-a", _point(1020.0)) == 1
    assert write_point(redis_client, RUN, "producer-a", _point(1040.0)) == 0


def test_history_is_bounded(redis_client: redis.Redis) -> None:
    for number in range(500):
        write_point(redis_client, RUN, "monitor-a", _point(1000.0 + 10 * number))
    points = read_history(redis_client, RUN)
    # An hour in steps of ten seconds, and before that two minutes.
    assert len(points) == 360 + (500 - 360) // 12 + 1
    assert (points[0].at, points[-1].at) == (1000, 1000 + 4990)
