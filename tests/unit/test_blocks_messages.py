"""Rows in the shapes of other programs: blocks of Anthropic's API, nested conversations, exports, images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from producer.columns import Columns
from producer.parse_row import parse_row
from producer.rows import Conversation, RawRow, SkippedRow, SourceRow
from producer.tally import Tally

USER = {"role": "user", "content": "hi"}
BOT = {"role": "assistant", "content": "hello"}
USE = {"type": "tool_use", "id": "t1", "name": "find", "input": {"x": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "found"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def parsed(values: Any) -> SourceRow | SkippedRow:
    return parse_row(RawRow("f", 0, "line 1", json.dumps(values).encode()), Columns())


def read(values: Any) -> Conversation:
    row = parsed(values)
    assert isinstance(row, SourceRow), row
    assert isinstance(row.content, Conversation)
    return row.content


def reason(values: Any) -> str:
    row = parsed(values)
    assert isinstance(row, SkippedRow)
    return row.reason


def test_calls_and_results_as_blocks_become_messages_that_templates_know() -> None:
    rows = {
        "system": [text("be "), text("brief")],
        "tools": [{"name": "find", "description": "finds", "input_schema": {"type": "object"}, "cache_control": {}}],
        "messages": [
            {"role": "user", "content": [text("hi")]},
            {
                "role": "assistant",
                "id": "m",
                "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, text("let me "), text("see"), USE],
            },
            {"role": "user", "content": [RESULT, {**RESULT, "content": [text("a"), text("b")], "is_error": True}, text("so?")]},
            {"role": "assistant", "content": [text("done")]},
        ],
    }  # fmt: skip
    call = {"id": "t1", "type": "function", "function": {"name": "find", "arguments": {"x": 1}}}
    assert read(rows) == Conversation(
        [
            {"role": "system", "content": "be brief"},
            USER,
            {
                "role": "assistant", "content": "let me see", "id": "m", "tool_calls": [call], "reasoning_content": "hm", "thinking": "hm",
            },
            {"role": "tool", "content": "found", "tool_call_id": "t1"},
            {"role": "tool", "content": "ab", "tool_call_id": "t1", "is_error": True},
            {"role": "user", "content": "so?"},
            {"role": "assistant", "content": "done"},
        ],
        [{"type": "function", "function": {"name": "find", "description": "finds", "parameters": {"type": "object"}}}],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("role", "content", "said"),
    [
        ("assistant", [USE, text("then")], "content has text behind tool_use, and templates show thinking, text, tool_use in this order"),
        ("assistant", [text("a"), {"type": "thinking", "thinking": "b"}], "content has thinking behind text"),
        ("assistant", [{"type": "thinking", "thinking": "a"}] * 2, "content has several blocks of thinking"),
        ("assistant", [{**USE, "input": "x"}], "a block tool_use needs a name and an input that is an object, not text"),
        ("assistant", [USE, {"type": "redacted_thinking"}], "content has text behind tool_use"),
        ("assistant", [{"type": "redacted_thinking"}, USE], "a part of type redacted_thinking; only text"),
        ("user", [text("a"), RESULT], "content has tool_result behind text"),
        ("user", [USE], "a part of type tool_use; only text"),
        ("user", [{**RESULT, "content": [{"type": "image"}]}], "content has an image, a part of type image; only text"),
    ],
)  # fmt: skip
def test_blocks_that_messages_cannot_show_are_refused(role: str, content: Any, said: str) -> None:
    text_of = reason({"messages": [USER, {"role": role, "content": content}]})
    assert text_of.startswith("messages[1]: ")
    assert said in text_of


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("image_url", "an image"),
        ("image", "an image"),
        ("input_audio", "sound"),
        ("video", "a video"),
        ("document", "a file"),
    ],
)
def test_what_is_no_text_is_named_and_counted_once(kind: str, what: str) -> None:
    tally = Tally()
    for number in range(12):
        row = parsed(
            {"messages": [USER] * number + [{"role": "user", "content": [text("see"), {"type": kind}]}, BOT]}
        )
        assert isinstance(row, SkippedRow)
        tally.skip(row)
    (counted,) = tally.reasons()
    assert counted.rows == 12
    assert counted.reason == f"messages[0]: content has {what}, a part of type {kind}; only text is supported"


@pytest.mark.parametrize("key", ["messages", "conversations", "conversation"])
def test_a_conversation_that_is_an_object_with_its_messages(key: str) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    inner = {key: [USER, BOT], "system": "be brief", "tools": tools, "id": "x"}
    system = {"role": "system", "content": "be brief"}
    assert read({"conversation": inner}) == Conversation([system, USER, BOT], tools)
    # What stands beside it is nearer to us.
    assert read({"conversation": inner, "system": "other", "tools": []}).messages[0]["content"] == "other"
    assert read({"messages": {key: json.dumps([USER, BOT])}}) == Conversation([USER, BOT])
    assert reason({"conversation": {key: [USER, 5]}}) == (
        f"conversation.{key}[1] is a number, not a message with a role and content"
    )
    assert reason({"chat": {key: [USER, BOT]}}).endswith("; give --columns messages=chat")


#: One conversation as ChatGPT exports it: the first answer was asked for again.
EXPORTED = {
    "title": "t",
    "current_node": "d",
    "conversation_id": "c1",
    "mapping": {
        "a": {"id": "a", "message": None, "parent": None, "children": ["b"]},
        "b": {
            "id": "b", "parent": "a", "children": ["c", "d"],
            "message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["hi"]}},
        },
        "c": {
            "id": "c", "parent": "b", "children": [],
            "message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["no"]}},
        },
        "d": {
            "id": "d", "parent": "b", "children": [],
            "message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["hello"]}},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("row", [EXPORTED, {"conversation": EXPORTED}])
def test_an_export_of_chatgpt_is_named_with_the_way_out(row: Any) -> None:
    assert "is a conversation of a ChatGPT export, a tree of messages (mapping)" in reason(row)
    assert "docs/data.md has the lines" in reason(row)


def test_the_lines_of_the_page_make_rows_of_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    (lines,) = (part.partition("```")[0] for part in page.split("```python\n")[1:])
    monkeypatch.chdir(tmp_path)
    Path("conversations.json").write_text(json.dumps([EXPORTED]), encoding="utf-8")
    exec(compile(lines, "docs/data.md", "exec"), {})
    row = json.loads(Path("chats.jsonl").read_text(encoding="utf-8"))
    assert row == {"id": "c1", "messages": [USER, BOT]}
    assert read(row) == Conversation([USER, BOT])


def test_a_row_that_is_its_turns_alone_says_what_makes_one_of_it() -> None:
    assert reason([USER, BOT]).endswith("but a list of turns; jq -c '{messages: .}' makes lines of such")
    element = parse_row(RawRow("f", 0, "element 1", json.dumps([USER]).encode()), Columns())
    assert isinstance(element, SkippedRow)
    assert "jq -c '.[] | {messages: .}'" in element.reason
