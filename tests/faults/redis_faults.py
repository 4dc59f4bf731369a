"""Faults of Redis: killed, away, standing still, forgetful, and dropping connections."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import redis

from common.queues import extract_queue_name, upload_queue_name
from common.rq_keys import intermediate_key, queue_key, scheduled_key, started_key
from tests.faults.fault_site import LEASE_SECONDS, SPOOL
from tests.faults.trial import Fault, Trial

_DROPS = 15
_JUMP_SECONDS = 3600


def _restart(trial: Trial) -> None:
    trial.site.kill_redis()
    trial.site.start_redis()


def _away(trial: Trial) -> None:
    trial.site.kill_redis()
    trial.wait(trial.outage_seconds())
    trial.site.start_redis()


def _away_for_a_minute(trial: Trial) -> None:
    trial.site.kill_redis()
    trial.wait(60.0)
    trial.site.start_redis()


def _stand_still(trial: Trial) -> None:
    """It holds every connection and answers nobody; when it goes on, every lease has lapsed by its clock."""
    server = trial.site.redis_server.pid
    os.kill(server, signal.SIGSTOP)
    trial.wait(min(trial.outage_seconds(), 25.0))
    os.kill(server, signal.SIGCONT)


def _refuse(begin: tuple[str, ...], end: tuple[str, ...]) -> Callable[[Trial], None]:
    """It is up and answers, and takes no writes."""

    def inject(trial: Trial) -> None:
        with trial.site.client as client:
            client.execute_command(*begin)
            trial.wait(trial.outage_seconds())
            client.execute_command(*end)

    return inject


def _wipe(trial: Trial) -> None:
    with trial.site.client as client:
        client.flushall()


def _forget_lists(trial: Trial) -> None:
    """Jobs stay, and lists and registries that say where they are go: nobody will come for them."""
    kinds = (queue_key, intermediate_key, started_key, scheduled_key)
    queues = (extract_queue_name(trial.run_id), upload_queue_name(SPOOL))
    with trial.site.client as client:
        for queue in queues:
            client.delete(*(kind(queue) for kind in trial.random.sample(kinds, 3)))


def _wipe_and_submit(trial: Trial) -> None:
    """The producer is gone when it happens; started again, it submits again."""
    trial.strike("producer", signal.SIGKILL)
    _wipe(trial)


def _drop_connections(trial: Trial) -> None:
    with trial.site.client as client:
        for _ in range(_DROPS):
            client.client_kill_filter(_type="normal", skipme=True)
            trial.wait(trial.random.uniform(0.05, 0.2))


def _jump(trial: Trial) -> None:
    """Redis's clock jumps an hour ahead: the leases of all who are well have lapsed by it.

    Leases are the only thing that lives by this clock, so moving them back is the same.
    """
    queues = (extract_queue_name(trial.run_id), upload_queue_name(SPOOL))
    with trial.site.client as client:
        for queue in queues:
            for member in client.zrange(started_key(queue), 0, -1):
                _move_back(client, started_key(queue), member)
    trial.wait(LEASE_SECONDS)


def _move_back(client: redis.Redis, key: str, member: bytes) -> None:
    """In one step, and never bringing back a lease that has ended meanwhile."""
    script = (
        "if redis.call('ZSCORE', KEYS[1], ARGV[1]) then redis.call('ZINCRBY', KEYS[1], ARGV[2], ARGV[1]) end"
    )
    client.eval(script, 1, key, member, str(-_JUMP_SECONDS))


FAULTS = (
    Fault("Redis restarted", _restart),
    Fault("Redis away", _away),
    Fault("Redis away for a minute", _away_for_a_minute, times=1),
    # A command whose Redis is not there ends with 75, for its supervisor to try again.
    Fault("Redis away, early", _away, times=1, early=True, own_ends=frozenset({75})),
    Fault("Redis standing still", _stand_still),
    Fault(
        "Redis out of memory",
        _refuse(("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    ),
    # What a server is before a failover has come to its end.
    Fault("Redis is a replica", _refuse(("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"))),
    Fault("Redis forgets lists", _forget_lists, forgets_files=True),
    Fault("Redis wiped", _wipe, forgets_files=True),
    Fault("Redis wiped, submit again", _wipe_and_submit, forgets_files=True),
    Fault("Redis drops connections", _drop_connections),
    Fault("Redis clock jumps", _jump),
)
