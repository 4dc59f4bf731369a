"""Whether what stands in a conversation's messages is in the text that a template made of them.

What an assistant says must be in the spans that are to be predicted, or the row is refused. Whatever else a
template leaves out (a system message, thoughts of earlier turns, an argument of a call) changes no mask; it is
noted, so that it can be counted and said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from producer.rows import Conversation, Message
from producer.ways_out import UnprovenError

_THINKING = re.compile(r"</?think(?:ing)?>")
_SHOWN_CHARACTERS = 30

_Piece = tuple[str, str]


@dataclass(frozen=True)
class LeftOut:
    """Something of a conversation that is nowhere in its text."""

    #: What it is, as it is counted.
    kind: str
    #: Which it is, for people.
    which: str


def thinks_aloud(content: str) -> bool:
    """True if thoughts stand inside the words themselves, which some templates take out."""
    return _THINKING.search(content) is not None


def check_said(message: Message, turn: int, span: str) -> None:
    """Everything the assistant says must be in the span, however the template spaces it; else UnprovenError."""
    squeezed = _squeeze(span)
    parts = _THINKING.split(str(message.get("reasoning_content") or "")) + _THINKING.split(message["content"])
    parts += [_call_name(call) for call in _calls(message)]
    missing = [part for part in parts if _squeeze(part) not in squeezed]
    if missing:
        raise UnprovenError(
            f"the chat template leaves out part of message {turn} (assistant), from "
            f"{missing[0].strip()[:_SHOWN_CHARACTERS]!r}",
            "leaves out",
        )


def left_out(conversation: Conversation, text: str) -> tuple[LeftOut, ...]:
    """The first of each kind of thing that is in the conversation and not in `text`; mostly nothing."""
    found: dict[str, LeftOut] = {}
    position = 0
    shows = _finder(text)
    for number, message in enumerate(conversation.messages):
        content = message["content"]
        # What is said stands in order, so that mostly every text is looked for once over all of the row.
        place = text.find(content, position)
        if place >= 0:
            position = place + len(content)
        if place >= 0 and len(message) == 2:
            continue
        for kind, piece in _pieces(message):
            if kind not in found and not shows(piece):
                found[kind] = LeftOut(kind, f"message {number}, {piece.strip()[:_SHOWN_CHARACTERS]!r}")
    for tool in conversation.tools or ():
        name = _call_name(tool)
        if not shows(name):
            found.setdefault(_TOOLS, LeftOut(_TOOLS, repr(name[:_SHOWN_CHARACTERS])))
    return tuple(found.values())


_TOOLS = "descriptions of tools"
_SAYS = {
    "system": "what the system says",
    "user": "what a user says",
    "tool": "what a tool answers",
    "assistant": "what the assistant says",
}


def _pieces(message: Message) -> Iterator[_Piece]:
    """What a message holds, by kind, in pieces that no template should divide."""
    role = message["role"]
    *thoughts, said = _THINKING.split(message["content"]) if role == "assistant" else (message["content"],)
    yield _SAYS[role], said
    if role != "assistant":
        return
    thoughts += _THINKING.split(str(message.get("reasoning_content") or ""))
    for thought in thoughts:
        yield "thoughts of the assistant", thought
    for call in _calls(message):
        yield "calls of tools", _call_name(call)
        for leaf in _leaves(_call_arguments(call)):
            yield "arguments of calls", leaf


def _finder(text: str) -> Callable[[str], bool]:
    """Whether `text` shows a piece: as it is, as JSON writes it, or spaced otherwise."""
    squeezed: list[str] = []

    def shows(piece: str) -> bool:
        bare = piece.strip()
        if not bare or bare in text or any(spelled in text for spelled in _as_json(bare)):
            return True
        if not squeezed:
            squeezed.append(_squeeze(text))
        return any(_squeeze(spelled) in squeezed[0] for spelled in (bare, *_as_json(bare)))

    return shows


def _as_json(piece: str) -> Iterator[str]:
    """A text inside a JSON text, without its quotation marks, in both ways that JSON has of writing it."""
    for ascii_only in (False, True):
        yield json.dumps(piece, ensure_ascii=ascii_only)[1:-1]


def _leaves(value: Any) -> Iterator[str]:
    """Names and values in the arguments of a call; numbers and the like are too short to be told from others."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str):
        yield value


def _calls(message: Message) -> list[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _call_name(call: object) -> str:
    """The called function's name, as far as the call has one."""
    function = _function(call)
    return str(function.get("name") or "") if isinstance(function, dict) else ""


def _call_arguments(call: object) -> Any:
    """The arguments as an object, if they are one or the text of one."""
    function = _function(call)
    given = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given) if given.strip() else None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return given


def _function(call: object) -> object:
    return call.get("function", call) if isinstance(call, dict) else None


def _squeeze(text: str) -> str:
    return "".join(text.split())
