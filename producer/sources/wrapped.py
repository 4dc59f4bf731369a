"""A file that is one JSON object around its rows, `{"version": 1, "data": [{…}, …]}`: where in it they are.

Nothing of it is held but the beginning of each member, so that its size does not matter. What could be one
row as well, such as `{"messages": […]}`, is one row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from hiddenfeed.errors import ConfigError
from hiddenfeed.options import MIB
from producer.columns import VAGUE, Columns
from producer.looks import is_turn
from producer.rows import RowError
from producer.sources.array import Cutter, Scan, read_array
from producer.sources.files import DataFile
from producer.sources.unpack import unpack
from producer.turn_lists import is_pair

_CHUNK_BYTES = MIB
#: So much of a member is looked at to tell what it is.
_HEAD_BYTES = MIB
_SHOWN = 8
_KEY = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*', re.DOTALL)
#: A brace alone, then a key: no line of this would be a row.
_OVER_LINES = re.compile(rb'\{\s*\n\s*"[^"\n]*"\s*:')
_PLAIN_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class Member:
    """A key of the object and the beginning of its value."""

    key: str
    #: Where the value begins, in bytes of the unpacked file.
    start: int
    #: `[`, `{`, or the first character of something that holds nothing.
    opening: str
    #: The first element of a list, the first value of an object; {} for an object too long to be looked at.
    first: Any = None
    #: The key of an object's first value.
    first_key: str = ""


@dataclass(frozen=True)
class Inside:
    """The list that has the rows."""

    key: str
    start: int
    #: Keys of what is not read.
    others: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.others) - _SHOWN} more" if len(self.others) > _SHOWN else ""
        beside = f"; not read: {', '.join(self.others[:_SHOWN])}{more}" if self.others else ""
        return f"the list {self.key} of one JSON object{beside}"

    def read(self, where: str, stream: IO[bytes]) -> Iterator[tuple[str, bytes | RowError]]:
        """As `read_array`, of the unpacked file from its beginning."""
        left = self.start
        while left > 0 and (skipped := stream.read(min(left, _CHUNK_BYTES))):
            left -= len(skipped)
        return read_array(where, stream, alone=False)


def rows_inside(file: DataFile, head: bytes, columns: Columns) -> Inside | None:
    """Where the rows of a file whose text begins with `head` are, None if its lines are the rows.

    Raises ConfigError with what to do for an object that has rows, and not in one list.
    """
    head = head.lstrip()
    if not head.startswith(b"{") or _begins_with_rows(head):
        return None
    with file.open() as raw:
        stream = unpack(file.where, raw).stream
        members = members_of(stream)
    inside = _choose(file.where, members, columns) if members is not None else None
    if inside is None and _OVER_LINES.match(head):
        raise ConfigError(
            f"{file.where} is one JSON object over many lines; rows are objects of one line each, or the elements of an array "
            "(jq -c . makes lines of objects)"
        )
    return inside


def _begins_with_rows(head: bytes) -> bool:
    """True if the first line is an object and others follow, as nearly always."""
    line, newline, rest = head.partition(b"\n")
    if not newline or not rest.strip():
        return False
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def members_of(stream: IO[bytes]) -> list[Member] | None:
    """The members of the one object that a text is; None if it is none, or something follows it."""
    scan, held, begun, read = Scan(), b"", -1, 0
    found: list[Member] = []
    while chunk := stream.read(_CHUNK_BYTES):
        start, ends, last = scan.look(chunk)
        if begun < 0 and chunk.strip():
            begun = read + start
        for end in ends:
            text = held + chunk[start : min(end, start + _HEAD_BYTES)]
            member = _member(text[:_HEAD_BYTES], begun)
            if member is not None:
                found.append(member)
            elif text.strip() or end != last:
                return None
            held, start, begun = b"", end + 1, read + end + 1
        if last is not None:
            return found if _is_blank(chunk[last + 1 :], stream) else None
        if len(held) < _HEAD_BYTES:
            held += chunk[start : start + _HEAD_BYTES]
        read += len(chunk)
    return None


def _is_blank(rest: bytes, stream: IO[bytes]) -> bool:
    while not rest.strip():
        rest = stream.read(_CHUNK_BYTES)
        if not rest:
            return True
    return False


def _member(text: bytes, start: int) -> Member | None:
    named = _KEY.match(text)
    key = _decoded(named[1]) if named else None
    if named is None or not isinstance(key, str):
        return None
    value = text[named.end() :]
    opening = value[:1].decode("latin-1")
    first_key, first = "", None
    if opening in ("[", "{"):
        element = next(Cutter().feed(value), None)
        if opening == "{" and (within := _KEY.match(element if element is not None else value[1:])):
            first_key = str(_decoded(within[1]))
            element = element[within.end() :] if element is not None else None
            value = value[1 + within.end() :]
        else:
            value = value[1:]
        first = _decoded(element) if element is not None else ({} if value.lstrip()[:1] == b"{" else None)
    return Member(key, start + named.end(), opening, first, first_key)


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _choose(where: str, members: Sequence[Member], columns: Columns) -> Inside | None:
    """The list of rows; None if the object is a row itself, or nothing that is known."""
    shape = columns.shape_of({one.key: None if one.opening == "n" else one for one in members})
    if shape is not None:
        column = shape.columns[shape.kind]
        # Of a key that is there twice the last value counts, as everywhere.
        made_of = next(one for one in reversed(members) if one.key == column)
        if _is_row(made_of, columns):
            return None
        candidates = [made_of]
    else:
        candidates = [one for one in members if one.opening == "[" and _is_object(one.first)]
        likely = [one for one in candidates if columns.shape_of(one.first) is not None]
        candidates = likely or candidates
    lists = [one for one in candidates if one.opening == "[" and _is_object(one.first)]
    if len(lists) == 1:
        taken = lists[0]
        return Inside(taken.key, taken.start, tuple(one.key for one in members if one is not taken))
    way_out = _way_out(lists, members, columns)
    if way_out:
        raise ConfigError(f"{where} is one JSON object {way_out}")
    return None


def _is_object(value: Any) -> bool:
    """True for an object that is no turn of a conversation."""
    return isinstance(value, dict) and not is_turn(value)


def _is_row(member: Member, columns: Columns) -> bool:
    """True if a member that is named like a column of ours is one, rather than a list or object of rows."""
    first = member.first
    if member.opening == "[":
        if isinstance(first, list):
            return not (first and is_turn(first[0]))
        if not _is_object(first) or columns.shape_of(first) is None:
            return True
        return is_pair(first) and member.key.lower() not in VAGUE
    return member.opening != "{" or not _is_entry(member, columns)


def _is_entry(member: Member, columns: Columns) -> bool:
    """True for an object of conversations by their ids."""
    if member.first_key.lower() in ("role", "from", "messages", "conversation", "conversations", "mapping"):
        return False
    first = member.first
    if isinstance(first, list):
        return bool(first) and is_turn(first[0])
    return _is_object(first) and columns.shape_of(first) is not None


def _way_out(lists: Sequence[Member], members: Sequence[Member], columns: Columns) -> str:
    """What the object has that is not in one list, and the call of jq that makes rows of it; "" for nothing known."""
    if len(lists) > 1:
        names = ", ".join(one.key for one in lists[:_SHOWN])
        return (
            f"with several lists of rows ({names}); write the one that is wanted to a file of its own, "
            f"for example with jq -c '{_path(lists[0].key)}[]'"
        )
    nested = next((one for one in members if one.opening == "[" and _is_talk(one.first)), None)
    if nested is not None:
        return (
            f"whose {nested.key} is a list of lists of turns; rows are objects, which "
            f"jq -c '{_path(nested.key)}[] | {{messages: .}}' makes of them"
        )
    by_id = next((one for one in members if one.opening == "{" and _is_entry(one, columns)), None)
    if by_id is not None:
        return (
            f"whose {by_id.key} has rows by their ids; rows are objects of one line each, which "
            f"jq -c '{_path(by_id.key)} | to_entries[] | {_entry(by_id.first)}' makes of them"
        )
    if len(members) > 1 and all(one.opening == "{" and columns.wanted([one.first_key]) for one in members):
        return "of rows by their ids; rows are objects of one line each, which jq -c 'to_entries[] | {id: .key} + .value' makes of them"
    return ""


def _is_talk(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and is_turn(value[0])


def _entry(value: Any) -> str:
    return "{id: .key, messages: .value}" if isinstance(value, list) else "{id: .key} + .value"


def _path(key: str) -> str:
    """`.train`, as jq has it."""
    return f".{key}" if _PLAIN_KEY.fullmatch(key) else f".[{msgspec.json.encode(key).decode()}]"
