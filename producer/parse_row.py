"""One input row read: bytes or a record in, its content with its id or the reason why not out.

`parse_row` is a pure function of plain values, so that rows can be read in any process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from producer.chat_export import EXPORT, is_export
from producer.columns import Columns, Shape
from producer.given_tokens import given_tokens
from producer.looks import is_turn, look_of
from producer.rows import Content, RawRow, RowError, SkippedRow, SourceRow, Text, kind_of
from producer.tools import tool_list
from producer.turns import conversation, exchange

MAX_ID_CHARACTERS = 1000


def parse_row(row: RawRow, columns: Columns) -> SourceRow | SkippedRow:
    """The row read; never raises for what is wrong with it."""
    sample_id: str | None = None
    try:
        values = values_of(row)
        shape = columns.shape_of(values)
        if shape is None and is_export(values):
            raise RowError(f"{row.place} {EXPORT}")
        if shape is None:
            looks = {str(name): look_of(value) for name, value in values.items()}
            without = [name for name in looks if columns.makes_samples([name])]
            if without and not {"turns", "numbers"} & set(looks.values()):
                raise RowError(f"{row.place} has no value in {', '.join(without)}")
            raise RowError(f"{row.place} has {columns.missing(looks)}")
        sample_id = sample_id_of(shape, values)
        return SourceRow(row.file, row.source_row, sample_id, content_of(shape, values))
    except RowError as error:
        return SkippedRow(row.file, row.source_row, sample_id, str(error), error.cause)


def values_of(row: RawRow) -> Mapping[str, Any]:
    """The row's columns; raises RowError for one that has none."""
    if isinstance(row.raw, RowError):
        raise row.raw
    if not isinstance(row.raw, bytes):
        return row.raw
    try:
        values = msgspec.json.decode(row.raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RowError(f"{row.place} is not JSON: {error}") from None
    except RecursionError:
        raise RowError(f"{row.place} is not JSON that can be read: it is nested too deeply") from None
    if not isinstance(values, dict):
        turns = isinstance(values, list) and values and is_turn(values[0])
        each = ".[] | " if row.place.startswith("element") else ""
        way_out = f", but a list of turns; jq -c '{each}{{messages: .}}' makes lines of such" if turns else ""
        raise RowError(f"{row.place} is not a JSON object with named fields{way_out}")
    return values


def sample_id_of(shape: Shape, values: Mapping[str, Any]) -> str | None:
    """The row's own id, None if it has none; raises RowError for one that is no name."""
    column = shape.column("id")
    raw = values.get(column) if column else None
    if raw is None or raw == "":
        return None
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise RowError(f"{column} is {kind_of(raw)}; an id is text or a whole number")
    if isinstance(raw, str) and len(raw) > MAX_ID_CHARACTERS:
        raise RowError(f"{column} has {len(raw)} characters; {MAX_ID_CHARACTERS} are allowed")
    return str(raw)


def content_of(shape: Shape, values: Mapping[str, Any]) -> Content:
    """The row's content; raises RowError naming the field that is wrong."""
    if shape.kind == "input_ids":
        return given_tokens(shape.columns, values)
    if shape.kind == "prompt":
        return exchange(shape.columns, values)
    column = shape.columns[shape.kind]
    if shape.kind == "text":
        return _text(column, values.get(column))
    system, tools = shape.column("system"), shape.column("tools")
    return conversation(
        column,
        values.get(column),
        values.get(system) if system else None,
        tool_list(tools, values.get(tools)) if tools else None,
    )


def _text(column: str, raw: Any) -> Text:
    if not isinstance(raw, str):
        raise RowError(f"{column} is {kind_of(raw)}, not text")
    if not raw.strip():
        raise RowError(f"{column} is empty", "empty")
    return Text(raw)
