"""What an object under our key is to us, told from a HEAD without knowing who wrote it: pure.

An object tells in its metadata which size and checksum it was meant to have. So it can be judged
whole or damaged whoever wrote it, and compared with the file in hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from hiddenfeed.store.base import ObjectInfo

_DECLARED_CHECKSUM = "hiddenfeed-checksum"
_DECLARED_SIZE = "hiddenfeed-size"


class Verdict(Enum):
    """What an object under our key is to us."""

    MISSING = "missing"
    SAME = "same"
    OTHER = "other"
    DAMAGED = "damaged"


def judge(found: ObjectInfo | None, size_bytes: int, checksum: str) -> Verdict:
    """Compare what the store holds with what we have, and with what it was meant to be."""
    if found is None:
        return Verdict.MISSING
    declared_size = found.metadata.get(_DECLARED_SIZE)
    declared_checksum = found.metadata.get(_DECLARED_CHECKSUM)
    if declared_size is not None and declared_size != str(found.size_bytes):
        return Verdict.DAMAGED
    if found.checksum is not None and declared_checksum is not None:
        comparable = _algorithm(found.checksum) == _algorithm(declared_checksum)
        if comparable and found.checksum != declared_checksum:
            return Verdict.DAMAGED
    # A store that keeps no checksum is judged by what it was told, and by the size.
    known = {found.checksum, declared_checksum} - {None}
    same = found.size_bytes == size_bytes and (not known or checksum in known)
    return Verdict.SAME if same else Verdict.OTHER


def needs_reading(found: ObjectInfo | None, size_bytes: int, checksum: str, *, compared: bool) -> bool:
    """Whether only its bytes tell what an object is to us: what it was meant to be is no proof of what it is.

    `compared` is whether somebody is known to have compared its bytes with our checksum.
    """
    if found is None or found.size_bytes != size_bytes:
        return False
    if found.checksum is not None and _algorithm(found.checksum) == _algorithm(checksum):
        return False
    verdict = judge(found, size_bytes, checksum)
    undeclared = _DECLARED_CHECKSUM not in found.metadata
    return (verdict is Verdict.SAME and not compared) or (verdict is Verdict.OTHER and undeclared)


def told_checksums(found: ObjectInfo) -> list[str]:
    """The checksum that the store keeps of an object and the one that it was meant to have, as far as they are told."""
    told = (found.checksum, found.metadata.get(_DECLARED_CHECKSUM))
    return sorted({checksum for checksum in told if checksum is not None})


def is_whole(found: ObjectInfo) -> bool:
    """Whether an object is what it says it was meant to be; False if it does not say."""
    checksum = found.metadata.get(_DECLARED_CHECKSUM)
    told = checksum is not None and _DECLARED_SIZE in found.metadata
    return told and judge(found, found.size_bytes, checksum or "") is Verdict.SAME


def proves_itself(found: ObjectInfo) -> bool:
    """Whether the store's own checksum of an object is the one that it was meant to have."""
    return is_whole(found) and found.checksum == found.metadata[_DECLARED_CHECKSUM]


def declared(size_bytes: int, checksum: str, metadata: Mapping[str, str] | None = None) -> dict[str, str]:
    """An object's metadata, with the size and checksum it is meant to have."""
    return {**(metadata or {}), _DECLARED_SIZE: str(size_bytes), _DECLARED_CHECKSUM: checksum}


def _algorithm(checksum: str) -> str:
    return checksum.partition(":")[0]
