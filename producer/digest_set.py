"""A set of 128-bit digests in one block of memory: 21 to 43 bytes each, where Python's own takes about 100."""

from __future__ import annotations

DIGEST_BYTES = 16
_FIRST_SLOTS = 1024
_EMPTY = bytes(DIGEST_BYTES)


class DigestSet:
    """Open addressing with linear probing, at most three quarters full; digests are random, so probes are short.

    The digest of 16 zero bytes cannot be told from a free slot; nothing has it.
    """

    def __init__(self) -> None:
        self._slots = bytearray(_FIRST_SLOTS * DIGEST_BYTES)
        self._mask = _FIRST_SLOTS - 1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, digest: bytes) -> bool:
        place = self._place(digest)
        return self._slots[place : place + DIGEST_BYTES] == digest

    def add(self, digest: bytes) -> bool:
        """Remember a digest; False if it was there already."""
        place = self._place(digest)
        if self._slots[place : place + DIGEST_BYTES] == digest:
            return False
        self._slots[place : place + DIGEST_BYTES] = digest
        self._count += 1
        if self._count * 4 > (self._mask + 1) * 3:
            self._grow()
        return True

    def _place(self, digest: bytes) -> int:
        """Where in the block the digest is, or would be."""
        slot = int.from_bytes(digest[:8], "little") & self._mask
        while True:
            place = slot * DIGEST_BYTES
            there = self._slots[place : place + DIGEST_BYTES]
            if there in (digest, _EMPTY):
                return place
            slot = (slot + 1) & self._mask

    def _grow(self) -> None:
        old = self._slots
        self._mask = 2 * self._mask + 1
        self._slots = bytearray((self._mask + 1) * DIGEST_BYTES)
        for start in range(0, len(old), DIGEST_BYTES):
            digest = bytes(old[start : start + DIGEST_BYTES])
            if digest != _EMPTY:
                place = self._place(digest)
                self._slots[place : place + DIGEST_BYTES] = digest
