"""Conversations as people write them, made into messages as chat templates take them.

A role has many spellings, content may be a list of parts, and a conversation may be a prompt and a
response in columns of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from producer.blocks import has_blocks, without_blocks
from producer.chat_export import EXPORT, is_export
from producer.columns import SPELLINGS
from producer.content import content_text
from producer.looks import NESTED
from producer.roles import ROLES
from producer.rows import Conversation, Message, RowError, kind_of
from producer.tools import decoded_list, tool_list
from producer.turn_lists import turn_list

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
#: Where what a message says may be, the first that has something counts.
_CONTENT_KEYS = ("content", "value", "parts", "text")
_SPELLED_KEYS = ("role", "from", *_CONTENT_KEYS)


def conversation(where: str, raw: Any, system: Any, tools: list[Any] | None) -> Conversation:
    """The conversation in the column `where`; `system` and `tools` are what stands beside it, or None.

    An object that has the messages in it is taken for them, with a system prompt and tools that stand there.
    Raises RowError naming the message that is wrong.
    """
    raw = decoded_list(raw)
    if isinstance(raw, dict) and (nested := next((key for key in NESTED if raw.get(key)), None)):
        system, tools = _beside(raw, system, tools)
        where, raw = f"{where}.{nested}", decoded_list(raw[nested])
    if isinstance(raw, dict) and is_export(raw):
        raise RowError(f"{where} {EXPORT}")
    raw = turn_list(where, raw)
    if not isinstance(raw, list):
        raise RowError(f"{where} is {kind_of(raw)}, not a list of messages")
    if not raw:
        raise RowError(f"{where} is empty: a conversation without messages", "empty")
    return _whole(where, _messages(where, raw), system, tools)


def exchange(columns: Mapping[str, str], values: Mapping[str, Any]) -> Conversation:
    """A prompt and its response, each a text or a list of messages; `columns` says where each part is.

    An `input` beside them is what the prompt is about and follows it after an empty line; a `history` is
    what was said before. Raises RowError naming the column that is wrong.
    """
    if "response" not in columns:
        raise RowError(_unanswered(columns["prompt"], values))
    parts = {what: decoded_list(values.get(column)) for what, column in columns.items()}
    asked = _side(columns["prompt"], parts["prompt"], "user")
    about = parts.get("input")
    if about is not None and not isinstance(about, str):
        raise RowError(f"{columns['input']} is {kind_of(about)}, not text")
    if about is not None and about.strip():
        asked[-1]["content"] += f"\n\n{about}"
    answered = _side(columns["response"], parts["response"], "assistant")
    if answered[: len(asked)] == asked:
        # A response that is the whole conversation, as preference data has it.
        asked = []
    before = _history(columns.get("history", ""), parts.get("history"))
    tools = tool_list(columns.get("tools", ""), parts.get("tools"))
    return _whole(columns["prompt"], before + asked + answered, parts.get("system"), tools)


def with_arguments_read(talk: Conversation) -> Conversation:
    """The conversation with arguments of tool calls that are JSON texts as the objects they stand for, as serving
    engines give them to templates; the conversation itself if there are none.
    """
    messages = [_with_arguments_read(message) for message in talk.messages]
    same = all(new is old for new, old in zip(messages, talk.messages, strict=True))
    return talk if same else Conversation(messages, talk.tools)


def _with_arguments_read(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(isinstance(_arguments(call), str) for call in calls):
        return message
    return {**message, "tool_calls": [_call_read(call) for call in calls]}


def _arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    return function.get("arguments") if isinstance(function, dict) else None


def _call_read(call: Any) -> Any:
    text = _arguments(call)
    if not isinstance(text, str):
        return call
    try:
        arguments = msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _side(column: str, raw: Any, role: str) -> list[Message]:
    """One side of an exchange; a text is one message of `role`."""
    if isinstance(raw, str):
        if not raw.strip():
            raise RowError(f"{column} is empty", "empty")
        return [{"role": role, "content": raw}]
    if not isinstance(raw, list):
        raise RowError(f"{column} is {kind_of(raw)}, not text")
    if not raw:
        raise RowError(f"{column} is empty", "empty")
    return _messages(column, raw)


def _history(column: str, raw: Any) -> list[Message]:
    """What was said before the prompt: questions with their answers, or messages."""
    turns = turn_list(column, raw or [])
    if not isinstance(turns, list):
        raise RowError(f"{column} is {kind_of(raw)}, not a list of questions and answers")
    return _messages(column, turns)


def _unanswered(column: str, values: Mapping[str, Any]) -> str:
    """What to say of a question alone."""
    other = next((name for name in values if str(name).lower() == "chosen"), None)
    way_out = f"; --columns response={other} takes the preferred one" if other is not None else ""
    return f"{column} has no response beside it{way_out}"


def _whole(where: str, messages: list[Message], system: Any, tools: list[Any] | None) -> Conversation:
    if not any(_says_something(message) for message in messages):
        raise RowError(f"{where} is empty: no message says anything", "empty")
    if isinstance(system, list):
        system = content_text("the system prompt", system)
    if system is not None and not isinstance(system, str):
        raise RowError(f"the system prompt is {kind_of(system)}, not text")
    # A conversation that brings its own is not given a second one.
    if system and system.strip() and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return Conversation(messages, tools)


def _beside(raw: Mapping[str, Any], system: Any, tools: list[Any] | None) -> tuple[Any, list[Any] | None]:
    """System prompt and tools of a conversation that is an object: what stands beside it, else what is in it."""
    if system is None:
        system = next((raw[key] for key in SPELLINGS["system"] if raw.get(key)), None)
    if tools is None:
        column = next((key for key in SPELLINGS["tools"] if raw.get(key)), "")
        tools = tool_list(column, raw.get(column))
    return system, tools


def _messages(where: str, raw: list[Any]) -> list[Message]:
    messages: list[Message] = []
    for place, item in enumerate(raw):
        plain = _plain_message(item)
        if plain is not None:
            messages.append(plain)
        elif has_blocks(item):
            name = f"{where}[{place}]"
            messages += [_message(name, one) for one in without_blocks(name, item)]
        else:
            messages.append(_message(f"{where}[{place}]", item))
    return messages


def _plain_message(raw: Any) -> Message | None:
    """What most messages are, a role and some words, made at once; None for any other, which is looked at closely."""
    if type(raw) is not dict or len(raw) != 2:
        return None
    spelled, content = (
        (raw.get("role"), raw.get("content")) if "role" in raw else (raw.get("from"), raw.get("value"))
    )
    if type(spelled) is not str or type(content) is not str or not content.strip():
        return None
    role = ROLES.get(spelled)
    return None if role is None or role == "call" else {"role": role, "content": content}


def _message(where: str, raw: Any) -> Message:
    """One message with `role` and `content`, whatever the spelling; keys without a value are left out."""
    if not isinstance(raw, dict):
        raise RowError(f"{where} is {kind_of(raw)}, not a message with a role and content")
    spelled = raw["role"] if raw.get("role") is not None else raw.get("from")
    lowered = {str(key).lower(): value for key, value in raw.items()} if spelled is None else raw
    if lowered.keys() != raw.keys():
        return _message(where, lowered)
    if not isinstance(spelled, str):
        keys = ", ".join(str(key)[:40] for key in list(raw)[:8]) or "nothing"
        raise RowError(f"{where} has no role: neither role nor from is there as text; it has {keys}")
    role = ROLES.get(spelled.strip().lower())
    if role is None:
        raise RowError(f"{where} has the unknown role {spelled[:40]!r}")
    said = next((raw[key] for key in _CONTENT_KEYS if raw.get(key) is not None), None)
    content = content_text(where, said)
    rest = {key: value for key, value in raw.items() if key not in _SPELLED_KEYS and value is not None}
    if role == "call":
        return {"role": "assistant", "content": "", **rest, "tool_calls": _calls(where, content)}
    message = {"role": role, "content": content, **rest}
    key, reasoning = next(((key, rest[key]) for key in _REASONING_KEYS if rest.get(key)), ("", None))
    if role == "assistant" and isinstance(reasoning, list | dict):
        # No template shows it, and what nobody shows would be left out in silence.
        raise RowError(f"{where}: {key} is {kind_of(reasoning)}, not text")
    if isinstance(reasoning, str):
        # Templates read one name or the other.
        message |= {"reasoning_content": reasoning, "thinking": reasoning}
    if isinstance(message.get("function_call"), dict) and not message.get("tool_calls"):
        # How OpenAI wrote the one call of a message before there were several; templates read the later form.
        message["tool_calls"] = [{"type": "function", "function": message.pop("function_call")}]
    if role == "assistant" and "weight" in message:
        message["weight"] = _weight(where, message["weight"])
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise RowError(f"{where}: tool_calls is {kind_of(calls)}, not a list of calls")
    wrong = next((place for place, call in enumerate(calls or []) if not _is_call(call)), None)
    if wrong is not None:
        raise RowError(f"{where}: tool_calls[{wrong}] is no call: an object with a function and its name")
    if role == "assistant" and not _says_something(message):
        raise RowError(f"{where} is an assistant's turn that says nothing", "empty")
    return message


def _is_call(call: Any) -> bool:
    """True for `{"function": {"name": …}}`, and for one that has its name itself."""
    function = call.get("function", call) if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _weight(where: str, weight: Any) -> int:
    """0 for a turn that is not learnt, as OpenAI's format has it, else 1."""
    if isinstance(weight, int | float) and weight in (0, 1):
        return int(weight)
    raise RowError(f"{where}: weight is {str(weight)[:40]!r}; a turn is learnt or not: 1 or 0")


def _calls(where: str, text: str) -> list[Any]:
    """The tool calls, one or a list of them, that a message of its own spells out as JSON."""
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        given = None
    calls = given if isinstance(given, list) and given else [given]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise RowError(f"{where} is a tool call whose text is not JSON with a name and arguments")
    return [
        {
            "type": "function",
            "function": {
                "name": call["name"],
                "arguments": call.get("arguments", call.get("parameters", {})),
            },
        }
        for call in calls
    ]


def _says_something(message: Message) -> bool:
    return bool(message["content"].strip() or message.get("tool_calls") or message.get("reasoning_content"))
