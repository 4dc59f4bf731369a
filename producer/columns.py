"""Which columns make a row a sample: the names that people give them, recognised row by row or as told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hiddenfeed.errors import ConfigError
from hiddenfeed.words import nearest_text
from producer.looks import Look, way_in

#: What a sample is made of, and the columns it may be in, the first one that a row has is taken.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "conversations": ("conversations", "conversation", "data"),
    "input_ids": ("input_ids",),
    "prompt": ("prompt", "instruction", "question", "query", "input"),
    "text": ("text",),
    "response": ("response", "completion", "output", "answer"),
    "input": ("input", "context"),
    "history": ("history",),
    "system": ("system", "system_prompt"),
    "tools": ("tools", "functions"),
    "loss_mask": ("loss_mask", "assistant_masks", "completion_mask"),
    "labels": ("labels",),
    "attention_mask": ("attention_mask",),
    "id": ("id", "sample_id", "conversation_id"),
}
#: Kinds of rows, named after the column that makes a row one; where a row has several the first counts.
KINDS = ("messages", "conversations", "input_ids", "prompt", "text")
#: Names that may be of anything: what is in them counts where nothing else makes the row a sample.
VAGUE = ("data",)
#: Columns that are read beside the one that makes the kind.
_BESIDE: Mapping[str, tuple[str, ...]] = {
    "messages": ("system", "tools"),
    "conversations": ("system", "tools"),
    "input_ids": ("attention_mask", "loss_mask", "labels"),
    "prompt": ("response", "input", "history", "system", "tools"),
    "text": (),
}
#: What is said aloud when it has a column of its own.
_TOLD = ("history", "system", "tools")
_SHOWN = 8
#: A file has few shapes of rows; one that has ever new ones must not fill the memory.
_SHAPES_KNOWN = 1000


@dataclass(frozen=True)
class Shape:
    """How one row is read: its kind, and the column of everything it is made of."""

    kind: str
    #: What -> column, of what the row has; the kind itself is among them.
    columns: Mapping[str, str]
    #: Other columns of the row, with something in them that nobody reads.
    unused: tuple[str, ...] = ()

    def column(self, what: str) -> str | None:
        """The column that `what` is in, None if the row has none."""
        return self.columns.get(what)

    def __str__(self) -> str:
        return self.told()

    def told(self, unread: Sequence[str] = ()) -> str:
        """What is read from where, and which columns are not; `unread` are those that the file alone knows of."""
        content = self.columns[self.kind]
        if self.kind == "prompt":
            content = " and ".join(
                self.columns[what] for what in ("prompt", "input", "response") if what in self.columns
            )
        parts = [f"column {content}" if self.kind != "prompt" else f"columns {content}"]
        if self.kind == "input_ids":
            mask = self.columns.get("loss_mask") or self.columns.get("labels")
            parts.append(f"loss mask from column {mask}" if mask else "no loss mask")
        parts += [f"{what} from column {self.columns[what]}" for what in _TOLD if what in self.columns]
        own = self.columns.get("id")
        parts.append(f"ids from column {own}" if own else "ids made from row numbers")
        if self.unused or unread:
            parts.append(f"not used: {_listed([*self.unused, *unread])}")
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
        own = _names_by_spelling(values)
        found = [
            (kind, column, spelled in VAGUE)
            for kind in self.kinds
            for spelled in self.spellings[kind]
            if (column := own(spelled)) is not None and values[column] is not None
        ]
        if not found:
            return None
        found.sort(key=lambda one: one[2])
        kind, content, _ = found[0]
        answers = (own(spelled) for spelled in self.spellings["response"])
        if kind == "prompt" and all(name is None or values[name] is None for name in answers):
            # A question alone is no sample, so that something else may be one.
            kind, content, _ = next((other for other in found if other[0] != "prompt"), found[0])
        columns = {kind: content}
        for what in (*_BESIDE[kind], "id"):
            named = (own(spelled) for spelled in self.spellings[what])
            there = [name for name in named if name is not None and name != content]
            if there:
                columns[what] = next((name for name in there if values[name] is not None), there[0])
        taken = set(columns.values())
        unused = (name for name, value in values.items() if value is not None and name not in taken)
        return Shape(kind, columns, tuple(map(str, unused)))

    def wanted(self, names: Sequence[str]) -> list[str]:
        """Those of a table's columns that a row may be read from; whatever else it has need not be read."""
        known = {spelled.lower() for what in self.spellings for spelled in self.spellings[what]}
        return [name for name in names if name.lower() in known]

    def makes_samples(self, names: Sequence[str]) -> bool:
        """Whether one of these columns can make a row a sample."""
        there = {name.lower() for name in names}
        return any(spelled.lower() in there for kind in self.kinds for spelled in self.spellings[kind])

    def missing(self, looks: Mapping[str, Look]) -> str:
        """What to say of a row or file with such columns, none of which makes a sample, and what to do."""
        wanted = ", ".join(
            column for kind in self.kinds for column in self.spellings[kind] if column not in VAGUE
        )
        return f"none of {wanted}; it has {_listed(list(looks)) or 'nothing'}{way_in(looks)}"


def _names_by_spelling(values: Mapping[str, Any]) -> Callable[[str], str | None]:
    """The row's own name for a column, None if it has none: exactly so, else in other capitals."""
    folded: dict[str, str] = {}
    for name in values:
        folded.setdefault(str(name).lower(), name)
    return lambda spelled: spelled if spelled in values else folded.get(spelled.lower())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


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
                f"{nearest_text(what, SPELLINGS) if equals else ''}"
            )
        if what in seen:
            raise ConfigError(f"--columns {columns!r} names {what} twice")
        if not column and what in KINDS:
            raise ConfigError(f"--columns {columns!r}: {what} needs the name of its column")
        seen.add(what)
        yield what, (column,) if column else ()
