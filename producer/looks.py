"""What columns of unknown names look like they hold, and the `--columns` that would read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

Look = Literal["turns", "numbers", "text", ""]

#: Two answers of which one is better, as preference data has them.
_PREFERRED, _REFUSED = ("chosen", "preferred"), ("rejected", "dispreferred")


#: Where the messages of an object may be that stands for a conversation.
NESTED = ("messages", "conversations", "conversation")


def is_turn(value: Any) -> bool:
    """True for an object that says who speaks."""
    return isinstance(value, dict) and bool({"role", "from"} & value.keys())


def look_of(value: Any) -> Look:
    """What a value of a row looks like; "" for what is nothing that a sample is made of."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, np.ndarray):
        return "numbers" if value.dtype.kind in "iu" else ""
    if isinstance(value, dict):
        return next(("turns" for key in NESTED if look_of(value.get(key)) == "turns"), "")
    if not isinstance(value, list) or not value:
        return ""
    first = value[0]
    if isinstance(first, dict):
        return "turns" if is_turn(first) else ""
    return "numbers" if type(first) is int else ""


def way_in(looks: Mapping[str, Look]) -> str:
    """`; give --columns messages=chat`, for the columns of a row or table that nothing is recognised in."""
    for look, what in (("turns", "messages"), ("numbers", "input_ids")):
        named = [name for name, found in looks.items() if found == look]
        if named:
            best = next((name for name in named if name.lower() in _PREFERRED), named[0])
            return f"; give --columns {what}={best}"
    texts = [name for name, found in looks.items() if found == "text" and name.lower() not in _REFUSED]
    example = "messages=NAME"
    if len(texts) == 2:
        example = f"prompt={texts[0]},response={texts[1]}"
    elif len(texts) == 1:
        example = f"text={texts[0]}"
    return f"; name its columns, for example --columns {example}" if looks else ""
