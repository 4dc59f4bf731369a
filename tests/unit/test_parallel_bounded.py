"""`map_bounded`: order, bound, and what an error leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hiddenfeed.errors import TransientError
from hiddenfeed.parallel import map_bounded


def test_results_come_in_the_order_of_items() -> None:
    release = threading.Event()

    def slow_first(number: int) -> int:
        if number == 0:
            assert release.wait(30)
        elif number == 1:
            release.set()
        return number * number

    assert list(map_bounded(slow_first, range(50), threads=4)) == [number * number for number in range(50)]


def test_no_more_than_twice_the_threads_are_taken_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = map_bounded(str, items(), threads=3)
    assert next(results) == "0"
    assert len(taken) == 6
    assert next(results) == "1"
    assert len(taken) == 7


def test_the_first_error_is_raised_and_the_rest_is_not_begun() -> None:
    begun: list[int] = []

    def fail_at_three(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise TransientError("the store is away")
        return number

    with pytest.raises(TransientError, match="the store is away"):
        list(map_bounded(fail_at_three, range(1000), threads=2))
    assert len(begun) < 20


def test_no_items_give_no_results() -> None:
    assert list(map_bounded(str, [])) == []
