"""Messages made of blocks, as Anthropic's API has them: thoughts, calls and results of tools among the parts of a content.

They become messages as chat templates take them, where nothing is lost by that: thoughts, words and calls beside each
other in the assistant's message, results in messages of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from producer.roles import ROLES
from producer.rows import Message, RowError, kind_of

_KINDS = ("thinking", "tool_use", "tool_result")
#: Whose message has which.
_OF_ROLE = {"assistant": _KINDS[:2], "user": _KINDS[2:], "tool": _KINDS[2:]}


def has_blocks(raw: Any) -> bool:
    """True for a message whose content is a list with a block in it that its speaker may have."""
    content = raw.get("content") if isinstance(raw, dict) else None
    if not isinstance(content, list):
        return False
    kinds = _OF_ROLE.get(ROLES.get(str(raw.get("role")).lower(), ""), ())
    return any(_kind(part) in kinds for part in content)


def without_blocks(where: str, raw: Message) -> Iterator[Message]:
    """The message as one without blocks, before it one for each result of a tool that it brings.

    Raises RowError for blocks in an order that messages cannot show.
    """
    rest = {key: value for key, value in raw.items() if key != "content"}
    results = [part for part in raw["content"] if _kind(part) == "tool_result"]
    if results:
        _check_order(where, raw["content"], ("tool_result", ""))
        for result in results:
            yield {
                "role": "tool",
                "content": result.get("content"),
                "tool_call_id": result.get("tool_use_id"),
                "is_error": result.get("is_error"),
            }
        words = raw["content"][len(results) :]
        if words:
            yield {**rest, "content": words}
        return
    _check_order(where, raw["content"], ("thinking", "", "tool_use"))
    thoughts = [part.get("thinking") for part in raw["content"] if _kind(part) == "thinking"]
    if len(thoughts) > 1:
        raise RowError(f"{where}: content has several blocks of thinking, and a template shows one")
    calls = [_call(where, part) for part in raw["content"] if _kind(part) == "tool_use"]
    message = {**rest, "content": [part for part in raw["content"] if _kind(part) == ""]}
    if thoughts:
        message["reasoning_content"] = thoughts[0]
    if calls:
        message["tool_calls"] = calls
    yield message


def _kind(part: Any) -> str:
    """`thinking`, `tool_use` or `tool_result`; "" for any other part."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if kind in _KINDS else ""


def _check_order(where: str, parts: list[Any], order: tuple[str, ...]) -> None:
    """Raises RowError for parts that come in another order, or are not of this kind of message."""
    reached = 0
    for part in parts:
        kind = _kind(part)
        if kind not in order[reached:]:
            if kind not in order:
                raise RowError(
                    f"{where}: content has both {kind} and {order[reached] or 'tool_result'} blocks"
                )
            raise RowError(
                f"{where}: content has {kind or 'text'} behind {order[reached] or 'text'}, and templates show "
                f"{', '.join(name or 'text' for name in order)} in this order"
            )
        reached = order.index(kind)


def _call(where: str, part: dict[str, Any]) -> dict[str, Any]:
    arguments = part.get("input")
    if not isinstance(part.get("name"), str) or not isinstance(arguments, dict):
        raise RowError(
            f"{where}: a block tool_use needs a name and an input that is an object, not {kind_of(arguments)}"
        )
    named = {"id": part["id"]} if isinstance(part.get("id"), str) else {}
    return {**named, "type": "function", "function": {"name": part["name"], "arguments": arguments}}
