"""Whose turn the chores are: one worker of a Redis at a time does them, as long as it goes on doing them.

Nothing depends on it but Redis's load, which would else grow with workers times queues.
"""

from __future__ import annotations

import redis

from common.worker import scripts

#: A worker that has not come back for this long has lost its turn.
TURN_SECONDS = 3.0
#: How long a worker whose chores failed leaves them to another, and does not look at Redis for them.
ASIDE_SECONDS = 1.5 * TURN_SECONDS

_KEY = "hiddenfeed:chores"


class Turn:
    """The turn as one worker sees it."""

    def __init__(self, client: redis.Redis, worker_name: str) -> None:
        self._worker = worker_name
        self._take = client.register_script(scripts.TAKE_TURN)
        self._end = client.register_script(scripts.END_TURN)
        self._aside_until = float("-inf")

    def mine(self, at: float) -> bool:
        """True if this worker has the turn, or takes it because nobody has; `at` on the monotonic clock."""
        if at < self._aside_until:
            return False
        return bool(self._take(keys=[_KEY], args=[self._worker, int(TURN_SECONDS * 1000)]))

    def end(self) -> None:
        """The worker ends: another may have the turn at once."""
        self._end(keys=[_KEY], args=[self._worker])

    def stand_aside(self, at: float) -> None:
        """Let another have the turn for once: what fails here may work there."""
        self._aside_until = at + ASIDE_SECONDS
