"""Looks that are taken aside, so that whoever waits for one may stop waiting: Redis or a store may answer late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from threading import Event, Thread

from monitor.views import Snapshot

#: How often somebody who waits for a look sees whether it is time to end.
_TICK_SECONDS = 0.1


def begin(read: Callable[[], Snapshot]) -> Future[Snapshot]:
    """Take a look in a thread of its own, which keeps no process from ending."""
    look: Future[Snapshot] = Future()

    def take() -> None:
        try:
            look.set_result(read())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the look gets it
            look.set_exception(error)

    Thread(target=take, name="look", daemon=True).start()
    return look


def snapshots(read: Callable[[], Snapshot], pause_seconds: float, stop: Event) -> Iterator[Snapshot]:
    """One look after the other with a pause in between, until `stop` is set, which a look need not end for."""
    while not stop.is_set():
        look = begin(read)
        while not stop.is_set() and not look.done():
            wait([look], _TICK_SECONDS)
        if look.done():
            yield look.result()
        stop.wait(pause_seconds)
