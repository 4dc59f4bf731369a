"""One declared setting as facts: read off a group's fields, used by flags, environment and docs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

ENVIRONMENT_PREFIX = "HIDDENFEED_"


@dataclass(frozen=True)
class Setting:
    """One setting. `name` is unique over all groups."""

    name: str
    group: type[msgspec.Struct]
    default: Any
    help: str
    unit: str | None
    live: bool
    secret: bool
    required: bool
    #: What the value is converted to, with its limits.
    type: Any
    kind: str
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        """`--upload-parallelism`"""
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        """`HIDDENFEED_UPLOAD_PARALLELISM`"""
        return ENVIRONMENT_PREFIX + self.name.upper()


def settings_of(group: type[msgspec.Struct]) -> Iterator[Setting]:
    """The settings that a group declares, in their order."""
    info = inspect.type_info(group)
    assert isinstance(info, inspect.StructType)
    hints = {field.name: field.type for field in msgspec.structs.fields(group)}
    for field in info.fields:
        meta, inner = _unwrap(field.type)
        extra = meta.get("extra", {})
        yield Setting(
            name=field.name,
            group=group,
            default=field.default,
            help=meta.get("description", ""),
            unit=extra.get("unit"),
            live=bool(extra.get("live")),
            secret=bool(extra.get("secret")),
            required=bool(extra.get("required")),
            type=hints[field.name],
            kind=_kind(inner),
            choices=tuple(str(value) for value in inner.values)
            if isinstance(inner, inspect.LiteralType)
            else (),
        )


def _unwrap(node: inspect.Type) -> tuple[dict[str, Any], inspect.Type]:
    """The merged `Meta` of a field and its type without `None`."""
    meta: dict[str, Any] = {}
    while True:
        if isinstance(node, inspect.Metadata):
            meta |= {
                "extra": node.extra or {},
                "description": (node.extra_json_schema or {}).get("description", ""),
            }
            node = node.type
        elif isinstance(node, inspect.UnionType):
            node = next(part for part in node.types if not isinstance(part, inspect.NoneType))
        else:
            return meta, node


def _kind(node: inspect.Type) -> str:
    """`int`, `float`, `bool` or `str`."""
    for kind, kinds in (("bool", inspect.BoolType), ("int", inspect.IntType), ("float", inspect.FloatType)):
        if isinstance(node, kinds):
            return kind
    return "str"
