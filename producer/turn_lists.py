"""Turns in the other shapes that people write them in, made into a list of objects with a role and content.

- texts alone, which are the user's and the assistant's in turn;
- questions with their answers, as objects of two texts or as lists of two;
- roles with what they say, as lists of two;
- one object of lists in place of a list of objects, which is what older versions of the library datasets made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from producer.roles import ROLES
from producer.rows import RowError

#: What a question and its answer are called where a turn is both.
_PAIRS = (
    ("input", "output"),
    ("human", "assistant"),
    ("user", "assistant"),
    ("prompt", "response"),
    ("question", "answer"),
    ("instruction", "output"),
    ("query", "response"),
)
_ROLES = ("role", "from")
_SIDES = ("user", "assistant")


def turn_list(where: str, raw: Any) -> Any:
    """`raw` as a list of messages if it is in one of these shapes, else as it is.

    Raises RowError naming `where` for lists in it that do not fit together.
    """
    if isinstance(raw, dict):
        return _transposed(where, raw)
    if not isinstance(raw, list) or not raw:
        return raw
    if isinstance(raw[0], dict) and any(raw[0].get(key) is not None for key in _ROLES):
        # As nearly all are.
        return raw
    if all(isinstance(item, str) for item in raw):
        return [{"role": _SIDES[place % 2], "content": text} for place, text in enumerate(raw)]
    if all(is_pair(item) and isinstance(item, list) and item[0].strip().lower() in ROLES for item in raw):
        return [{"role": role, "content": text} for role, text in raw]
    if any(is_pair(item) for item in raw):
        return [message for item in raw for message in _messages_of(item)]
    return raw


def _transposed(where: str, raw: dict[str, Any]) -> Any:
    """A list of objects for an object of lists, if that is what it is."""
    lists = {key: items for key, items in raw.items() if isinstance(items, list)}
    role = next((key for key in _ROLES if key in lists), None)
    if role is None:
        return raw
    uneven = next((key for key in lists if len(lists[key]) != len(lists[role])), None)
    if uneven is not None:
        raise RowError(
            f"{where}.{uneven} has {len(lists[uneven])} entries for {len(lists[role])} of {where}.{role}"
        )
    return [dict(zip(lists, items, strict=True)) for items in zip(*lists.values(), strict=True)]


def is_pair(item: Any) -> bool:
    """True for a question with its answer: a list of two, or an object of two texts by names that are known."""
    if isinstance(item, list):
        return len(item) == 2 and isinstance(item[0], str)
    return _keys_of(item) is not None


def _keys_of(item: Any) -> tuple[str, str] | None:
    """The keys of a question and its answer in an object that has no role."""
    if not isinstance(item, dict) or any(item.get(key) is not None for key in _ROLES):
        return None
    return next((keys for keys in _PAIRS if isinstance(item.get(keys[0]), str) and keys[1] in item), None)


def _messages_of(item: Any) -> Iterator[Any]:
    """A question and its answer, if there is one yet, as messages; whatever else stands between them as it is."""
    if not is_pair(item):
        yield item
        return
    keys = _keys_of(item)
    question, answer = (item[keys[0]], item[keys[1]]) if keys is not None else item
    yield {"role": "user", "content": question}
    if answer is not None and answer != "":
        yield {"role": "assistant", "content": answer}
