"""What one input row says: its shape recognised by column, its content checked and normalised.

Every failure here concerns one row and is a `RowError`, whose text becomes the row's reason in
skipped.parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hiddenfeed.errors import DataError

#: Columns that make a row a sample; the first one that a file has decides how the file is read.
CONTENT_COLUMNS = ("messages", "conversations", "input_ids", "text")
#: Columns that may carry the sample's id.
ID_COLUMNS = ("id", "sample_id", "conversation_id")
MAX_ID_CHARACTERS = 1000
#: What trainers write in `labels` where nothing is to be predicted.
IGNORED_LABEL = -100

_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model", "ai", "bing", "bard"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response", "ipython"), "tool"),
}
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


class RowError(DataError):
    """This row cannot become a sample; the text says why."""


@dataclass(frozen=True)
class Shape:
    """How the rows of one file are read."""

    content: str
    id_column: str | None
    #: `loss_mask`, `labels` or None; only beside `input_ids`.
    mask_column: str | None
    #: Content columns that the file has too and that are not used.
    unused: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"column {self.content}"]
        if self.mask_column:
            parts.append(f"loss mask from column {self.mask_column}")
        parts.append(f"ids from column {self.id_column}" if self.id_column else "ids made from row numbers")
        if self.unused:
            parts.append(f"not used: {', '.join(self.unused)}")
        return ", ".join(parts)


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


def recognise(values: Mapping[str, Any]) -> Shape | None:
    """How to read a file that begins with this row; None if no content column is there."""
    present = [column for column in CONTENT_COLUMNS if values.get(column) is not None]
    if not present:
        return None
    masks = [column for column in ("loss_mask", "labels") if column in values]
    return Shape(
        content=present[0],
        id_column=next((column for column in ID_COLUMNS if column in values), None),
        mask_column=masks[0] if masks and present[0] == "input_ids" else None,
        unused=tuple(present[1:]),
    )


def sample_id_of(shape: Shape, values: Mapping[str, Any]) -> str | None:
    """The row's own id, None if it has none; raises RowError for one that is no name."""
    raw = values.get(shape.id_column) if shape.id_column else None
    if raw is None or raw == "":
        return None
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise RowError(f"{shape.id_column} is {_kind(raw)}; an id is text or a whole number")
    if isinstance(raw, str) and len(raw) > MAX_ID_CHARACTERS:
        raise RowError(f"{shape.id_column} has {len(raw)} characters; {MAX_ID_CHARACTERS} are allowed")
    return str(raw)


def content_of(shape: Shape, values: Mapping[str, Any]) -> Content:
    """The row's content in the file's shape; raises RowError naming the field that is wrong."""
    raw = values.get(shape.content)
    if raw is None:
        others = ", ".join(map(str, list(values)[:8])) or "nothing"
        raise RowError(f"the row has no {shape.content}, as which the file is read; it has {others}")
    return _READERS[shape.content](shape, values, raw)


def _conversation(shape: Shape, values: Mapping[str, Any], raw: Any) -> Conversation:
    if not isinstance(raw, list):
        raise RowError(f"{shape.content} is {_kind(raw)}, not a list of messages")
    if not raw:
        raise RowError(f"{shape.content} is empty: a conversation without messages")
    messages = [_message(f"{shape.content}[{place}]", item) for place, item in enumerate(raw)]
    if not any(_says_something(message) for message in messages):
        raise RowError(f"{shape.content} is empty: no message says anything")
    return Conversation(messages, _tools(values.get("tools")))


def _message(where: str, raw: Any) -> Message:
    """One message with `role` and `content`, whatever the spelling; keys without a value are left out."""
    if not isinstance(raw, dict):
        raise RowError(f"{where} is {_kind(raw)}, not a message with a role and content")
    spelled = raw["role"] if raw.get("role") is not None else raw.get("from")
    if not isinstance(spelled, str):
        raise RowError(f"{where} has no role: neither role nor from is there as text")
    role = _ROLES.get(spelled.strip().lower())
    if role is None:
        raise RowError(f"{where} has the unknown role {spelled[:40]!r}")
    content = _content_text(where, raw["content"] if raw.get("content") is not None else raw.get("value"))
    rest = {
        key: value
        for key, value in raw.items()
        if key not in ("role", "from", "content", "value") and value is not None
    }
    message = {"role": role, "content": content, **rest}
    reasoning = next((rest[key] for key in _REASONING_KEYS if rest.get(key)), None)
    if isinstance(reasoning, str):
        # Templates read one name or the other.
        message |= {"reasoning_content": reasoning, "thinking": reasoning}
    if role == "assistant" and not _says_something(message):
        raise RowError(f"{where} is an assistant's turn that says nothing")
    return message


def _content_text(where: str, content: Any) -> str:
    """Content as one text: a list of text parts is joined, None is empty."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(f"{where}: content is {_kind(content)}, not text")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else _kind(part)
            raise RowError(f"{where}: content has a part of type {kind}; only text is supported")
        texts.append(text)
    return "".join(texts)


def _says_something(message: Message) -> bool:
    return bool(message["content"].strip() or message.get("tool_calls") or message.get("reasoning_content"))


def _tools(raw: Any) -> list[Any] | None:
    if raw is None or raw == []:
        return None
    if not isinstance(raw, list):
        raise RowError(f"tools is {_kind(raw)}, not a list of tool descriptions")
    return raw


def _text(shape: Shape, values: Mapping[str, Any], raw: Any) -> Text:
    if not isinstance(raw, str):
        raise RowError(f"text is {_kind(raw)}, not text")
    if not raw.strip():
        raise RowError("text is empty")
    return Text(raw)


def _tokens(shape: Shape, values: Mapping[str, Any], raw: Any) -> Tokens:
    ids = _integers("input_ids", raw)
    if not len(ids):
        raise RowError("input_ids is empty")
    limits = np.iinfo(np.int32)
    outside = np.flatnonzero((ids < 0) | (ids > limits.max))
    if len(outside):
        raise RowError(f"input_ids[{outside[0]}] is {ids[outside[0]]}, which is no token id")
    mask = _mask(shape.mask_column, values, ids) if shape.mask_column else None
    return Tokens(ids.astype(np.int32), mask)


def _mask(column: str, values: Mapping[str, Any], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The loss mask that came with the row, from 0/1 or from labels."""
    given = _integers(column, values.get(column))
    if len(given) != len(ids):
        raise RowError(f"{column} has {len(given)} entries for {len(ids)} input_ids")
    if column == "loss_mask":
        wrong = np.flatnonzero((given != 0) & (given != 1))
        if len(wrong):
            raise RowError(f"loss_mask[{wrong[0]}] is {given[wrong[0]]}; it must be 0 or 1")
        return given.astype(np.uint8)
    predicted = given != IGNORED_LABEL
    wrong = np.flatnonzero(predicted & (given != ids))
    if len(wrong):
        place = wrong[0]
        raise RowError(
            f"labels[{place}] is {given[place]} beside input_ids[{place}] {ids[place]}: labels must be the token "
            f"itself (not the next one) or {IGNORED_LABEL}"
        )
    mask: npt.NDArray[np.uint8] = predicted.astype(np.uint8)
    return mask


def _integers(column: str, raw: Any) -> npt.NDArray[np.int64]:
    """A list of whole numbers as int64; numbers as text, fractions and nested lists are refused."""
    if not isinstance(raw, list):
        raise RowError(f"{column} is {_kind(raw)}, not a list of whole numbers")
    wrong = next((place for place, item in enumerate(raw) if type(item) not in (int, bool)), None)
    if wrong is not None:
        raise RowError(f"{column}[{wrong}] is {_kind(raw[wrong])}, not a whole number")
    try:
        return np.array(raw, dtype=np.int64)
    except OverflowError:
        raise RowError(f"{column} holds a number beyond 64 bits") from None


def _kind(value: Any) -> str:
    """What a JSON value is, as one says it."""
    if value is None:
        return "missing"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)


_READERS: Mapping[str, Callable[[Shape, Mapping[str, Any], Any], Content]] = {
    "messages": _conversation,
    "conversations": _conversation,
    "input_ids": _tokens,
    "text": _text,
}
