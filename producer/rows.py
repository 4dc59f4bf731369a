"""A row on its way: as its file has it, as what it holds (a conversation, a text or tokens), or as skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hiddenfeed.errors import DataError

#: Why a row is left out, by the filter that did it.
Cause = Literal[
    "malformed",
    "empty",
    "not rendered",
    "no loss mask",
    "too few loss tokens",
    "too short",
    "too long",
    "outside the vocabulary",
    "duplicate id",
    "duplicate content",
]

Message = dict[str, Any]


class RowError(DataError):
    """This row cannot become a sample; the text says why, and `cause` which filter it failed."""

    def __init__(self, reason: str, cause: Cause = "malformed") -> None:
        super().__init__(reason)
        self.cause: Cause = cause


@dataclass(frozen=True)
class Conversation:
    """Messages as chat templates take them: role, content as text, and what else a message carries."""

    messages: list[Message]
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Text:
    """Plain text; nothing in it is anybody's turn."""

    text: str


@dataclass(frozen=True)
class Tokens:
    """A sample tokenised elsewhere: token ids int32[n], and a loss mask uint8[n] if it came with one."""

    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8] | None = field(default=None)


Content = Conversation | Text | Tokens


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as its file has it, not looked at yet."""

    #: Name of the file, as the run's identity and skipped.parquet have it.
    file: str
    #: Number of the row from 0, over all files.
    source_row: int
    #: Where it is in its file, for people: `line 12`, `element 12`, `row 12`.
    place: str
    #: A JSON object as bytes, a record by columns, or what the reader has to say against the row.
    raw: bytes | Mapping[str, Any] | RowError


@dataclass(frozen=True)
class SourceRow:
    """One input row that reads well. `sample_id` is None where the row names none."""

    file: str
    source_row: int
    sample_id: str | None
    content: Content


@dataclass(frozen=True)
class SkippedRow:
    """One input row that does not become a sample, and why."""

    file: str
    source_row: int
    sample_id: str | None
    reason: str
    #: The filter that it failed.
    cause: Cause = "malformed"


def kind_of(value: Any) -> str:
    """What a value of a row is, as one says it."""
    if value is None:
        return "missing"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        bytes: "bytes",
        list: "a list",
        dict: "an object",
        np.ndarray: "a list",
    }
    return names.get(type(value), type(value).__name__)
