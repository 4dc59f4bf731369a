"""The heartbeat thread: renews all leases at once, and sees which jobs were lost or do not end."""

from __future__ import annotations

import time
from threading import Event

import redis

from common.logs import get_logger
from common.redis_client import is_away
from common.settings.catalogue import QueueSettings
from common.worker.lease import Leases
from common.worker.presence import Presence
from common.worker.shutdown import Shutdown
from common.worker.slots import SlotTable

#: How often the thread looks at deadlines, and at news worth a beat of their own.
_TICK_SECONDS = 1.0

log = get_logger("worker")


class Pulse:
    """The beats of one worker."""

    def __init__(
        self,
        leases: Leases,
        table: SlotTable,
        presence: Presence,
        shutdown: Shutdown,
        settings: QueueSettings,
    ) -> None:
        self._leases, self._table, self._presence = leases, table, presence
        self._shutdown, self._settings = shutdown, settings

    def run(self, ended: Event) -> None:
        """Beat until `ended`. While Redis is away, every second, so that no lease lapses for long."""
        next_beat, away = 0.0, False
        while True:
            self.look_at_deadlines(time.monotonic())
            if self._presence.take_change() or time.monotonic() >= next_beat:
                try:
                    self.beat()
                    next_beat, away = time.monotonic() + self._settings.heartbeat_seconds, False
                except redis.RedisError as error:
                    next_beat = time.monotonic() + _TICK_SECONDS
                    if not is_away(error):
                        log.exception("heartbeat failed")
                    elif not away:
                        away = True
                        log.warning("heartbeat waits for Redis", error=error)
            if ended.wait(_TICK_SECONDS):
                return

    def beat(self) -> None:
        """Renew every lease; mark the jobs that are another's by now."""
        slots = self._table.all()
        queue, fields = self._presence.fields(len(slots))
        lost = self._leases.beat([slot.claim for slot in slots], queue, fields)
        for slot in self._table.mark_lost(lost):
            log.warning("lost the lease of a job; its result will be dropped", job=slot.claim.job_id)

    def look_at_deadlines(self, at: float) -> None:
        """A job past its deadline: it is told, and the process drains to be started again."""
        for slot in self._table.mark_hung(at):
            log.error("a job is past its deadline; the process ends", job=slot.claim.job_id)
            slot.context.stopping.set()
            self._shutdown.hang()
