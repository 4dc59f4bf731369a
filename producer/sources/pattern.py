"""Path patterns where there is no file system to ask: in S3 and on the hub."""

from __future__ import annotations

import fnmatch
import re


def translate(pattern: str) -> str:
    """A path pattern as a regular expression: `*` and `?` stay within a folder, `**/` is any number of them."""
    pieces = re.findall(r"\*\*/|\*|\?|\[[^\]]+\]|[^*?\[]+|\[", pattern)
    meaning = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]", "[": r"\["}
    return "".join(
        meaning[piece]
        if piece in meaning
        else fnmatch.translate(piece)[4:-3]
        if piece.startswith("[")
        else re.escape(piece)
        for piece in pieces
    )
