"""What a row is taken for, and which rows are refused with which reason."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from hiddenfeed.errors import ConfigError
from producer.columns import SPELLINGS, Columns, canonical_columns, choose_columns
from producer.parse_row import content_of, parse_row, sample_id_of
from producer.roles import ROLES
from producer.rows import Cause, Conversation, RawRow, RowError, SkippedRow, SourceRow, Text, Tokens

USER = {"role": "user", "content": "hi"}
BOT = {"role": "assistant", "content": "hello"}
AUTO = Columns()


def read(values: dict[str, Any], columns: Columns = AUTO) -> Any:
    shape = columns.shape_of(values)
    assert shape is not None
    return content_of(shape, values)


def reason(values: dict[str, Any]) -> str:
    with pytest.raises(RowError) as caught:
        read(values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"text": "x", "input_ids": [1], "messages": [USER], "id": 3}, "column messages, ids from column id, not used: text, input_ids"),
        ({"messages": None, "text": "x"}, "column text, ids made from row numbers"),
        ({"conversation": [USER], "conversation_id": "x"}, "column conversation, ids from column conversation_id"),
        ({"instruction": "a", "input": "", "output": "b", "text": "c"}, "columns instruction and input and output, ids made from row numbers, not used: text"),
        ({"question": "a", "answer": "b", "system_prompt": "s"}, "columns question and answer, system from column system_prompt, ids made from row numbers"),
        ({"input_ids": [1], "labels": [1]}, "column input_ids, loss mask from column labels, ids made from row numbers"),
        ({"input_ids": [1], "attention_mask": [1]}, "column input_ids, no loss mask, ids made from row numbers"),
        ({"Messages": [USER], "ID": 3, "tools": [], "Source": "x", "lang": None}, "column Messages, tools from column tools, ids from column ID, not used: Source"),
        ({"data": ["a", "b"], "text": "x"}, "column text, ids made from row numbers, not used: data"),
        ({"data": ["a", "b"], "id": "x"}, "column data, ids from column id"),
        ({"question": "a", "answer": "b", "context": "c", "history": []}, "columns question and context and answer, history from column history, ids made from row numbers"),
        ({"text": "x", **{f"c{n}": n for n in range(10)}}, "column text, ids made from row numbers, not used: c0, c1, c2, c3, c4, c5, c6, c7 and 2 more"),
    ],
)  # fmt: skip
def test_columns_are_recognised_in_order_of_preference(values: dict[str, Any], said: str) -> None:
    assert str(AUTO.shape_of(values)) == said


def test_rows_that_nothing_is_recognised_in() -> None:
    assert AUTO.shape_of({"response": "x", "title": "y"}) is None
    skipped = parse_row(RawRow("f", 3, "line 4", b'{"title": "y", "id": 7}'), AUTO)
    assert isinstance(skipped, SkippedRow)
    assert skipped.reason.startswith("line 4 has none of messages, conversations, ")
    assert skipped.reason.endswith("; it has title, id; name its columns, for example --columns text=title")


def test_columns_of_ones_own() -> None:
    columns = choose_columns("auto", "messages=chat, id=uuid")
    row = {"chat": [USER, BOT], "uuid": "u1", "id": 5, "messages": "not it", "text": "nor it"}
    shape = columns.shape_of(row)
    assert str(shape) == "column chat, ids from column uuid, not used: id, messages, text"
    assert columns.shape_of({"text": "x"}) is None
    # A format that is asked for is the only one, whatever else is there.
    assert read({"text": "x", "messages": [USER]}, choose_columns("text", "")) == Text("x")
    assert choose_columns("text", "").shape_of({"messages": [USER]}) is None
    unnamed = choose_columns("auto", "id=").shape_of({"text": "x", "id": 4})
    assert unnamed is not None
    assert unnamed.column("id") is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("chat", "'chat' is not WHAT=COLUMN, where WHAT is one of messages, "),
        ("talk=chat", "'talk=chat' is not WHAT=COLUMN"),
        ("id=a,id=b", "names id twice"),
        ("messages=", "messages needs the name of its column"),
    ],
)
def test_columns_that_say_nothing(columns: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_columns("auto", columns)
    assert message in str(caught.value)


def test_equal_choices_have_one_spelling() -> None:
    assert (
        canonical_columns(" messages=chat , id=")
        == canonical_columns("id=,messages=chat")
        == "id=,messages=chat"
    )


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
        ("bing", "assistant"), ("bard", "assistant"), ("assistant", "assistant"), ("developer", "system"), ("tool", "tool"),
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
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "content has an image, a part of type image_url; only text is supported",
        ),
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


def test_a_prompt_and_its_response_are_a_conversation() -> None:
    expected = Conversation([USER, BOT])
    assert read({"prompt": "hi", "response": "hello"}) == expected
    assert read({"instruction": "hi", "input": " ", "output": "hello"}) == expected
    assert read({"question": "hi", "answer": "hello"}) == expected
    assert read({"prompt": [USER], "completion": [BOT]}) == expected
    # Of several columns for one thing the one that says something.
    assert read({"prompt": "hi", "response": None, "output": "hello"}) == expected
    about = read({"instruction": "sum up", "input": "a text", "output": "b", "system": "be brief"})
    assert [message["content"] for message in about.messages] == ["be brief", "sum up\n\na text", "b"]
    assert read({"input": "hi", "output": "hello"}) == expected
    # A question alone is no sample, where there is one.
    assert read({"question": "hi", "answer": None, "text": "x"}) == Text("x")
    # A prompt about a list is a text.
    assert read({"prompt": "[1, 2]", "response": "3"}).messages[0]["content"] == "[1, 2]"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": "hi"}, "prompt has no response beside it"),
        ({"prompt": "hi", "response": None}, "response is missing, not text"),
        ({"prompt": "hi", "response": " "}, "response is empty"),
        ({"prompt": "", "response": "x"}, "prompt is empty"),
        ({"prompt": 3, "response": "x"}, "prompt is a number, not text"),
        ({"prompt": "x", "response": ["y"]}, "response[0] is text, not a message"),
        ({"instruction": "x", "input": 3, "output": "y"}, "input is a number, not text"),
        ({"messages": [USER, BOT], "system": 3}, "the system prompt is a number, not text"),
    ],
)
def test_exchanges_that_are_none(values: dict[str, Any], expected: str) -> None:
    assert expected in reason(values)


def test_a_system_prompt_beside_a_conversation_comes_first_unless_there_is_one() -> None:
    own = {"role": "system", "content": "own"}
    first = read({"conversations": [USER, BOT], "system": "beside"}).messages[0]
    assert first == {"role": "system", "content": "beside"}
    assert read({"conversations": [own, USER, BOT], "system": "beside"}).messages[0] == own


def test_lists_written_as_json_inside_text() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    packed = {"messages": json.dumps([USER, BOT]), "tools": json.dumps(tools)}
    assert read(packed) == Conversation([USER, BOT], tools)
    assert read({"messages": [USER, BOT], "tools": "[]"}).tools is None


def test_a_call_in_a_message_of_its_own_becomes_the_assistants() -> None:
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'}
    message = read({"conversations": [{"from": "human", "value": "hi"}, call]}).messages[1]
    assert message["role"] == "assistant"
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
    assert "a tool call whose text is not JSON" in reason({"conversations": [{**call, "value": "f(x)"}]})
    assert "tool_calls is text, not a list" in reason({"messages": [USER, {**BOT, "tool_calls": "f"}]})


@pytest.mark.parametrize(
    "call", [None, "f", {}, {"function": "f"}, {"function": {"arguments": "{}"}}, {"name": 5}]
)
def test_a_call_that_no_template_could_show_is_refused(call: Any) -> None:
    good = {"name": "f", "arguments": {}}
    assert "messages[1]: tool_calls[1] is no call" in reason(
        {"messages": [USER, {**BOT, "tool_calls": [good, call]}]}
    )


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_that_are_no_text_are_refused(key: str) -> None:
    assert f"messages[1]: {key} is a list, not text" in reason({"messages": [USER, {**BOT, key: ["hm"]}]})
    assert read({"messages": [USER, {**BOT, key: []}]}).messages[1]["content"] == BOT["content"]


def test_a_call_as_openai_wrote_it_first_becomes_one_of_its_later_form() -> None:
    older = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    message = read({"messages": [USER, older]}).messages[1]
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


def test_tools_must_be_a_list() -> None:
    assert "tools is text" in reason({"messages": [USER, BOT], "tools": "search"})
    assert read({"messages": [USER, BOT], "tools": []}).tools is None


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
    same = read({"input_ids": np.array([1, 2, 3], np.int64), "loss_mask": np.array([0, 1, 1], np.int8)})
    assert (same.ids.tolist(), same.ids.dtype, same.mask.tolist()) == ([1, 2, 3], "int32", [0, 1, 1])
    labelled = read({"input_ids": [1, 2, 3], "labels": [-100, 2, -100]})
    assert labelled.mask.tolist() == [0, 1, 0]
    # Columns of a table that this row has nothing in.
    labelled = read({"input_ids": [1, 2, 3], "loss_mask": None, "labels": [-100, 2, -100]})
    assert labelled.mask.tolist() == [0, 1, 0]
    assert read({"input_ids": [1, 2, 3], "loss_mask": None, "labels": None}).mask is None


def test_padding_that_the_attention_mask_tells_is_left_out() -> None:
    padded = {
        "input_ids": [0, 7, 8, 9, 0, -1], "attention_mask": [0, 1, 1, 1, 0, 0], "labels": [-100, -100, 8, 9, -100, -100],
    }  # fmt: skip
    got = read(padded)
    assert (got.ids.tolist(), got.mask.tolist()) == ([7, 8, 9], [0, 1, 1])
    assert "attention_mask has a 0 between ones" in reason({**padded, "attention_mask": [1, 0, 1, 1, 0, 0]})
    assert "the row is padding alone" in reason({**padded, "attention_mask": [0] * 6})
    # Places are those of the row as it was given.
    assert "input_ids[2] is -4" in reason({"input_ids": [0, 1, -4], "attention_mask": [0, 1, 1]})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": "1 2"}, "input_ids is text, not a list of whole numbers"),
        ({"input_ids": [1, "2"]}, "input_ids[1] is text, not a whole number"),
        ({"input_ids": [1, 2.0]}, "input_ids[1] is a number, not a whole number"),
        ({"input_ids": [[1, 2]]}, "input_ids[0] is a list, not a whole number"),
        ({"input_ids": [True, 5]}, "input_ids[0] is true or false, not a whole number"),
        ({"input_ids": [1, None]}, "input_ids[1] is missing, not a whole number"),
        ({"input_ids": [1, -5]}, "input_ids[1] is -5, which is no token id"),
        ({"input_ids": [2**40]}, "input_ids[0] is 1099511627776, which is no token id"),
        ({"input_ids": [2**80]}, "input_ids holds a number beyond 64 bits"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "loss_mask has 1 entries for 2 input_ids"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "loss_mask[1] is 2; it must be 0 or 1"),
        ({"input_ids": [1, 2], "loss_mask": "1 1"}, "loss_mask is text, not a list"),
        (
            {"input_ids": [1, 2], "labels": [-100, 3]},
            "labels must be the token itself (not the next one) or -100",
        ),
    ],
)
def test_tokens_that_are_none(values: dict[str, Any], expected: str) -> None:
    assert expected in reason(values)


def test_sample_ids() -> None:
    shape = AUTO.shape_of({"id": 1, "text": "x"})
    assert shape is not None
    assert sample_id_of(shape, {"id": 17}) == "17"
    assert sample_id_of(shape, {"id": "../x"}) == "../x"
    assert sample_id_of(shape, {"id": None}) is None
    assert sample_id_of(shape, {"id": ""}) is None
    for wrong in (True, 1.5, ["a"], {"a": 1}):
        with pytest.raises(RowError, match="an id is text or a whole number"):
            sample_id_of(shape, {"id": wrong})
    with pytest.raises(RowError, match="id has 1001 characters"):
        sample_id_of(shape, {"id": "x" * 1001})


def test_a_row_is_read_from_bytes_or_from_a_record() -> None:
    expected = SourceRow("f", 5, "a", Text("x"))
    assert parse_row(RawRow("f", 5, "line 6", b'{"id": "a", "text": "x"}'), AUTO) == expected
    assert parse_row(RawRow("f", 5, "row 5", {"id": "a", "text": "x"}), AUTO) == expected
    refused = parse_row(RawRow("f", 5, "row 5", RowError("unreadable")), AUTO)
    assert refused == SkippedRow("f", 5, None, "unreadable")
    nameless = parse_row(RawRow("f", 5, "row 5", {"id": "a", "text": 3}), AUTO)
    assert nameless == SkippedRow("f", 5, "a", "text is a number, not text")


def test_a_row_that_its_file_refused_keeps_its_filter_wherever_it_goes() -> None:
    raw = copy.deepcopy(RawRow("f", 5, "row 5", RowError("nothing there", "empty")))
    assert parse_row(raw, copy.deepcopy(AUTO)) == SkippedRow("f", 5, None, "nothing there", "empty")


def test_the_page_about_data_has_every_column_role_and_filter() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    for what, names in SPELLINGS.items():
        assert what == "id" or f"`{what}`" in page
        assert all(f"`{name}`" in page for name in names)
    for role in ROLES:
        assert re.search(rf"\b{re.escape(role)}\b", page), role
    assert all(f"| {cause} |" in page for cause in get_args(Cause))


# --- conversations in other shapes ---


@pytest.mark.parametrize(
    "values",
    [
        {"data": ["hi", "hello"]},
        {"conversation": [{"input": "hi", "output": "hello"}]},
        {"conversation": [{"human": "hi", "assistant": "hello"}]},
        {"messages": {"role": ["user", "assistant"], "content": ["hi", "hello"]}},
        {"conversations": {"from": ["human", "gpt"], "value": ["hi", "hello"], "weight": None}},
        {"messages": [["human", "hi"], ["ai", "hello"]]},
        {"Conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"Instruction": "hi", "Response": "hello"},
        {"messages": [{"Role": "user", "Content": "hi"}, {"role": "model", "parts": [{"text": "hello"}]}]},
        {"messages": [{"role": "user", "text": "hi"}, BOT]},
        {"prompt": "hi", "chosen": [USER, BOT], "response": [USER, BOT]},
        {"prompt": [USER], "completion": [USER, BOT]},
        {"instruction": "hi", "output": "hello", "history": []},
        {"instruction": "hi", "output": "hello", "history": None},
    ],
)
def test_conversations_in_other_shapes(values: dict[str, Any]) -> None:
    assert read(values) == Conversation([USER, BOT])


def test_what_was_said_before_a_prompt_comes_before_it() -> None:
    first, second = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    for history in ([["a", "b"]], [{"user": "a", "assistant": "b"}], [first, second]):
        got = read({"instruction": "hi", "output": "hello", "history": history, "system": "s"})
        assert got.messages == [{"role": "system", "content": "s"}, first, second, USER, BOT]
    assert "history is a number, not a list" in reason({"instruction": "a", "output": "b", "history": 3})
    # A question that nobody answered yet.
    unanswered = read({"conversation": [{"input": "a", "output": None}, BOT]}).messages
    assert unanswered == [first, BOT]


def test_lists_that_do_not_fit_together() -> None:
    uneven = {"role": ["user", "assistant"], "content": ["hi"]}
    assert reason({"messages": uneven}) == "messages.content has 1 entries for 2 of messages.role"


def test_several_calls_in_one_message() -> None:
    calls = [{"name": "f", "arguments": {}}, {"name": "g", "parameters": {"x": 1}}]
    talk = {
        "conversations": [
            {"from": "human", "value": "a"},
            {"from": "function_call", "value": json.dumps(calls)},
        ]
    }
    made = read(talk).messages[1]["tool_calls"]
    assert [call["function"] for call in made] == [
        {"name": "f", "arguments": {}},
        {"name": "g", "arguments": {"x": 1}},
    ]


def test_functions_as_openai_had_them_become_tools() -> None:
    described = {"name": "f", "parameters": {}}
    got = read({"messages": [USER, BOT], "functions": [described]})
    assert got.tools == [{"type": "function", "function": described}]
    assert "functions is text" in reason({"messages": [USER, BOT], "functions": "f"})


@pytest.mark.parametrize(("weight", "kept"), [(0, 0), (1, 1), (0.0, 0), (True, 1)])
def test_weights_of_turns(weight: Any, kept: int) -> None:
    assert read({"messages": [USER, {**BOT, "weight": weight}]}).messages[1]["weight"] == kept


@pytest.mark.parametrize("weight", [0.5, 2, -1, "0", []])
def test_weights_that_are_none(weight: Any) -> None:
    assert "messages[1]: weight is " in reason({"messages": [USER, {**BOT, "weight": weight}]})
    # Of those that learn nothing it does not matter.
    assert len(read({"messages": [{**USER, "weight": weight}, BOT]}).messages) == 2


@pytest.mark.parametrize(
    ("row", "way_out"),
    [
        ({"chat": [USER, BOT], "title": "x"}, "give --columns messages=chat"),
        ({"rejected": [USER, BOT], "chosen": [USER, BOT]}, "give --columns messages=chosen"),
        ({"tokens": [1, 2]}, "give --columns input_ids=tokens"),
        ({"q": "a", "a": "b", "n": 1}, "name its columns, for example --columns prompt=q,response=a"),
        ({"chosen": "a", "rejected": "b"}, "name its columns, for example --columns text=chosen"),
        ({"a": 1, "b": {}}, "name its columns, for example --columns messages=NAME"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            "--columns response=chosen takes the preferred one",
        ),
    ],
)
def test_what_is_not_recognised_says_what_would_be(row: dict[str, Any], way_out: str) -> None:
    skipped = parse_row(RawRow("f", 0, "line 1", json.dumps(row).encode()), AUTO)
    assert isinstance(skipped, SkippedRow)
    assert skipped.reason.endswith(way_out)
