"""Samples that were there before: by id, which is given once, and if asked by content."""

from __future__ import annotations

import hashlib

from producer.digest_set import DIGEST_BYTES, DigestSet
from producer.rows import SkippedRow
from producer.samples import Sample


class Duplicates:
    """Sees the samples of a preparation in row order and tells the second of two equal ones.

    A sample that is skipped, for whatever reason, takes no id.
    """

    def __init__(self, *, by_content: bool) -> None:
        """With `by_content` a sample of the same tokens and loss mask as an earlier one is skipped, whatever its id."""
        self._ids = DigestSet()
        self._contents = DigestSet() if by_content else None

    def check(self, file: str, made: Sample | SkippedRow) -> Sample | SkippedRow:
        """The sample itself, or that it is skipped and why; `file` is the one its row is in."""
        if isinstance(made, SkippedRow):
            return made
        name = _digest(made.sample_id.encode("utf-8"))
        if name in self._ids:
            reason = f"id {made.sample_id[:80]!r} is taken by an earlier row; --columns id= numbers the rows instead"
            return SkippedRow(file, made.source_row, made.sample_id, reason, "duplicate id")
        if self._contents is not None and not self._contents.add(
            _digest(made.ids.tobytes(), made.mask.tobytes())
        ):
            reason = "an earlier row has the same tokens and loss mask"
            return SkippedRow(file, made.source_row, made.sample_id, reason, "duplicate content")
        self._ids.add(name)
        return made


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
