"""The servers of a single machine: started or found running, ready when a call returns."""

from __future__ import annotations

from pathlib import Path

from standalone.redis_server import RedisServer, start_redis, stop_redis
from standalone.s3_server import S3Server, start_s3, stop_s3

__all__ = [
    "RedisServer",
    "S3Server",
    "redis_folder",
    "s3_folder",
    "start_redis",
    "start_s3",
    "stop_all",
    "stop_redis",
    "stop_s3",
]


def redis_folder(home: Path) -> Path:
    """Where the Redis server of a home lives."""
    return home / "redis"


def s3_folder(home: Path) -> Path:
    """Where the S3 server of a home lives."""
    return home / "s3"


def stop_all(home: Path) -> None:
    """End the servers of a home that run; no error if there are none."""
    stop_redis(redis_folder(home))
    stop_s3(s3_folder(home))
