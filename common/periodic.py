"""A quiet thread that does one small thing now and then, through outages, from a block's begin to its end."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Self

import redis

from common.logs import get_logger
from common.redis_client import is_away
from hiddenfeed.errors import ConfigError, TransientError

_log = get_logger("periodic")


class Periodic:
    """Calls `act` at once and then again and again, `seconds` after each call ended.

    While Redis or a store is away or refuses us, the call is due again as if it had been made:
    that is said once, when it begins. An error of any other kind that Redis replies with is logged
    with its traceback and does not end the thread; what else `act` raises does.
    """

    def __init__(
        self, what: str, act: Callable[[], object], seconds: float, *, wait_first: bool = False
    ) -> None:
        """`what` names the thread, and reads like `tidying the spool` in a message; opens nothing."""
        self._what, self._act, self._seconds, self._wait_first = what, act, seconds, wait_first
        self._ended = Event()
        self._thread = Thread(target=self._run, name=what, daemon=True)
        self._away = False

    def start(self) -> Self:
        """Begin; for use without a `with` block."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, after the call that is under way; no error if it never began."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *details: object) -> None:
        self.stop()

    def _run(self) -> None:
        if self._wait_first and self._ended.wait(self._seconds):
            return
        while True:
            self.once()
            if self._ended.wait(self._seconds):
                return

    def once(self) -> None:
        """One call, with what it raises told as the class says."""
        try:
            self._act()
            self._away = False
        except (TransientError, ConfigError) as error:
            self._waits(error)
        except redis.RedisError as error:
            if is_away(error):
                self._waits(error)
            else:
                _log.exception(f"Redis refuses a command of {self._what}; it is tried again later")

    def _waits(self, error: Exception) -> None:
        say = _log.debug if self._away else _log.info
        say(f"{self._what} waits", reason=str(error))
        self._away = True
