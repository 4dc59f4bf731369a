"""A worker as others see it: its entry in Redis, in rq's form with a few fields more, and reading all of them."""

from __future__ import annotations

import math
import os
import platform
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from datetime import datetime
from threading import Lock
from typing import Any

import msgspec
import redis
from rq.utils import now, utcformat, utcparse
from rq.version import VERSION

from common import rq_keys
from common.redis_client import text, translated


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is alive, or died less than a lease ago."""

    name: str
    role: str
    #: The queue it serves; None while it looks for work.
    queue: str | None
    #: `busy` or `idle`.
    state: str
    #: Why it takes no job though it could; empty when it does.
    waiting: str
    running: int
    slots: int
    finished: int
    failed: int
    #: Seconds of all its jobs together.
    working_seconds: float
    host: str
    pid: int
    #: Seconds since the epoch, by the worker's clock.
    started_at: float
    #: The same by Redis's clock; by the worker's, where its program did not know better.
    last_heartbeat: float


def worker_name(role: str) -> str:
    """`uploader-myhost-4711-3fa9`: unique, readable, and harmless in a key."""
    host = re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname())[:60]
    return f"{role}-{host}-{os.getpid()}-{secrets.token_hex(2)}"


class Presence:
    """What a worker tells of itself. Any thread may change it; the beat writes it."""

    def __init__(self, name: str, role: str) -> None:
        self.name = name
        self._role = role
        self._lock = Lock()
        self._born = now()
        self._queue: str | None = None
        self._waiting = ""
        self._slots = 0
        self._finished = self._failed = 0
        self._working_seconds = 0.0
        self._changed = True

    def serve(self, queue: str | None, waiting: str, slots: int) -> None:
        """What the main loop does now."""
        with self._lock:
            news = (queue, waiting, slots)
            self._changed |= news != (self._queue, self._waiting, self._slots)
            self._queue, self._waiting, self._slots = news

    def count(self, *, failed: bool, seconds: float) -> None:
        """A job ended after `seconds`."""
        with self._lock:
            self._finished += not failed
            self._failed += failed
            self._working_seconds += seconds

    def take_change(self) -> bool:
        """True if something that people wait to see has changed since the last call."""
        with self._lock:
            changed, self._changed = self._changed, False
            return changed

    def fields(self, running: int) -> tuple[str | None, dict[str, str]]:
        """(queue, hash) for a beat with `running` jobs in hand; the names are rq's, `hf_` ones ours."""
        with self._lock:
            return self._queue, {
                "birth": utcformat(self._born),
                "last_heartbeat": utcformat(now()),
                "queues": self._queue or "",
                "pid": str(os.getpid()),
                "hostname": socket.gethostname(),
                "ip_address": "unknown",
                "version": VERSION,
                "python_version": platform.python_version(),
                "state": "busy" if running else "idle",
                "successful_job_count": str(self._finished),
                "failed_job_count": str(self._failed),
                "total_working_time": f"{self._working_seconds:.3f}",
                "hf_role": self._role,
                "hf_waiting": self._waiting,
                "hf_running": str(running),
                "hf_slots": str(self._slots),
            }


def unregister(client: redis.Redis, name: str, queues: set[str]) -> None:
    """Take a worker that ends off all lists."""
    key = rq_keys.worker_key(name)
    with client.pipeline(transaction=True) as pipe:
        pipe.srem(rq_keys.WORKERS, key)
        for queue in queues:
            pipe.srem(rq_keys.queue_workers_key(queue), key)
        pipe.delete(key, rq_keys.worker_executions_key(name))
        pipe.execute()


def move(client: redis.Redis, name: str, old: str) -> None:
    """The worker no longer serves `old`; the next beat enters it for the new queue."""
    client.srem(rq_keys.queue_workers_key(old), rq_keys.worker_key(name))


def forget_dead(client: redis.Redis, queues: list[str]) -> int:
    """Take workers whose entry has expired off all lists; returns how many there were."""
    keys = [text(key) for key in client.smembers(rq_keys.WORKERS)]
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.exists(key)
        dead = [key for key, alive in zip(keys, pipe.execute(), strict=True) if not alive]
        if dead:
            for members in (rq_keys.WORKERS, *map(rq_keys.queue_workers_key, queues)):
                pipe.srem(members, *dead)
            pipe.execute()
    return len(dead)


def list_workers(client: redis.Redis) -> list[WorkerInfo]:
    """All workers of the project, by role and name; raises TransientError when Redis is away."""
    with translated(client):
        keys = sorted(text(key) for key in client.smembers(rq_keys.WORKERS))
        with client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hgetall(key)
            replies = pipe.execute()
    found = [worker_of(key, reply) for key, reply in zip(keys, replies, strict=True)]
    return sorted(filter(None, found), key=lambda info: (info.role, info.name))


def serving(workers: Iterable[WorkerInfo], queue: str) -> list[str]:
    """Names of the GPU workers that serve an extract queue."""
    return [worker.name for worker in workers if worker.role == "gpu_worker" and worker.queue == queue]


def worker_of(key: str, reply: Mapping[Any, Any]) -> WorkerInfo | None:
    """The worker in the hash at `key`; None for no hash, or for a worker of another program."""
    raw = {text(name): text(value) for name, value in reply.items()}
    return _info(key.removeprefix(rq_keys.worker_key("")), raw) if raw.get("hf_role") else None


def _info(name: str, raw: dict[str, str]) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        role=raw["hf_role"],
        queue=raw.get("queues") or None,
        state=raw.get("state", ""),
        waiting=raw.get("hf_waiting", ""),
        running=_whole(raw.get("hf_running")),
        slots=_whole(raw.get("hf_slots")),
        finished=_whole(raw.get("successful_job_count")),
        failed=_whole(raw.get("failed_job_count")),
        working_seconds=_number(raw.get("total_working_time")),
        host=raw.get("hostname", ""),
        pid=_whole(raw.get("pid")),
        started_at=_moment(raw.get("birth")),
        last_heartbeat=_number(raw.get("hf_heard_at")) or _moment(raw.get("last_heartbeat")),
    )


#: Longer numbers are none of ours.
_MOST_DIGITS = 19


def _whole(value: str | None) -> int:
    known = value is not None and value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS
    return int(value) if known and value is not None else 0


def _number(value: str | None) -> float:
    try:
        number = float(value or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _moment(value: str | None) -> float:
    try:
        moment: datetime = utcparse(value or "")
    except ValueError:
        return 0.0
    return moment.timestamp()
