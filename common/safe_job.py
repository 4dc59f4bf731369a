"""What a job may ask for: one function of the worker's own list, with one JSON object. Nothing else.

Redis is not trusted. A job's hash is read field by field here, never by rq, which would import
functions, callbacks and webhooks by the names it finds.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import msgspec
from rq.job import Job

from common.redis_client import text
from common.rq_keys import JobField
from common.serializer import JsonSerializer
from hiddenfeed.errors import PermanentError

#: A message is a few hundred bytes; what inflates to more than this is not one.
MAX_CALL_BYTES = 1024 * 1024

#: Fields with which rq would run or ask for something besides the function.
_FORBIDDEN = (
    "success_callback_name",
    "failure_callback_name",
    "stopped_callback_name",
    "webhooks",
    "dependency_id",
    "dependency_ids",
    "repeats_left",
    "rate_limit_key",
)


class Call(msgspec.Struct, frozen=True):
    """A job's call after every check."""

    function: str
    #: The one argument, decoded from JSON and not yet validated as a message.
    payload: Any


class SafeJob(Job):
    """rq's job as a record only: it has no function, callbacks or webhooks, whatever its hash says."""

    @property
    def func(self) -> NoReturn:
        """Jobs run through `common.worker` alone."""
        raise PermanentError(f"job {self.id} cannot be run outside of a worker")

    @property
    def success_callback(self) -> None:
        """None, always."""
        return None

    @property
    def failure_callback(self) -> None:
        """None, always."""
        return None

    @property
    def stopped_callback(self) -> None:
        """None, always."""
        return None

    def restore(self, raw_data: Any) -> None:
        """Read the hash as rq does, without its webhooks."""
        super().restore(
            {name: value for name, value in raw_data.items() if name not in (b"webhooks", "webhooks")}
        )


def parse_call(raw: Mapping[bytes, bytes], allowed: Collection[str]) -> Call:
    """The call in a job's hash; raises PermanentError naming what is not allowed about it."""
    for name in _FORBIDDEN:
        if raw.get(name.encode(), b"") not in (b"", b"[]", b"0"):
            raise PermanentError(f"the job sets {name}, which is not allowed")
    call = _decode(raw.get(JobField.DATA.encode(), b""))
    if not isinstance(call, list) or len(call) != 4:
        raise PermanentError(
            "the job's data is not a call: a list of function, instance, arguments, keywords"
        )
    function, instance, arguments, keywords = call
    if not isinstance(function, str) or function not in allowed:
        raise PermanentError(
            f"the job names the function {_shown(function)}; this worker runs {', '.join(sorted(allowed))}"
        )
    if instance is not None or keywords != {}:
        raise PermanentError("the job carries an instance or keyword arguments, which is not allowed")
    if not isinstance(arguments, list) or len(arguments) != 1:
        raise PermanentError("the job must have exactly one argument, its message")
    return Call(function, arguments[0])


def _decode(data: bytes) -> Any:
    """JSON in `data`, plain or compressed as rq's tools write it back."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, MAX_CALL_BYTES + 1)
    except zlib.error:
        plain = data
    if len(plain) > MAX_CALL_BYTES:
        raise PermanentError(f"the job's data is larger than {MAX_CALL_BYTES:,} bytes")
    try:
        return JsonSerializer.loads(plain)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise PermanentError(f"the job's data is not JSON; it starts with {text(plain[:20])!r}") from None


def _shown(function: Any) -> str:
    return repr(function if len(str(function)) <= 100 else str(function)[:100] + "…")
