"""The descriptions of tools beside a conversation, as chat templates take them."""

from __future__ import annotations

from typing import Any

import msgspec

from producer.rows import RowError, kind_of


def tool_list(column: str, raw: Any) -> list[Any] | None:
    """The descriptions of tools in `column`, None if there are none; raises RowError for what is no list.

    In a column `functions` they are what OpenAI called so before there were tools, whose `function` each becomes; and
    so do those that have an `input_schema`, as Anthropic describes tools.
    """
    raw = decoded_list(raw)
    if raw is None or raw in ([], "", "[]"):
        return None
    if not isinstance(raw, list):
        raise RowError(f"{column} is {kind_of(raw)}, not a list of tool descriptions")
    return [_described(tool, bare=column.lower() == "functions") for tool in raw]


def _described(tool: Any, *, bare: bool) -> Any:
    """A description as templates take it; `bare` is one that is the function alone."""
    if isinstance(tool, dict) and "function" in tool:
        return tool
    if isinstance(tool, dict) and isinstance(tool.get("input_schema"), dict):
        kept = {key: tool[key] for key in ("name", "description") if tool.get(key) is not None}
        return {"type": "function", "function": {**kept, "parameters": tool["input_schema"]}}
    return {"type": "function", "function": tool} if bare else tool


def decoded_list(raw: Any) -> Any:
    """A list of objects that is written as JSON inside a text, as flat tables have it; else `raw` itself."""
    if not isinstance(raw, str) or raw.lstrip()[:1] != "[":
        return raw
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return raw
    # A prompt may well be about a list of numbers.
    objects = isinstance(decoded, list) and decoded and all(isinstance(item, dict) for item in decoded)
    return decoded if objects else raw
