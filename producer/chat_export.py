"""The export of ChatGPT, which is no row of ours: conversations as trees, told so that people know what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What is said of one, behind what it is.
EXPORT = (
    "is a conversation of a ChatGPT export, a tree of messages (mapping) with a branch for every answer that was asked for "
    "again; write the branch that ends at current_node as messages, for which docs/data.md has the lines"
)


def is_export(values: Mapping[str, Any]) -> bool:
    """True for an object with a `mapping` of nodes that know their parents."""
    mapping = values.get("mapping")
    if not isinstance(mapping, dict):
        return False
    node = next(iter(mapping.values()), None)
    return isinstance(node, dict) and {"message", "parent"} <= node.keys()
