"""What a row is taken for, and which rows are refused with which reason."""

from __future__ import annotations

from typing import Any

import pytest

from producer.rows import (
    Conversation,
    RowError,
    Text,
    Tokens,
    content_of,
    recognise,
    sample_id_of,
)

USER = {"role": "user", "content": "hi"}
BOT = {"role": "assistant", "content": "hello"}


def read(values: dict[str, Any]) -> Any:
    shape = recognise(values)
    assert shape is not None
    return content_of(shape, values)


def reason(values: dict[str, Any]) -> str:
    with pytest.raises(RowError) as caught:
        read(values)
    return str(caught.value)


def test_columns_are_recognised_in_order_of_preference() -> None:
    shape = recognise({"text": "x", "input_ids": [1], "messages": [USER], "id": 3})
    assert shape is not None
    assert (shape.content, shape.id_column, shape.mask_column) == ("messages", "id", None)
    assert shape.unused == ("input_ids", "text")
    assert str(shape) == "column messages, ids from column id, not used: input_ids, text"
    assert recognise({"prompt": "x"}) is None
    assert recognise({"messages": None, "text": "x"}).content == "text"  # type: ignore[union-attr]


def test_messages_keep_their_order_and_extras() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
    }
    got = read({"messages": [{"role": "developer", "content": "be brief"}, USER, call], "tools": tools})
    assert got == Conversation(
        [{"role": "system", "content": "be brief"}, USER, {**call, "content": ""}],
        tools,
    )


@pytest.mark.parametrize(
    ("spelled", "role"),
    [
        ("human", "user"), ("User", "user"), ("prompter", "user"), ("gpt", "assistant"), ("chatgpt", "assistant"),
        ("model", "assistant"), ("bot", "assistant"), ("system", "system"), ("observation", "tool"), ("function", "tool"),
    ],
)  # fmt: skip
def test_role_spellings(spelled: str, role: str) -> None:
    got = read({"conversations": [{"from": spelled, "value": "hi"}]})
    assert got.messages == [{"role": role, "content": "hi"}]


def test_either_spelling_of_keys_serves_either_column() -> None:
    expected = Conversation([USER, BOT])
    assert read({"conversations": [USER, BOT]}) == expected
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    assert read({"messages": turns}) == expected
    mixed = [{"role": None, "from": "human", "content": None, "value": "hi"}, BOT]
    assert read({"messages": mixed}) == expected


def test_a_list_of_text_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "one "}, {"text": "two"}, " three"]
    assert read({"messages": [{"role": "user", "content": parts}]}).messages[0]["content"] == "one two three"


def test_reasoning_goes_under_both_names_that_templates_read() -> None:
    message = read({"messages": [USER, {**BOT, "reasoning": "hm"}]}).messages[1]
    assert (message["reasoning_content"], message["thinking"]) == ("hm", "hm")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], "messages is empty: a conversation without messages"),
        ("hi", "messages is text, not a list of messages"),
        ([USER, "hi"], "messages[1] is text, not a message"),
        ([{"content": "hi"}], "messages[0] has no role"),
        ([{"role": "narrator", "content": "hi"}], "messages[0] has the unknown role 'narrator'"),
        ([{"role": 3, "content": "hi"}], "messages[0] has no role"),
        ([{"role": "user", "content": 3}], "messages[0]: content is a number, not text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a part of type image_url; only text"),
        ([{"role": "user", "content": [7]}], "a part of type a number; only text"),
        ([{"role": "user", "content": " "}], "messages is empty: no message says anything"),
        (
            [USER, {"role": "assistant", "content": ""}],
            "messages[1] is an assistant's turn that says nothing",
        ),
        ([USER, {"role": "assistant"}], "messages[1] is an assistant's turn that says nothing"),
    ],
)
def test_conversations_that_are_none(messages: Any, expected: str) -> None:
    assert expected in reason({"messages": messages})


def test_tools_must_be_a_list() -> None:
    assert "tools is text" in reason({"messages": [USER, BOT], "tools": "search"})
    assert read({"messages": [USER, BOT], "tools": []}).tools is None


def test_a_row_without_the_files_column_is_refused_by_name() -> None:
    shape = recognise({"messages": [USER]})
    assert shape is not None
    with pytest.raises(
        RowError, match="the row has no messages, as which the file is read; it has text, lang"
    ):
        content_of(shape, {"text": "x", "lang": "en"})


def test_text() -> None:
    assert read({"text": " hello "}) == Text(" hello ")
    assert "text is empty" in reason({"text": " \n"})
    assert "text is a list, not text" in reason({"text": ["a"]})


def test_tokens_with_every_kind_of_mask() -> None:
    bare = read({"input_ids": [1, 2, 3]})
    assert isinstance(bare, Tokens)
    assert (bare.ids.tolist(), str(bare.ids.dtype), bare.mask) == ([1, 2, 3], "int32", None)
    masked = read({"input_ids": [1, 2, 3], "loss_mask": [0, True, 1]})
    assert (masked.mask.tolist(), masked.mask.dtype) == ([0, 1, 1], "uint8")
    labelled = read({"input_ids": [1, 2, 3], "labels": [-100, 2, -100]})
    assert labelled.mask.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": "1 2"}, "input_ids is text, not a list of whole numbers"),
        ({"input_ids": [1, "2"]}, "input_ids[1] is text, not a whole number"),
        ({"input_ids": [1, 2.0]}, "input_ids[1] is a number, not a whole number"),
        ({"input_ids": [[1, 2]]}, "input_ids[0] is a list, not a whole number"),
        ({"input_ids": [1, None]}, "input_ids[1] is missing, not a whole number"),
        ({"input_ids": [1, -5]}, "input_ids[1] is -5, which is no token id"),
        ({"input_ids": [2**40]}, "input_ids[0] is 1099511627776, which is no token id"),
        ({"input_ids": [2**80]}, "input_ids holds a number beyond 64 bits"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "loss_mask has 1 entries for 2 input_ids"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "loss_mask[1] is 2; it must be 0 or 1"),
        ({"input_ids": [1, 2], "loss_mask": None}, "loss_mask is missing, not a list"),
        (
            {"input_ids": [1, 2], "labels": [-100, 3]},
            "labels must be the token itself (not the next one) or -100",
        ),
    ],
)
def test_tokens_that_are_none(values: dict[str, Any], expected: str) -> None:
    assert expected in reason(values)


def test_sample_ids() -> None:
    shape = recognise({"id": 1, "text": "x"})
    assert shape is not None
    assert sample_id_of(shape, {"id": 17}) == "17"
    assert sample_id_of(shape, {"id": "../x"}) == "../x"
    assert sample_id_of(shape, {"id": None}) is None
    assert sample_id_of(shape, {"id": ""}) is None
    assert sample_id_of(shape, {}) is None
    for wrong in (True, 1.5, ["a"], {"a": 1}):
        with pytest.raises(RowError, match="an id is text or a whole number"):
            sample_id_of(shape, {"id": wrong})
    with pytest.raises(RowError, match="id has 1001 characters"):
        sample_id_of(shape, {"id": "x" * 1001})
