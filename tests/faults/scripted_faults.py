"""What a scripted S3 server can be told to do wrong, and what a server of another make may lack."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class Fail:
    """Read the request and reply with an error."""

    status: int
    code: str


@dataclass(frozen=True)
class Foreign:
    """Read the request and answer like something that is no S3 server: this and no more."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CutBody:
    """Reset the connection after some of the body."""

    after_bytes: int


@dataclass(frozen=True)
class CutReply:
    """Close the connection after some of the reply's body."""

    after_bytes: int


@dataclass(frozen=True)
class LoseReply:
    """Do what was asked, then reset the connection."""


@dataclass(frozen=True)
class StopReading:
    """Neither read the body nor reply, until the server closes."""


@dataclass(frozen=True)
class Hang:
    """Read the request and never reply, until the server closes."""


@dataclass(frozen=True)
class Forget:
    """Reply that all is well, and store nothing."""


@dataclass(frozen=True)
class Ignore:
    """Reply that all is well, and do nothing: the parts of an upload stay as they are."""


@dataclass(frozen=True)
class Corrupt:
    """Reply that all is well, and store other bytes."""


@dataclass(frozen=True)
class Trickle:
    """Read the body so slowly that it does not end, a little now and then, until the server closes."""

    pause_seconds: float = 0.02


@dataclass(frozen=True)
class RefuseEarly:
    """Reply with an error before the body is read, and close."""

    status: int
    code: str


@dataclass(frozen=True)
class Hold:
    """Read the request, and behave once the event is set."""

    until: threading.Event


@dataclass(frozen=True)
class Together:
    """Read the request, and behave once as many others are there as the barrier wants."""

    barrier: threading.Barrier


@dataclass(frozen=True)
class TakeAlong:
    """Give up an upload in parts, and take away the object of its key with it, as some servers did."""


@dataclass(frozen=True)
class Well:
    """Behave, this once."""


Fault = (
    Fail
    | Foreign
    | CutBody
    | CutReply
    | LoseReply
    | StopReading
    | Hang
    | Forget
    | Ignore
    | Corrupt
    | Trickle
    | RefuseEarly
    | Hold
    | Together
    | TakeAlong
    | Well
)


class Lack(Enum):
    """What a server of another make may not do."""

    #: Takes every body, whatever its checksum, and tells none.
    CHECKSUMS = "checksums"
    #: Replaces what is there.
    CONDITIONS = "conditions"
    #: Wants a checksum with every part.
    BARE_PARTS = "bare parts"
    #: Does not tell the checksums of parts.
    PART_CHECKSUMS = "part checksums"
    #: Finds a bucket by the host's name alone.
    PATHS = "paths"
    #: Finds a bucket by the path alone.
    HOSTS = "hosts"
