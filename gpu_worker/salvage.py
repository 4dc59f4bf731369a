"""Which samples of a batch cannot be extracted: parts of it are tried until each of them stands alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from common.checks import Check
from hiddenfeed.errors import DataError

#: A batch with more bad samples than this is not the samples' fault, and is given up as a whole.
MAX_BAD = 64

#: Why a sample cannot be extracted.
ReasonT = TypeVar("ReasonT")


class CheckError(DataError):
    """A check failed: these states must not be stored, or cannot be had."""

    def __init__(self, reason: str, check: Check = "other") -> None:
        super().__init__(reason)
        self.check = check


class SampleError(CheckError):
    """A sample's own fault: without it, the rest of its batch can be extracted.

    Other failures of a batch say that the computation is wrong, and another choice of samples could
    hide that.
    """


def find_bad(
    places: Sequence[int], attempt: Callable[[Sequence[int]], ReasonT | None], limit: int = MAX_BAD
) -> dict[int, ReasonT] | None:
    """Samples that fail alone, with their reasons, of `places`, which failed together.

    `attempt` says why samples at these places cannot be extracted together; None if they can.
    About 2·log2(n) times the batch is computed for one bad sample of n. Empty if every part succeeds.
    None if more than `limit` samples fail, or all of the first eight looked at alone.
    """
    bad: dict[int, ReasonT] = {}
    good_alone = 0
    waiting = _halves(places)
    while waiting:
        part = waiting.pop()
        reason = attempt(part)
        if reason is None:
            good_alone += len(part)
        elif len(part) > 1:
            waiting += _halves(part)
        else:
            bad[part[0]] = reason
            if len(bad) > limit or (len(bad) >= 8 and not good_alone):
                return None
    return bad


def _halves(places: Sequence[int]) -> list[Sequence[int]]:
    """Both halves, the first one last, as it is tried first; a single sample is its own half."""
    middle = len(places) // 2
    return [half for half in (places[middle:], places[:middle]) if half]
