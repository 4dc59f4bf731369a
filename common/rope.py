"""How long an input may be: what configurations say, and up to where rotary positions do not depend on the length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: Kinds of scaling that compute other frequencies beyond the original length: `dynamic` from the longest position of
#: the whole padded pass, kept for the passes after it; `longrope` by whether the pass is longer than the original.
_BY_LENGTH = frozenset({"dynamic", "longrope"})


#: What the length of the table of positions is called, where it is not called as it mostly is.
_LENGTHS = ("max_position_embeddings", "max_seq_len", "max_target_positions")


def said_length(config: Any) -> int | None:
    """Tokens that the configuration says the model has positions for; None if it says nothing, or that there is no end."""
    for name in _LENGTHS:
        said = getattr(config, name, None)
        if isinstance(said, int) and not isinstance(said, bool) and said >= 1:
            return said
    return None


def steady_length(config: Any) -> int | None:
    """Tokens up to which a sample's states do not depend on what is computed beside or before it; None: always.

    Beyond it transformers gives a sample alone, the same padded beside a longer one, and the start of the same
    sample cut off, different states: no way to compute in batches is right for all of them.
    """
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    said = said_length(config)
    lengths = [
        found
        for scaling in _scalings(rope)
        if scaling.get("rope_type", scaling.get("type")) in _BY_LENGTH
        for found in (
            scaling.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
            or said,
        )
        if isinstance(found, int)
    ]
    return min(lengths, default=None)


def _scalings(rope: Any) -> Iterator[dict[str, Any]]:
    """One set of parameters, or one for each kind of layer."""
    if isinstance(rope, dict):
        yield rope
        for value in rope.values():
            yield from _scalings(value)
