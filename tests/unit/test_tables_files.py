"""Parquet and Arrow files: the rows that JSON of the same content gives, and what becomes of damaged ones."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hiddenfeed.errors import ConfigError
from producer.columns import Columns
from producer.parse_row import parse_row
from producer.rows import Conversation, SkippedRow, SourceRow, Text, Tokens
from producer.sources import LocalFile, RowReader, tables

Rows = list[SourceRow | SkippedRow]
Write = Callable[[pa.Table, Path], None]


def parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=3)


def arrow_file(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=3)


def arrow_stream(table: pa.Table, path: Path) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(path, table.schema, options=options) as stream:
        stream.write_table(table, max_chunksize=3)


WRITERS = pytest.mark.parametrize("write", [parquet, arrow_file, arrow_stream])


class Unnamed:
    """A file without a path here, as those elsewhere are."""

    name = where = "elsewhere"
    path = None

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._data))

    def state(self) -> tuple[int, str]:
        return len(self._data), ""


def read(path: Path, said: list[str] | None = None) -> Rows:
    """The rows of a file, which are the same if it is elsewhere."""
    say = (lambda line: None) if said is None else said.append
    here = [parse_row(row, Columns()) for row in RowReader([LocalFile(path, "elsewhere")], Columns(), say)]
    there = [parse_row(row, Columns()) for row in RowReader([Unnamed(path.read_bytes())], Columns())]
    assert list(map(repr, here)) == list(map(repr, there))
    return here


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


def contents(rows: Rows) -> list[Any]:
    return [row.content if isinstance(row, SourceRow) else row.reason for row in rows]


@WRITERS
def test_conversations_are_those_of_the_same_json(tmp_path: Path, write: Write) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    other = {"type": "function", "function": {"name": "g", "arguments": {"y": "z"}}}
    rows = [
        {
            "id": number,
            "messages": [{"role": "user", "content": f"hi {number}"}, {"role": "assistant", "content": "", "tool_calls": [made]}],
        }
        for number, made in enumerate([call, other] * 4)
    ]  # fmt: skip
    write(table_of(rows), tmp_path / "data")
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    got, expected = read(tmp_path / "data"), read(tmp_path / "data.jsonl")
    # A table gives every object all fields; those that say nothing are not there.
    assert got == expected
    assert isinstance(got[1], SourceRow)
    assert isinstance(got[1].content, Conversation)
    assert got[1].content.messages[1]["tool_calls"] == [other]


@WRITERS
@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16(), 3)])
def test_tokens_of_every_kind_of_list(tmp_path: Path, write: Write, kind: pa.DataType) -> None:
    ids = [[n, n + 1, n + 2] for n in range(8)]
    table = pa.table(
        {
            "input_ids": pa.array([None, *ids[1:]], kind),
            "loss_mask": pa.array([[0, 1, 1]] * 8, pa.list_(pa.int8())),
            "sample_id": pa.array([f"s{n}" for n in range(8)], pa.large_string()),
            "wide": pa.array(["x" * 1000] * 8),
        }
    )
    write(table, tmp_path / "data")
    rows = read(tmp_path / "data")
    # The first row holds nothing, and so does not say that it is a sample.
    assert "row 0 has none of messages" in contents(rows)[0]
    for number, row in enumerate(rows[1:], start=1):
        assert isinstance(row, SourceRow)
        assert isinstance(row.content, Tokens)
        assert row.content.mask is not None
        assert (row.sample_id, row.content.ids.tolist()) == (f"s{number}", ids[number])
        assert row.content.mask.tolist() == [0, 1, 1]


def test_lists_with_holes_are_refused_by_place(tmp_path: Path) -> None:
    parquet(
        pa.table({"input_ids": pa.array([[1, 2], [3, None], [4]], pa.list_(pa.int64()))}), tmp_path / "data"
    )
    one, two, three = read(tmp_path / "data")
    assert isinstance(one, SourceRow)
    assert isinstance(three, SourceRow)
    assert contents([two]) == ["input_ids[1] is missing, not a whole number"]


@WRITERS
def test_a_value_that_is_no_text_costs_its_own_row_alone(tmp_path: Path, write: Write) -> None:
    raw = pa.array([b"a", b"\xff\xfe", b"c"], pa.binary())
    write(pa.table({"text": raw.view(pa.string()), "id": ["x", "y", "z"]}), tmp_path / "data")
    rows = read(tmp_path / "data")
    assert contents(rows)[::2] == [Text("a"), Text("c")]
    assert contents(rows)[1].startswith("row 1: column text cannot be read: 'utf-8' codec can't decode")


def test_mixed_rows_dictionaries_and_other_kinds_of_values(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": pa.array(["a", None, "a"]).dictionary_encode(),
            "messages": pa.array([None, [{"from": "human", "value": "hi"}], None]),
            "id": pa.array([1, 2, 3], pa.timestamp("us")),
        }
    )
    parquet(table, tmp_path / "data")
    assert contents(read(tmp_path / "data")) == ["id is datetime; an id is text or a whole number"] * 3
    parquet(table.drop_columns(["id"]), tmp_path / "data")
    said: list[str] = []
    expected = [Text("a"), Conversation([{"role": "user", "content": "hi"}]), Text("a")]
    assert contents(read(tmp_path / "data", said)) == expected
    assert said == [
        "reading elsewhere (Parquet, 3 rows): column text, ids made from row numbers",
        "elsewhere also has rows of column messages, ids made from row numbers",
    ]


@WRITERS
def test_json_inside_a_table_is_read(tmp_path: Path, write: Write) -> None:
    """As `datasets` keeps what has no common type: arguments of calls, say, or whole messages."""
    texts = pa.array(['{"x": 1, "y": null}', '{"x": ["a"]}', "{broken"])
    arguments = pa.ExtensionArray.from_storage(pa.json_(), texts)
    calls = pa.StructArray.from_arrays([pa.array(["f"] * 3), arguments], ["name", "arguments"])
    each = pa.ListArray.from_arrays([0, 0, 1, 1, 2, 2, 3], calls)
    roles, said = pa.array(["user", "assistant"] * 3), pa.array(["hi", None] * 3)
    turns = pa.StructArray.from_arrays([roles, said, each], ["role", "content", "tool_calls"])
    write(pa.table({"messages": pa.ListArray.from_arrays([0, 2, 4, 6], turns)}), tmp_path / "data")
    one, two, three = contents(read(tmp_path / "data"))
    assert one.messages[1]["tool_calls"] == [{"name": "f", "arguments": {"x": 1, "y": None}}]
    assert two.messages[1]["tool_calls"] == [{"name": "f", "arguments": {"x": ["a"]}}]
    assert three.startswith("row 2: column messages cannot be read: JSON is malformed")
    whole = pa.array([json.dumps([{"role": "user", "content": "hi"}])] * 3)
    write(pa.table({"conversations": pa.ExtensionArray.from_storage(pa.json_(), whole)}), tmp_path / "data")
    assert contents(read(tmp_path / "data")) == [Conversation([{"role": "user", "content": "hi"}])] * 3


def test_only_the_columns_of_a_sample_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet(
        pa.table({"text": ["a"] * 7, "embedding": [[0.5] * 99] * 7, "id": list(range(7))}), tmp_path / "data"
    )
    asked: list[list[str]] = []
    whole = pq.ParquetFile.iter_batches

    def spy(self: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(options["columns"])
        return whole(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    assert len(read(tmp_path / "data")) == 7
    assert asked == [["text", "id"]] * 2


def test_rows_are_decoded_few_at_a_time_if_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_BATCH_BYTES", 4000)
    rng = np.random.default_rng(0)
    parquet(pa.table({"text": [rng.bytes(500).hex() for _ in range(20)]}), tmp_path / "data")
    metadata = pq.read_metadata(tmp_path / "data")
    assert tables._batch_rows(metadata, ["text"]) == 2
    assert tables._batch_rows(metadata, []) == tables._BATCH_ROWS
    assert len(read(tmp_path / "data")) == 20


@WRITERS
def test_an_empty_table_has_no_rows(tmp_path: Path, write: Write) -> None:
    write(pa.table({"text": pa.array([], pa.string())}), tmp_path / "data")
    assert read(tmp_path / "data") == []


@WRITERS
def test_a_table_without_a_column_that_makes_a_sample_is_an_error(tmp_path: Path, write: Write) -> None:
    write(pa.table({"title": ["a"], "id": [1]}), tmp_path / "data")
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "data")
    assert f"{tmp_path / 'data'} has none of messages, " in str(caught.value)
    assert "it has title, id; name its columns, for example --columns text=title" in str(caught.value)


@WRITERS
def test_a_table_that_is_cut_anywhere_is_an_error_that_names_it(tmp_path: Path, write: Write) -> None:
    write(pa.table({"text": [f"text number {n}" for n in range(9)]}), tmp_path / "data")
    whole = (tmp_path / "data").read_bytes()
    for kept in (len(whole) - 1, len(whole) - 8, len(whole) // 2, 40, 8):
        (tmp_path / "data").write_bytes(whole[:kept])
        with pytest.raises(ConfigError, match=r"data is damaged") as caught:
            read(tmp_path / "data")
        assert "\n" not in str(caught.value)


def test_a_page_that_is_damaged_is_an_error_that_says_after_which_row(tmp_path: Path) -> None:
    rows = [f"text number {n}" for n in range(3000)]
    pq.write_table(
        pa.table({"text": rows}),
        tmp_path / "data",
        row_group_size=1000,
        compression="zstd",
        use_dictionary=False,
    )
    damaged = bytearray((tmp_path / "data").read_bytes())
    chunk = pq.read_metadata(tmp_path / "data").row_group(2).column(0)
    start = chunk.data_page_offset + 60
    damaged[start : start + 200] = bytes(200)
    (tmp_path / "data").write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"data is damaged after row \d+"):
        read(tmp_path / "data")


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    arrow_file(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]), tmp_path / "data")
    with pytest.raises(ConfigError, match="has two columns text"):
        read(tmp_path / "data")


def test_a_name_that_promises_a_table(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"<html>not found</html>\n")
    with pytest.raises(ConfigError, match=r"x\.parquet is neither Parquet nor Arrow, whatever its name says"):
        list(RowReader([LocalFile(tmp_path / "x.parquet", "x.parquet")], Columns()))
