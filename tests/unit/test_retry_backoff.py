"""How long to wait, and for how long to try."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.retry import backoff_seconds, keep_trying
from hiddenfeed.errors import PermanentError, TransientError


def test_the_longest_wait_doubles_up_to_the_maximum() -> None:
    waits = [backoff_seconds(n, base_seconds=1.0, max_seconds=60.0, chance=1.0) for n in range(8)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


@given(failures=st.integers(0, 10**9), chance=st.floats(0, 1, exclude_max=True))
def test_the_wait_is_spread_over_all_of_it(failures: int, chance: float) -> None:
    wait = backoff_seconds(failures, base_seconds=0.5, max_seconds=30.0, chance=chance)
    longest = backoff_seconds(failures, base_seconds=0.5, max_seconds=30.0, chance=1.0)
    assert wait == pytest.approx(chance * longest)
    assert 0 <= wait <= 30.0


def test_a_call_is_tried_until_it_succeeds() -> None:
    answers = iter([TransientError("away"), TransientError("still away"), None])
    waits: list[float] = []
    told: list[str] = []

    def call() -> str:
        answer = next(answers)
        if answer is not None:
            raise answer
        return "back"

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    result = keep_trying(call, wait=wait, on_failure=lambda error, delay: told.append(f"{error}"))
    assert result == "back"
    assert told == ["away", "still away"]
    assert 0.25 <= waits[0] <= 0.5 <= waits[1] <= 1.0


def test_a_caller_that_ends_gets_the_last_error() -> None:
    def call() -> None:
        raise TransientError("away")

    with pytest.raises(TransientError, match="away"):
        keep_trying(call, wait=lambda _: True)


def test_other_errors_are_not_tried_again() -> None:
    def call() -> None:
        raise PermanentError("no")

    with pytest.raises(PermanentError):
        keep_trying(call, wait=lambda _: pytest.fail("waited"))
