"""Housekeeping of all queues, by whichever worker has the turn: due retries, lapsed leases, strays, old jobs.

Each chore is one script, so any number of workers may do it at once: the turn is no lock, it only
spares Redis the same question from every worker.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Event
from typing import Any

import redis

from common import rq_keys
from common.logs import get_logger
from common.queues import queue_names
from common.redis_client import is_away, text
from common.settings.catalogue import QueueSettings
from common.worker import presence, scripts
from common.worker.lease import Claim
from common.worker.settle import Settler
from common.worker.turn import ASIDE_SECONDS, Turn
from common.worker.verdict import Fail
from hiddenfeed.errors import TransientError
from hiddenfeed.words import count_text

#: How often retries that are due are looked for.
TICK_SECONDS = 1.0
#: Workers that were started together must not come together: a tick is this much shorter or longer.
_JITTER = 0.2
#: Jobs that one script looks at.
_LIMIT = 500

log = get_logger("worker")


class Patience:
    """When lapsed leases may be acted on.

    After an outage, of Redis or of this process, every lease looks lapsed until its owner has had
    one beat to renew it.
    """

    def __init__(self, settings: QueueSettings, at: float) -> None:
        self._beat = float(settings.heartbeat_seconds)
        self._last_tick = at
        self._until = at

    def tick(self, at: float) -> None:
        """A round begins; `at` on a clock that goes on while the machine sleeps."""
        if at - self._last_tick > TICK_SECONDS * 2 + self._beat or at < self._last_tick - self._beat:
            self.trouble(at)
        self._last_tick = at

    def trouble(self, at: float) -> None:
        """Owners could not beat until `at`."""
        self._until = at + self._beat + TICK_SECONDS

    def outage(self, at: float) -> None:
        """Redis is away, and may be until this worker, which stands aside now, looks again."""
        self.trouble(at + ASIDE_SECONDS + TICK_SECONDS * (1 + _JITTER))

    def over(self, at: float, server_up_seconds: float) -> bool:
        """True if every owner has had the time for a beat."""
        return at >= self._until and server_up_seconds > self._beat + TICK_SECONDS


class Chores:
    """The rounds of one worker."""

    def __init__(self, client: redis.Redis, settler: Settler, turn: Turn, settings: QueueSettings) -> None:
        self._client, self._settler, self._turn, self._settings = client, settler, turn, settings
        self._promote = client.register_script(scripts.PROMOTE)
        self._recover = client.register_script(scripts.RECOVER)
        self._unpop = client.register_script(scripts.UNPOP)
        self._trim = client.register_script(scripts.TRIM)
        self._strays: dict[tuple[str, str], float] = {}
        self._maintained = float("-inf")

    def run(self, ended: Event) -> None:
        """Rounds until `ended`, while the turn is ours; outages are waited out."""
        patience = Patience(self._settings, time.time())
        away = False
        while not ended.wait(TICK_SECONDS * random.uniform(1 - _JITTER, 1 + _JITTER)):
            patience.tick(time.time())
            try:
                if self._turn.mine(time.monotonic()):
                    self.round(patience)
                else:
                    # What lay there when we last looked need not have lain there since.
                    self._strays.clear()
                away = False
            except (redis.RedisError, TransientError) as error:
                if isinstance(error, redis.RedisError) and not is_away(error):
                    log.exception("a chore failed; the next round tries again")
                elif not away:
                    away = True
                    log.warning("chores wait for Redis", error=error)
                patience.outage(time.time())
                self._turn.stand_aside(time.monotonic())

    def round(self, patience: Patience) -> None:
        """Promote due retries; every `maintenance_seconds` also look for what was left behind."""
        names = queue_names(self._client)
        for name in names:
            _all(self.promote, name)
        at, next_tick = time.monotonic(), TICK_SECONDS * (1 + _JITTER)
        if at + next_tick < self._maintained + self._settings.maintenance_seconds:
            return
        up_seconds = float(self._client.info("server")["uptime_in_seconds"])
        if not patience.over(time.time(), up_seconds):
            return
        self._maintained = at
        for name in names:
            _all(self.recover, name)
            _all(self.trim, name)
        presence.forget_dead(self._client, names)
        self.put_back_strays(names, at)

    def promote(self, name: str) -> int:
        """Queue the jobs whose delay is over; returns how many."""
        keys = [rq_keys.scheduled_key(name), rq_keys.queue_key(name), rq_keys.QUEUES]
        return int(self._promote(keys=keys, args=[rq_keys.job_key(""), _LIMIT]))

    def recover(self, name: str) -> int:
        """Put the jobs of silent processes back at the head, no attempt used; returns how many."""
        keys = [rq_keys.started_key(name), rq_keys.queue_key(name), rq_keys.QUEUES]
        before, after = rq_keys.worker_executions_key("\n").split("\n")
        arguments: list[Any] = [
            rq_keys.job_key(""),
            rq_keys.execution_key("", "").removesuffix(":"),
            rq_keys.job_executions_key(""),
            before,
            after,
            self._settings.job_takeovers,
            _LIMIT,
        ]
        back, dangerous = self._recover(keys=keys, args=arguments)
        for member in back:
            log.warning("took over the job of a silent process", job=text(member).partition(":")[0])
        for member in dangerous:
            self._fail_dangerous(name, text(member))
        return len(back)

    def _fail_dangerous(self, name: str, member: str) -> None:
        job_id, _, execution_id = member.rpartition(":")
        reason = (
            f"its process died or fell silent {count_text(self._settings.job_takeovers, 'time')} while the job ran; "
            "it may be what kills them"
        )
        log.error("failed a dangerous job", job=job_id, why=reason)
        claim = Claim(name, job_id, execution_id, {})
        self._settler.fail(claim, Fail(reason, reason), datetime.now(UTC))

    def put_back_strays(self, names: list[str], at: float) -> int:
        """Requeue ids that lay popped and unclaimed for a beat; `at` on the monotonic clock. Returns how many."""
        seen: dict[tuple[str, str], float] = {}
        for name in names:
            for entry in self._client.lrange(rq_keys.intermediate_key(name), 0, -1):
                stray = (name, text(entry))
                seen[stray] = self._strays.get(stray, at)
        moved = 0
        for (name, job_id), since in seen.items():
            if at - since >= self._settings.heartbeat_seconds:
                keys = [rq_keys.intermediate_key(name), rq_keys.queue_key(name), rq_keys.job_key(job_id)]
                put_back = int(self._unpop(keys=keys, args=[job_id]))
                moved += put_back
                log.warning(
                    "found an id that was popped and never started", job=job_id, put_back=bool(put_back)
                )
        self._strays = seen
        return moved

    def trim(self, name: str) -> int:
        """Forget finished jobs beyond the newest few; returns how many."""
        keys = [rq_keys.finished_key(name), rq_keys.failed_key(name)]
        arguments: list[Any] = [
            self._settings.finished_jobs_max,
            rq_keys.job_key(""),
            rq_keys.results_key(""),
            _LIMIT,
        ]
        return int(self._trim(keys=keys, args=arguments))


def _all(chore: Callable[[str], int], name: str) -> None:
    """A chore does a limited number of jobs at a time: do it until there are no more."""
    while chore(name) >= _LIMIT:
        continue
