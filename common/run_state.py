"""What Redis remembers of runs: which there are, whether they may be worked on, how far they are.

For workers that look for work and for people. The store is the ledger; all of this may be lost at
any moment and the run still ends right. Every function raises TransientError when Redis is away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import msgspec
import redis

from common.progress_records import FoundBatch, Progress, UploaderProgress, WorkerProgress
from common.redis_client import text, translated
from common.run_progress import (
    RUN_TTL_SECONDS,
    ask_progress,
    note_found,
    note_stored,
    parse_progress,
    progress_keys,
    read_progress,
)
from hiddenfeed.errors import ConfigError, DataError
from hiddenfeed.layout import check_run_id

RunStateName = Literal["active", "paused", "cancelled", "complete"]

__all__ = [
    "RUNS_INDEX",
    "RUN_TTL_SECONDS",
    "FoundBatch",
    "Progress",
    "RunRecord",
    "RunStateName",
    "UploaderProgress",
    "WorkerProgress",
    "ask_progress",
    "decode_record",
    "forget_run",
    "get_run",
    "in_order",
    "list_runs",
    "note_found",
    "note_stored",
    "parse_progress",
    "read_progress",
    "register_run",
    "run_key",
    "set_run_priority",
    "set_run_state",
]

RUNS_INDEX = "hiddenfeed:runs"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was submitted."""

    run_id: str
    state: RunStateName = "active"
    #: What to load: a hub id or a folder. Workers prefer the run whose model they have.
    model: str
    samples: int
    tokens: int
    batches: int
    #: Sum of squared lengths of all samples; 0 if the producer did not say.
    squares: int = 0
    #: What is kept of a token, by name: `tap 2,tap 18`; empty if the producer did not say.
    states: str = ""
    #: Seconds since the epoch; the oldest run is served first.
    submitted_at: float
    #: Higher is served before older.
    priority: int = 0


def register_run(client: redis.Redis, record: RunRecord) -> RunRecord:
    """Make the run known; returns the record now in force.

    For a run that is known already, its state, priority and time of submission stay: a producer
    that starts again does not undo a pause.
    """
    fields = msgspec.to_builtins(record)
    kept = {name: fields.pop(name) for name in ("state", "priority", "submitted_at")}
    key = run_key(record.run_id)
    with translated(client), client.pipeline(transaction=True) as pipe:
        for name, value in kept.items():
            pipe.hsetnx(key, name, value)
        pipe.hset(key, mapping=fields)
        pipe.expire(key, RUN_TTL_SECONDS)
        pipe.sadd(RUNS_INDEX, record.run_id)
        pipe.hgetall(key)
        stored = decode_record(pipe.execute()[-1])
    assert stored is not None
    return stored


def list_runs(client: redis.Redis) -> list[RunRecord]:
    """All known runs in the order in which workers serve them: priority, then age.

    What is in the index without a record that can be read is taken out of it.
    """
    with translated(client):
        run_ids = sorted(text(run_id) for run_id in client.smembers(RUNS_INDEX))
        with client.pipeline(transaction=False) as pipe:
            for run_id in run_ids:
                pipe.hgetall(run_key(run_id))
            records = [_decode_reply(reply) for reply in pipe.execute(raise_on_error=False)]
        gone = [run_id for run_id, record in zip(run_ids, records, strict=True) if record is None]
        if gone:
            client.srem(RUNS_INDEX, *gone)
    return in_order(record for record in records if record is not None)


def in_order(records: Iterable[RunRecord]) -> list[RunRecord]:
    """As workers serve them: by priority, then age."""
    return sorted(records, key=lambda record: (-record.priority, record.submitted_at, record.run_id))


def get_run(client: redis.Redis, run_id: str) -> RunRecord | None:
    """The run, or None if Redis does not know it."""
    with translated(client):
        return decode_record(client.hgetall(run_key(run_id)))


def set_run_state(client: redis.Redis, run_id: str, state: RunStateName) -> RunRecord:
    """Change a run's state; raises ConfigError if there is no such run."""
    if state not in get_args(RunStateName):
        raise ConfigError(f"{state!r} is not a state of a run: {', '.join(get_args(RunStateName))}")
    return _change(client, run_id, "state", state)


def pause_run(client: redis.Redis, run_id: str, *, paused: bool) -> RunRecord:
    """Pause a run or let it go on; raises ConfigError if there is no such run, or if it is over."""
    record = get_run(client, run_id)
    if record is not None and record.state == "complete":
        raise ConfigError(
            f"run {run_id} is complete: there is nothing left to {'pause' if paused else 'resume'}"
        )
    if record is not None and record.state == "cancelled" and paused:
        raise ConfigError(f"run {run_id} is cancelled: there is nothing to pause")
    return set_run_state(client, run_id, "paused" if paused else "active")


def set_run_priority(client: redis.Redis, run_id: str, priority: int) -> RunRecord:
    """Change a run's priority; raises ConfigError if there is no such run."""
    return _change(client, run_id, "priority", priority)


def forget_run(client: redis.Redis, run_id: str) -> None:
    """Delete the run and its progress from Redis; its queue is `common.queues.drop_queue`'s."""
    with translated(client), client.pipeline(transaction=True) as pipe:
        pipe.delete(run_key(run_id), *progress_keys(run_id))
        pipe.srem(RUNS_INDEX, run_id)
        pipe.execute()


#: A plain HSET would bring a forgotten run back as a fragment.
_CHANGE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""


def _change(client: redis.Redis, run_id: str, field: str, value: str | int) -> RunRecord:
    with translated(client):
        changed = client.eval(_CHANGE, 1, run_key(run_id), field, str(value), str(RUN_TTL_SECONDS))
    record = get_run(client, run_id) if changed else None
    if record is None:
        raise ConfigError(f"there is no run {run_id!r} in Redis; `python -m producer runs` lists them")
    return record


def run_key(run_id: str) -> str:
    """Hash of a run's record."""
    return f"hiddenfeed:run:{run_id}"


def _decode_reply(reply: Any) -> RunRecord | None:
    """As `decode_record`; None as well for a key of another kind, put there by somebody else: no run."""
    if isinstance(reply, redis.ResponseError) and str(reply).startswith("WRONGTYPE"):
        return None
    if isinstance(reply, Exception):
        raise reply
    return decode_record(reply)


def decode_record(raw: Mapping[bytes | str, bytes | str]) -> RunRecord | None:
    """The record in a hash; None for no hash, or for one that another version or program wrote."""
    try:
        record = msgspec.convert(
            {text(name): text(value) for name, value in raw.items()}, RunRecord, strict=False
        )
        check_run_id(record.run_id)
    except (msgspec.ValidationError, DataError):
        return None
    return record
