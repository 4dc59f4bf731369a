"""One round trip to Redis: questions are collected, asked together, and answered part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import redis
from redis.client import Pipeline

from common.redis_client import text

#: What is not there, by the command that asks for it: stands in for a key that holds something of another kind.
_NOTHING: MappingProxyType[str, Any] = MappingProxyType(
    {"HGETALL": {}, "SMEMBERS": (), "LRANGE": (), "LLEN": 0, "ZCARD": 0}
)
#: Characters of a key's name that are shown.
_LONGEST_KEY = 200

PartT = TypeVar("PartT")


class Trip:
    """Collect with `ask`, then `go` once."""

    def __init__(self, client: redis.Redis, foreign: set[str]) -> None:
        """Names of keys under our names that hold something else are added to `foreign`."""
        self._pipe = client.pipeline(transaction=False)
        self._foreign = foreign
        self._replies: list[Any] = []
        self._asked = 0

    def ask(
        self, add: Callable[[Pipeline], int], parse: Callable[[Sequence[Any]], PartT]
    ) -> Callable[[], PartT]:
        """`add` puts commands into the pipeline and says how many; the result gives their answer after `go`."""
        start = self._asked
        self._asked = end = start + add(self._pipe)
        return lambda: parse(self._replies[start:end])

    def go(self) -> None:
        """Ask. A key of another kind is read as if it were not there; raises the client's other errors."""
        with self._pipe as pipe:
            commands = [arguments for arguments, _ in pipe.command_stack]
            replies = pipe.execute(raise_on_error=False) if commands else []
        self._replies = [
            self._checked(arguments, reply) for arguments, reply in zip(commands, replies, strict=True)
        ]

    def _checked(self, arguments: Sequence[Any], reply: Any) -> Any:
        if isinstance(reply, redis.ResponseError) and str(reply).startswith("WRONGTYPE"):
            self._foreign.add(text(arguments[1])[:_LONGEST_KEY])
            return _NOTHING[arguments[0]]
        if isinstance(reply, Exception):
            raise reply
        return reply
