"""When a transfer has had its time: from its size and the least throughput that is called alive."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hiddenfeed.errors import TransientError

#: For requests, replies and tries around the bytes themselves.
GRACE_SECONDS = 60.0


class Deadline:
    """An instant on the monotonic clock after which a transfer is given up."""

    def __init__(self, seconds: float, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`what` is a sentence's beginning: `run/a.bin was not stored`."""
        self._seconds, self._what, self._clock = seconds, what, clock
        self._at = clock() + seconds

    @property
    def left_seconds(self) -> float:
        """Negative when time is over."""
        return self._at - self._clock()

    def check(self) -> None:
        """Raise TransientError when time is over."""
        if self.left_seconds < 0:
            raise TransientError(
                f"{self._what} within {self._seconds:.0f} s, so it is started anew; see --s3-min-bytes-per-second"
            )


def transfer_deadline(key: str, size_bytes: int, min_bytes_per_second: float) -> Deadline:
    """The deadline of storing `size_bytes` under `key`, beginning now."""
    return Deadline(GRACE_SECONDS + size_bytes / min_bytes_per_second, f"{key} was not stored")


#: For what may take as long as it takes.
NO_DEADLINE = Deadline(math.inf, "")
