"""Which columns make a row a sample: the names that people give them, recognised row by row or as told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hiddenfeed.errors import ConfigError

#: What a sample is made of, and the columns it may be in, the first one that a row has is taken.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "conversations": ("conversations", "conversation"),
    "input_ids": ("input_ids",),
    "prompt": ("prompt", "instruction", "question", "query", "input"),
    "text": ("text",),
    "response": ("response", "completion", "output", "answer"),
    "input": ("input",),
    "system": ("system", "system_prompt"),
    "tools": ("tools",),
    "loss_mask": ("loss_mask", "assistant_masks", "completion_mask"),
    "labels": ("labels",),
    "attention_mask": ("attention_mask",),
    "id": ("id", "sample_id", "conversation_id"),
}
#: Kinds of rows, named after the column that makes a row one; where a row has several the first counts.
KINDS = ("messages", "conversations", "input_ids", "prompt", "text")
#: Columns that are read beside the one that makes the kind.
_BESIDE: Mapping[str, tuple[str, ...]] = {
    "messages": ("system", "tools"),
    "conversations": ("system", "tools"),
    "input_ids": ("attention_mask", "loss_mask", "labels"),
    "prompt": ("response", "input", "system", "tools"),
    "text": (),
}
_SHOWN = 8
#: A file has few shapes of rows; one that has ever new ones must not fill the memory.
_SHAPES_KNOWN = 1000


@dataclass(frozen=True)
class Shape:
    """How one row is read: its kind, and the column of everything it is made of."""

    kind: str
    #: What -> column, of what the row has; the kind itself is among them.
    columns: Mapping[str, str]
    #: Other columns of the row that could have made it a sample.
    unused: tuple[str, ...] = ()

    def column(self, what: str) -> str | None:
        """The column that `what` is in, None if the row has none."""
        return self.columns.get(what)

    def __str__(self) -> str:
        content = self.columns[self.kind]
        if self.kind == "prompt":
            content = " and ".join(
                self.columns[what] for what in ("prompt", "input", "response") if what in self.columns
            )
        parts = [f"column {content}" if self.kind != "prompt" else f"columns {content}"]
        if self.kind == "input_ids":
            mask = self.columns.get("loss_mask") or self.columns.get("labels")
            parts.append(f"loss mask from column {mask}" if mask else "no loss mask")
        parts += [f"{what} from column {self.columns[what]}" for what in ("system",) if what in self.columns]
        own = self.columns.get("id")
        parts.append(f"ids from column {own}" if own else "ids made from row numbers")
        if self.unused:
            parts.append(f"not used: {', '.join(self.unused)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Columns:
    """What to look for in rows. Plain values, so that any process can be given it."""

    #: Kinds that are taken, in order of preference.
    kinds: tuple[str, ...] = KINDS
    #: What -> columns that it may be in, in order of preference.
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SPELLINGS)

    #: Shapes found so far, by the columns of their rows and which of those were empty.
    _known: dict[tuple[str | None, ...], Shape | None] = field(
        default_factory=dict, repr=False, compare=False
    )

    def shape_of(self, values: Mapping[str, Any]) -> Shape | None:
        """How to read a row with these columns; None if it has none that makes it a sample."""
        key = (*values, None, *(name for name, value in values.items() if value is None))
        if key not in self._known:
            if len(self._known) >= _SHAPES_KNOWN:
                self._known.clear()
            self._known[key] = self._shape_of(values)
        return self._known[key]

    def _shape_of(self, values: Mapping[str, Any]) -> Shape | None:
        found = [
            (kind, column)
            for kind in self.kinds
            for column in self.spellings[kind]
            if values.get(column) is not None
        ]
        if not found:
            return None
        kind, content = found[0]
        if kind == "prompt" and all(values.get(name) is None for name in self.spellings["response"]):
            # A question alone is no sample, so that something else may be one.
            kind, content = next((other for other in found if other[0] != "prompt"), found[0])
        columns = {kind: content}
        for what in (*_BESIDE[kind], "id"):
            there = [name for name in self.spellings[what] if name in values and name != content]
            if there:
                columns[what] = next((name for name in there if values[name] is not None), there[0])
        taken = set(columns.values())
        return Shape(kind, columns, tuple(column for _, column in found if column not in taken))

    def names(self) -> Iterator[str]:
        """All columns that a row may be read from; whatever else a file has need not be read."""
        for what in self.spellings:
            yield from self.spellings[what]

    def missing(self, values: Sequence[str]) -> str:
        """What to say of a row or file with the columns `values`, none of which makes a sample."""
        wanted = ", ".join(column for kind in self.kinds for column in self.spellings[kind])
        there = ", ".join(values[:_SHOWN]) or "nothing"
        more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
        return f"none of {wanted}; it has {there}{more}"


def choose_columns(data_format: str, columns: str) -> Columns:
    """The columns of `--data-format` and of `--columns messages=chat,id=uuid`; `id=` numbers the rows.

    A kind that is given its column is the only one taken, unless a format is asked for. Raises
    ConfigError for what is none.
    """
    given = dict(_pairs(columns))
    spellings = {what: given.get(what, names) for what, names in SPELLINGS.items()}
    named = tuple(kind for kind in KINDS if kind in given)
    kinds = (data_format,) if data_format != "auto" else named or KINDS
    return Columns(kinds, spellings)


def canonical_columns(columns: str) -> str:
    """`--columns` in one spelling, so that equal choices are equal texts; raises ConfigError."""
    return ",".join(f"{what}={''.join(names)}" for what, names in sorted(_pairs(columns)))


def _pairs(columns: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    seen: set[str] = set()
    for pair in columns.split(",") if columns.strip() else []:
        what, equals, column = (part.strip() for part in pair.partition("="))
        if not equals or what not in SPELLINGS:
            raise ConfigError(
                f"--columns {columns!r}: {pair.strip()!r} is not WHAT=COLUMN, where WHAT is one of {', '.join(SPELLINGS)}"
            )
        if what in seen:
            raise ConfigError(f"--columns {columns!r} names {what} twice")
        if not column and what in KINDS:
            raise ConfigError(f"--columns {columns!r}: {what} needs the name of its column")
        seen.add(what)
        yield what, (column,) if column else ()
