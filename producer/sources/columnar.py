"""Values of a table as JSON would have them, by their type: fields that say nothing are not there, JSON is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from producer.looks import Look

Convert = Callable[[Any], Any]


def look_of_type(kind: pa.DataType) -> Look:
    """What a column of this type looks like it holds, as `look_of` says it of a value."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if not is_list(kind):
        return ""
    inner = kind.value_type
    if pa.types.is_struct(inner):
        names = {inner.field(place).name for place in range(inner.num_fields)}
        return "turns" if names & {"role", "from"} else ""
    return "numbers" if pa.types.is_integer(inner) else ""


def is_list(kind: pa.DataType) -> bool:
    """True for lists of any kind."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def converter(kind: pa.DataType) -> Convert | None:
    """What makes a value of `kind`, as pyarrow gives it and not None, into JSON's; None if it is that already.

    A table's objects all have all fields, so a field without a value says nothing but that others have one:
    it is left out. Raises, for JSON that is none, what msgspec does.
    """
    if isinstance(kind, pa.BaseExtensionType):
        # What the library datasets makes of values that have no common type.
        return msgspec.json.decode if kind.extension_name == "arrow.json" else converter(kind.storage_type)
    if pa.types.is_struct(kind):
        return _object_of([kind.field(place) for place in range(kind.num_fields)])
    if is_list(kind):
        return _list_of(converter(kind.value_type))
    return None


def _object_of(fields: list[pa.Field]) -> Convert:
    converters = {field.name: converter(field.type) for field in fields}

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        made = {}
        for name, item in value.items():
            if item is not None:
                inner = converters[name]
                made[name] = item if inner is None else inner(item)
        return made

    return convert


def _list_of(inner: Convert | None) -> Convert | None:
    if inner is None:
        return None
    return lambda value: [None if item is None else inner(item) for item in value]
