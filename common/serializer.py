"""The only serializer of the queue: JSON, so that nothing read from Redis can run code."""

from __future__ import annotations

from typing import Any

import msgspec


class JsonSerializer:
    """What rq calls a serializer. Structs are written as objects and come back as plain dicts."""

    @staticmethod
    def dumps(value: Any) -> bytes:
        """JSON text of `value`; raises TypeError for what JSON cannot carry."""
        return msgspec.json.encode(value)

    @staticmethod
    def loads(data: bytes) -> Any:
        """The value in JSON text; raises msgspec.DecodeError for anything else, a pickle included."""
        return msgspec.json.decode(data)
