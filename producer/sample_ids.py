"""The name of each sample: the row's own id, or `row-<n>`; each is given once."""

from __future__ import annotations

import hashlib
import re

from producer.rows import RowError

_ROW_ID = re.compile(r"row-(0|[1-9]\d{0,17})")


class SampleIds:
    """Hands out sample ids in row order and refuses the second of two equal ones.

    Own ids are remembered as 128-bit hashes, about 100 bytes each; made ones as one bit per row.
    """

    def __init__(self) -> None:
        self._own: set[bytes] = set()
        self._made = bytearray()

    def claim(self, source_row: int, own_id: str | None) -> str:
        """The sample's id; raises RowError if an earlier sample has it."""
        sample_id = own_id if own_id is not None else f"row-{source_row}"
        digest = hashlib.blake2b(sample_id.encode("utf-8"), digest_size=16).digest()
        if digest in self._own or self._was_made(sample_id):
            raise RowError(f"id {sample_id[:80]!r} is taken by an earlier row")
        if own_id is not None:
            self._own.add(digest)
        else:
            self._remember_made(source_row)
        return sample_id

    def _was_made(self, sample_id: str) -> bool:
        match = _ROW_ID.fullmatch(sample_id)
        row = int(match[1]) if match else 0
        return (
            match is not None and row // 8 < len(self._made) and bool(self._made[row // 8] >> (row % 8) & 1)
        )

    def _remember_made(self, row: int) -> None:
        self._made.extend(bytes(max(0, row // 8 + 1 - len(self._made))))
        self._made[row // 8] |= 1 << (row % 8)
