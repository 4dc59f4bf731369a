"""Who uses the servers of a home: any number of processes at a time, the last of which ends them.

Every user holds a shared lock on one file, which the kernel takes away from a process that is killed.
Coming and going happen one at a time, behind a second lock: whoever goes and finds nobody left ends
the servers before the next one may come.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hiddenfeed.errors import ConfigError

ResultT = TypeVar("ResultT")


class Users:
    """The users of one home's servers, as one of them sees it. The folder must be there."""

    def __init__(self, folder: Path) -> None:
        self._gate_path, self._users_path = folder / "gate", folder / "users"
        #: Held as long as this process is one of the users.
        self._place: int | None = None

    def join(self, start: Callable[[bool], ResultT], stop: Callable[[], None]) -> ResultT:
        """Become a user and return what `start` gives; it is told whether there is no other user.

        If it raises, this process has left again. Raises ConfigError if the folder cannot be written.
        """
        with self._gate():
            alone = self._nobody()
            self._place = _open(self._users_path)
            fcntl.flock(self._place, fcntl.LOCK_SH)
            try:
                return start(alone)
            except BaseException:
                self._go(stop)
                raise

    def leave(self, stop: Callable[[], None]) -> bool:
        """Use the servers no more; `stop` is called, and True returned, if nobody else does. Once is enough."""
        if self._place is None:
            return False
        with self._gate():
            return self._go(stop)

    @contextmanager
    def nobody(self) -> Iterator[None]:
        """Keep everybody out; raises ConfigError if somebody is in."""
        with self._gate():
            if not self._nobody():
                raise ConfigError(
                    f"the servers of {self._users_path.parent} are in use by another `run`, `serve` or `exec`; end that first"
                )
            yield

    def _go(self, stop: Callable[[], None]) -> bool:
        if self._place is not None:
            os.close(self._place)
            self._place = None
        if not self._nobody():
            return False
        stop()
        return True

    def _nobody(self) -> bool:
        """Whether nobody holds a place. Call with the gate held."""
        probe = _open(self._users_path)
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(probe)
        return True

    @contextmanager
    def _gate(self) -> Iterator[None]:
        gate = _open(self._gate_path)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            os.close(gate)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"the home {path.parent} cannot be used: {error.strerror}") from None
