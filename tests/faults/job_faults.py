"""Faults of the queue's contents: jobs given out twice, runs submitted twice."""

from __future__ import annotations

from collections.abc import Callable

import redis

from common import rq_keys
from common.queues import extract_job_id, extract_queue_name, upload_queue_name
from common.redis_client import text
from common.rq_keys import JobField
from tests.faults.fault_site import SPOOL
from tests.faults.trial import Fault, Trial

_TIMES = 20


def _spread(trial: Trial, act: Callable[[redis.Redis, str, str], None]) -> None:
    """Do something to jobs that run or wait, a few at a time, over a second or two."""
    queues = (extract_queue_name(trial.run_id), upload_queue_name(SPOOL))
    with trial.site.client as client:
        for _ in range(_TIMES):
            for queue in queues:
                started = [
                    text(member).partition(":")[0]
                    for member in client.zrange(rq_keys.started_key(queue), 0, -1)
                ]
                waiting = [text(job_id) for job_id in client.lrange(rq_keys.queue_key(queue), 0, 3)]
                for job_id in trial.random.sample(started + waiting, min(2, len(started + waiting))):
                    act(client, queue, job_id)
            trial.wait(0.1)


def _push_twice(trial: Trial) -> None:
    """Ids stand on the queue that stand there already, or whose job is being done, or was."""

    def push(client: redis.Redis, queue: str, job_id: str) -> None:
        client.lpush(rq_keys.queue_key(queue), job_id)

    _spread(trial, push)
    done = extract_job_id(trial.run_id, trial.random.randrange(4))
    with trial.site.client as client:
        client.lpush(rq_keys.queue_key(extract_queue_name(trial.run_id)), done)


#: KEYS: job, queue. ARGV: status field, job id. As a tool does that knows nothing of leases.
_REQUEUE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= 'started' then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], 'queued')
redis.call('LPUSH', KEYS[2], ARGV[2])
return 1
"""


def _requeue_running(trial: Trial) -> None:
    """Jobs that are being done are queued again, so that a second worker starts them as well."""

    def requeue(client: redis.Redis, queue: str, job_id: str) -> None:
        keys = [rq_keys.job_key(job_id), rq_keys.queue_key(queue)]
        client.eval(_REQUEUE, len(keys), *keys, JobField.STATUS, job_id)

    _spread(trial, requeue)


def _submit_again(trial: Trial) -> None:
    """Two producers have made the run at the same instant; a third one comes."""
    trial.add_producer()


FAULTS = (
    Fault("job ids pushed twice", _push_twice),
    Fault("running jobs queued again", _requeue_running),
    Fault("two producers at once", _submit_again, times=1, producers=2),
)
