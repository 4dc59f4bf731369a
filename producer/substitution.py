"""Marks that stood in for what was said: what a template put around them, and what was said found between that."""

from __future__ import annotations

from collections.abc import Sequence

from producer.chat_template import CLOSING, OPENING, Span


def around_marks(marked: str, turns: Sequence[int]) -> list[str] | None:
    """What stands before, between and behind the marks of some turns; None if they are not there, each once, in order."""
    first, *pieces = marked.split(OPENING)
    around = [first]
    for turn, piece in zip(turns, pieces, strict=False):
        number, _, behind = piece.partition(CLOSING)
        if number != str(turn):
            return None
        around.append(behind)
    marks = len(turns)
    return around if len(pieces) == marks == marked.count(CLOSING) else None


def place_of(text: str, start: int, content: str, after: str) -> Span | None:
    """Where `content`, perhaps trimmed, stands in `text` from `start`, followed by `after`."""
    for variant in (content, content.strip(), content.rstrip(), content.lstrip()):
        if text.startswith(variant + after, start):
            return start, start + len(variant)
    return None
