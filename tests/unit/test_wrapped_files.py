"""Files that are one JSON object around their rows: read, or refused with the very call that makes rows of them."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from hiddenfeed.errors import ConfigError
from producer.columns import Columns, choose_columns
from producer.rows import RawRow
from producer.sources import RowReader, find_files, wrapped
from producer.sources.wrapped import members_of

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
ROWS = [{"messages": TURNS, "id": n} for n in range(3)]


def read(
    path: Path, document: Any, columns: Columns | None = None, **dump: Any
) -> tuple[list[RawRow], list[str]]:
    """The rows of a file with this document in it, and what was said of it."""
    data = document if isinstance(document, bytes) else json.dumps(document, **dump).encode()
    path.write_bytes(data)
    said: list[str] = []
    return list(RowReader(find_files(str(path)), columns or Columns(), said.append)), said


def values(rows: list[RawRow]) -> list[Any]:
    return [json.loads(row.raw) for row in rows if isinstance(row.raw, bytes)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"train": ROWS}, "the list train of one JSON object"),
        ({"data": ROWS}, "the list data of one JSON object"),
        ({"conversations": ROWS}, "the list conversations of one JSON object"),
        ({"version": "1, {", "about": {"a": [1]}, "data": ROWS, "n": 3}, "the list data of one JSON object; not read: version, about, n"),
        # Of several lists of objects the one that rows are in.
        ({"authors": [{"called": "x"}], "rows": ROWS}, "the list rows of one JSON object; not read: authors"),
        ({"data": [{"question": "a", "answer": "b"}] * 3}, "the list data of one JSON object"),
    ],
)  # fmt: skip
def test_the_one_list_of_objects_is_read_and_said(
    tmp_path: Path, document: dict[str, Any], said: str, indent: int | None
) -> None:
    rows, lines = read(tmp_path / "a.json", document, indent=indent)
    assert values(rows) == next(
        value for value in document.values() if isinstance(value, list) and len(value) == 3
    )
    assert [row.place for row in rows] == ["element 1", "element 2", "element 3"]
    assert lines[0].startswith(f"reading a.json ({said}): column")


def test_columns_of_ones_own_count(tmp_path: Path) -> None:
    mine = {"mine": [{"chat": TURNS}], "other": [{"messages": TURNS}]}
    rows, _ = read(tmp_path / "a.json", mine, choose_columns("auto", "messages=chat"))
    assert values(rows) == mine["mine"]


def test_packed_and_behind_a_byte_order_mark(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + json.dumps({"x": "é", "data": ROWS}, ensure_ascii=False).encode()
    rows, said = read(tmp_path / "a.json.gz", gzip.compress(text))
    assert values(rows) == ROWS
    assert said[0].startswith("reading a.json.gz (the list data of one JSON object; not read: x, gzip): ")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": TURNS},
        {"id": 1, "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"conversation": [{"input": "hi", "output": "hello"}]},
        {"messages": {"role": ["user", "assistant"], "content": ["hi", "hello"]}},
        {"conversation": {"messages": TURNS}},
        {"prompt": TURNS[:1], "response": TURNS[1:], "tools": [{"name": "f"}]},
        {"text": "hi", "data": ROWS},
        {"data": ["hi", "hello"]},
        {"messages": [["human", "hi"], ["ai", "hello"]]},
        {"chosen": TURNS, "rejected": TURNS},
        {"title": "x", "meta": {"a": 1}},
        {},
    ],
)
def test_one_row_alone_is_a_row(tmp_path: Path, row: dict[str, Any]) -> None:
    rows, _ = read(tmp_path / "a.jsonl", row)
    assert values(rows) == [row]
    assert rows[0].place == "line 1"


def test_lines_of_wrapped_rows_are_lines(tmp_path: Path) -> None:
    lines = b"\n".join(json.dumps({"data": ROWS}).encode() for _ in range(2))
    rows, _ = read(tmp_path / "a.jsonl", lines)
    assert values(rows) == [{"data": ROWS}] * 2
    # A first line that is none costs itself alone.
    rows, _ = read(tmp_path / "b.jsonl", b'{"text": "x"\n{"text": "y"}\n')
    assert [row.raw for row in rows] == [b'{"text": "x"\n', b'{"text": "y"}\n']


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"train": ROWS, "test": ROWS}, "with several lists of rows (train, test); write the one that is wanted to a file of its own, for example with jq -c '.train[]'"),
        ({"conversations": {"a": {"messages": TURNS}, "b": {"messages": TURNS}}}, "jq -c '.conversations | to_entries[] | {id: .key} + .value' makes of them"),
        ({"conversations": {"a": TURNS, "b": TURNS}}, "whose conversations has rows by their ids; rows are objects of one line each, which jq -c '.conversations | to_entries[] | {id: .key, messages: .value}'"),
        ({"my talks": {"a": TURNS}}, "jq -c '.[\"my talks\"] | to_entries[] | {id: .key, messages: .value}'"),
        ({"conversations": [TURNS, TURNS]}, "whose conversations is a list of lists of turns; rows are objects, which jq -c '.conversations[] | {messages: .}'"),
        ({"a": {"messages": TURNS}, "b": {"messages": TURNS}}, "of rows by their ids; rows are objects of one line each, which jq -c 'to_entries[] | {id: .key} + .value'"),
    ],
)  # fmt: skip
def test_what_is_not_in_one_list_says_what_to_do(tmp_path: Path, document: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "a.json", document)
    assert str(caught.value).startswith(f"{tmp_path / 'a.json'} is one JSON object ")
    assert said in str(caught.value)


@pytest.mark.parametrize("chunk", [1, 7, 50, 10_000])
def test_members_are_found_wherever_the_stream_is_cut(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    document = {"a": 'x"],{', 'b"': [{"k": [1, {"z": "}"}]}, 2], "c": {"n": {"m": 1}}, "d": None, "e": []}
    text = b" \n" + json.dumps(document).encode() + b"\n \n"
    monkeypatch.setattr(wrapped, "_CHUNK_BYTES", chunk)
    members = members_of(io.BytesIO(text))
    assert members is not None
    assert [(one.key, one.opening, one.first, one.first_key) for one in members] == [
        ("a", '"', None, ""), ("b\"", "[", {"k": [1, {"z": "}"}]}, ""), ("c", "{", {"m": 1}, "n"), ("d", "n", None, ""), ("e", "[", None, ""),
    ]  # fmt: skip
    assert [json.JSONDecoder().raw_decode(text[one.start :].decode())[0] for one in members] == list(
        document.values()
    )
    assert members_of(io.BytesIO(text + b"x")) is None
    assert members_of(io.BytesIO(text.rstrip()[:-1])) is None


def test_of_a_long_member_only_the_beginning_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapped, "_HEAD_BYTES", 40)
    long = [{"text": "x" * 100}, {"text": "y"}]
    rows, said = read(tmp_path / "a.json", {"about": "z" * 100, "rows": long})
    assert values(rows) == long
    assert "the list rows of one JSON object; not read: about" in said[0]
