"""When to try again: how long to wait, and the loop for callers that are not jobs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from hiddenfeed.errors import TransientError

ResultT = TypeVar("ResultT")


def backoff_seconds(failures: int, *, base_seconds: float, max_seconds: float, chance: float) -> float:
    """Exponential backoff with full jitter.

    `failures` before this wait, 0 for the first; `chance` uniform in [0, 1). Full jitter, because
    many processes that fail at the same instant must not come back at the same instant.
    """
    # Beyond 2**40 the maximum holds anyway, and a float power would overflow in the end.
    return chance * min(max_seconds, base_seconds * 2.0 ** min(failures, 40))


def keep_trying(
    call: Callable[[], ResultT],
    *,
    wait: Callable[[float], bool],
    base_seconds: float = 0.5,
    max_seconds: float = 15.0,
    on_failure: Callable[[TransientError, float], None] | None = None,
) -> ResultT:
    """The result of `call`, tried again after every TransientError until it succeeds.

    `wait` sleeps for the seconds given and returns True to end the tries, as `Event.wait` does;
    then the last error is raised. `on_failure` is told each error and the seconds until the next try.
    """
    failures = 0
    while True:
        try:
            return call()
        except TransientError as error:
            delay = backoff_seconds(
                failures, base_seconds=base_seconds, max_seconds=max_seconds, chance=random.uniform(0.5, 1.0)
            )
            if on_failure is not None:
                on_failure(error, delay)
            if wait(delay):
                raise
            failures += 1
