"""History: points thinned, and what happened between them."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from common.history import Point, parse_history, rates_of, thinned


def _point(at: float, **changes: object) -> Point:
    base = Point(
        at=at, batches=int(at), tokens=int(at) * 100, bytes=int(at) * 1000, backlog=0, queued=5, started=1,
        failed=0, workers=1, uploaders=1,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def test_rates_are_between_points_and_count_the_backlog_as_extracted() -> None:
    (rates,) = rates_of([_point(100.0), _point(110.0, backlog=20)])
    assert rates.upload_bytes_per_second == 1000
    # 10 files stored, 20 more wait, of 1,000 bytes and 100 tokens each.
    assert rates.extract_bytes_per_second == pytest.approx(3000)
    assert rates.tokens_per_second == pytest.approx(300)
    # Files that waited are stored at last: nothing was computed.
    (late,) = rates_of([_point(100.0, backlog=50), _point(110.0, batches=150, bytes=150_000, tokens=15_000)])
    assert (late.upload_bytes_per_second, late.tokens_per_second) == (5000, 0)
    assert rates_of([_point(1.0)]) == []


def test_a_redis_that_was_wiped_makes_no_negative_rates() -> None:
    (rates,) = rates_of([_point(100.0, backlog=50), _point(110.0, batches=0, bytes=0, tokens=0)])
    assert min(rates.extract_bytes_per_second, rates.upload_bytes_per_second, rates.tokens_per_second) == 0


def test_thinned_points_keep_both_ends_and_spread() -> None:
    points = [_point(float(at)) for at in range(1000)]
    chosen = thinned(points, 11)
    assert len(chosen) == 11
    assert (chosen[0].at, chosen[-1].at) == (0, 999)
    assert all(80 < after.at - before.at < 120 for before, after in pairwise(chosen))
    assert thinned(points[:5], 11) == points[:5]


def test_what_is_no_point_is_left_out_and_each_moment_stands_once() -> None:
    raw = [msgspec.json.encode(_point(at)) for at in (20.0, 10.0)]
    assert [point.at for point in parse_history([raw, [b"x", b"[]", b"[1]", *raw]])] == [10, 20]
