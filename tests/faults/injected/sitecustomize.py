"""Faults inside a process of a site, switched on and off from outside through files.

Python imports this module at its start if its folder is on PYTHONPATH; only members that are to
be disturbed have it there. It changes how the process sees its clock and its disk, nothing else.
"""

from __future__ import annotations

import datetime
import errno
import os
import random
import time
from typing import Any


def shift_clock(file: str) -> None:
    """`time.time` and `datetime.now` are off by the seconds that stand in `file`, while it is there."""
    true_time, true_time_ns, true_datetime = time.time, time.time_ns, datetime.datetime
    looked_at, seconds = float("-inf"), 0.0

    def offset() -> float:
        nonlocal looked_at, seconds
        if time.monotonic() - looked_at > 0.1:
            looked_at = time.monotonic()
            try:
                with open(file) as text:  # noqa: PTH123 - pathlib is slow to import, and this runs in every process
                    seconds = float(text.read() or 0)
            except FileNotFoundError:
                seconds = 0.0
        return seconds

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, true_datetime)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, true_datetime)

    class Shifted(true_datetime, metaclass=Kind):  # type: ignore[valid-type, misc]
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return true_datetime.now(tz) + datetime.timedelta(seconds=offset())

        @classmethod
        def utcnow(cls) -> Any:
            return true_datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=offset())

    time.time = lambda: true_time() + offset()
    time.time_ns = lambda: true_time_ns() + int(offset() * 1e9)
    datetime.datetime = Shifted  # type: ignore[misc]


def fill_disk(file: str) -> None:
    """While `file` is there, half of all allocations, positioned writes and syncs fail as on a full or broken disk."""

    def refusing(name: str, code: int) -> None:
        true_call = getattr(os, name)

        def call(*arguments: Any) -> Any:
            if os.path.exists(file) and random.random() < 0.5:  # noqa: PTH110 - as above
                raise OSError(code, os.strerror(code))
            return true_call(*arguments)

        setattr(os, name, call)

    refusing("posix_fallocate", errno.ENOSPC)
    refusing("pwrite", errno.ENOSPC)
    refusing("fsync", errno.EIO)


if "HFFAULTS_CLOCK" in os.environ:
    shift_clock(os.environ["HFFAULTS_CLOCK"])
if "HFFAULTS_DISK" in os.environ:
    fill_disk(os.environ["HFFAULTS_DISK"])
