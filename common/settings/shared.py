"""Settings that several roles share: Redis, the store, logs, the queue, the spool."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hiddenfeed.options import MIB

GIB = 1024 * MIB


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one Redis all roles share."""

    redis_url: Annotated[
        str,
        Meta(
            description="Redis URL; rediss:// for TLS, redis://:password@host:port/db for a password",
            extra={"metavar": "url"},
        ),
    ] = "redis://127.0.0.1:6379/0"
    redis_ca_bundle: Annotated[
        str | None, Meta(description="file of CA certificates for rediss://", extra={"metavar": "file"})
    ] = None


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where runs live."""

    store: Annotated[
        str,
        Meta(
            description="root of all runs: s3://bucket/prefix or a folder",
            extra={"required": True, "metavar": "url"},
        ),
    ] = ""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process says while it works."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="least important message shown")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "human", "json"], Meta(description="auto is human on a terminal and json elsewhere")
    ] = "auto"


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs are owned, taken over, tried again and given back."""

    lease_seconds: Annotated[
        int,
        Meta(ge=3, description="a job of a process silent for this long is taken over", extra={"unit": "s"}),
    ] = 45
    heartbeat_seconds: Annotated[
        int,
        Meta(
            ge=1,
            description="how often a process renews its leases; a third of the lease at most",
            extra={"unit": "s"},
        ),
    ] = 10
    maintenance_seconds: Annotated[
        int, Meta(ge=1, description="how often lapsed leases are looked for", extra={"unit": "s"})
    ] = 5
    poll_seconds: Annotated[
        int, Meta(ge=1, le=10, description="longest wait for one pop from a queue", extra={"unit": "s"})
    ] = 1
    grace_seconds: Annotated[
        int,
        Meta(
            ge=0,
            description="after SIGTERM, time for running jobs to finish before they are given back",
            extra={"unit": "s"},
        ),
    ] = 30
    job_attempts: Annotated[
        int, Meta(ge=1, description="attempts of a job that fails for no known reason")
    ] = 4
    job_takeovers: Annotated[
        int,
        Meta(
            ge=1,
            description="a job whose process died this often while it ran is failed, lest it kill them all",
        ),
    ] = 10
    retry_base_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="first delay before a transient failure is tried again; doubled each time",
            extra={"unit": "s"},
        ),
    ] = 1.0
    retry_max_seconds: Annotated[
        float,
        Meta(
            gt=0, description="longest delay before a transient failure is tried again", extra={"unit": "s"}
        ),
    ] = 60.0
    result_ttl_seconds: Annotated[
        int, Meta(ge=60, description="how long a finished job can be looked at", extra={"unit": "s"})
    ] = 24 * 3600
    finished_jobs_max: Annotated[
        int,
        Meta(
            ge=0,
            description="finished jobs of a queue that can be looked at; older ones are forgotten sooner",
        ),
    ] = 1000


class SpoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The folder between a GPU worker and the uploaders of its host."""

    spool: Annotated[
        str,
        Meta(
            description="name of the spool, after which its upload queue is called; made up and kept in its folder when not set",
            pattern="^[A-Za-z0-9_-]{0,60}$",
            extra={"metavar": "name", "form": "letters, digits, _ and -, 60 of them at most"},
        ),
    ] = ""
    spool_dir: Annotated[
        str,
        Meta(
            description="the spool's folder on local disk, shared by the roles of a host",
            extra={"metavar": "folder"},
        ),
    ] = "spool"
    spool_cap_bytes: Annotated[
        int,
        Meta(
            ge=MIB, description="the spool never holds more than this", extra={"unit": "bytes", "live": True}
        ),
    ] = 50 * GIB
    spool_low_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="a spool that was full lets batches be started again once it holds this share of its cap, or less",
            extra={"unit": "%", "live": True},
        ),
    ] = 80
    spool_free_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="disk space the spool leaves free for others",
            extra={"unit": "bytes", "live": True},
        ),
    ] = 2 * GIB
