"""Waiting for a run: step after step until it is stored, stuck or cancelled, whatever goes away meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import redis

from common.eta import estimate
from common.pace import Pace
from common.queues import extract_queue_name
from common.redis_client import clock_of
from common.retry import backoff_seconds
from common.worker.presence import list_workers, serving
from hiddenfeed.errors import TransientError
from hiddenfeed.run import RunDocument
from producer.console import Console
from producer.pace import standing_line
from producer.recording import Recording
from producer.submission import Standing, Submission

#: Between two looks: enough for a person, and nothing for Redis.
POLL_SECONDS = 1.0
_AWAY_MAX_SECONDS = 10.0

#: Waits for the seconds given.
Wait = Callable[[float], object]


def follow(
    submission: Submission, client: redis.Redis, document: RunDocument, console: Console, wait: Wait
) -> Standing:
    """Step until the run is stored, stuck or cancelled; returns how it stands then.

    Outages of Redis and the store are waited out. Raises DataError if the store holds what does not
    belong to the run.
    """
    pace, failures, recording = Pace(), 0, Recording(client, document.run_id)
    while True:
        try:
            standing = submission.step()
            fleet = list_workers(client)
            recording.look(time.monotonic(), standing, fleet)
            clock = clock_of(client)
        except TransientError as error:
            if not failures:
                console.warn(f"waiting: {error}")
            wait(backoff_seconds(failures, base_seconds=1.0, max_seconds=_AWAY_MAX_SECONDS, chance=1.0))
            failures += 1
            continue
        if failures:
            console.say("going on")
            failures = 0
        if standing.stored or standing.stuck or standing.state == "cancelled":
            return standing
        plan = document.plan
        workers = sum(worker.role == "gpu_worker" for worker in fleet)
        pace.look(time.monotonic(), standing.progress)
        at_work = serving(fleet, extract_queue_name(document.run_id))
        left = estimate(submission.record, standing.progress, at_work, clock)
        console.progress(
            partial(
                standing_line, standing, pace, left, tokens=plan.tokens, batches=plan.batches, workers=workers
            )
        )
        wait(POLL_SECONDS)
