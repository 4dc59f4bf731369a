"""Many store reads at a time, bounded: results in order, the first error stops the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

#: Small ranged reads wait for the store, not for this machine.
READ_THREADS = 16


def map_bounded(
    function: Callable[[ItemT], ResultT], items: Iterable[ItemT], threads: int = READ_THREADS
) -> Iterator[ResultT]:
    """`function` of every item, in the items' order, `threads` at a time.

    No more than twice as many results as threads wait to be taken, so memory stays bounded. The
    first error is raised to the caller; what has not begun by then is dropped.
    """
    pending: deque[Future[ResultT]] = deque()
    remaining = iter(items)
    executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="hiddenfeed-read")
    try:
        pending.extend(executor.submit(function, item) for item in islice(remaining, 2 * threads))
        while pending:
            yield pending.popleft().result()
            pending.extend(executor.submit(function, item) for item in islice(remaining, 1))
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
