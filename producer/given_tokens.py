"""Samples that were tokenised elsewhere: token ids, with a loss mask, labels or neither beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from producer.rows import RowError, Tokens, kind_of

#: What trainers write in `labels` where nothing is to be predicted.
IGNORED_LABEL = -100

_Integers = npt.NDArray[np.int64]


def given_tokens(columns: Mapping[str, str], values: Mapping[str, Any]) -> Tokens:
    """The tokens of a row; `columns` says in which of its columns ids, masks and labels are.

    Ids are taken as they are; only padding, where an attention mask tells it, is left out. Raises
    RowError naming the entry that is wrong.
    """
    column = columns["input_ids"]
    ids = _integers(column, values.get(column), (int,))
    if not len(ids):
        raise RowError(f"{column} is empty", "empty")
    mask = _mask(columns, values, ids)
    real = _real(columns, values, ids)
    ids, mask = ids[real], None if mask is None else mask[real]
    outside = np.flatnonzero((ids < 0) | (ids > np.iinfo(np.int32).max))
    if len(outside):
        raise RowError(f"{column}[{outside[0] + real.start}] is {ids[outside[0]]}, which is no token id")
    return Tokens(ids.astype(np.int32), mask)


def _mask(
    columns: Mapping[str, str], values: Mapping[str, Any], ids: _Integers
) -> npt.NDArray[np.uint8] | None:
    """The loss mask that came with the row, from 0/1 or from labels; None if neither has a value."""
    # Rows of one table all have both columns where files of either kind were put together.
    given_by = {what: column for what, column in columns.items() if values.get(column) is not None}
    if "loss_mask" in given_by:
        return _zeros_and_ones(given_by["loss_mask"], values, ids).astype(np.uint8)
    if "labels" not in given_by:
        return None
    column = given_by["labels"]
    given = _as_long_as(column, values, ids)
    predicted = given != IGNORED_LABEL
    wrong = np.flatnonzero(predicted & (given != ids))
    if len(wrong):
        place = wrong[0]
        raise RowError(
            f"{column}[{place}] is {given[place]} beside {columns['input_ids']}[{place}] {ids[place]}: labels must be "
            f"the token itself (not the next one) or {IGNORED_LABEL}"
        )
    return np.asarray(predicted, np.uint8)


def _real(columns: Mapping[str, str], values: Mapping[str, Any], ids: _Integers) -> slice:
    """Where the tokens are that are no padding: between the first and the last 1 of the attention mask."""
    column = columns.get("attention_mask")
    if column is None or values.get(column) is None:
        return slice(0, len(ids))
    attended = np.flatnonzero(_zeros_and_ones(column, values, ids))
    if not len(attended):
        raise RowError(f"{column} is 0 everywhere: the row is padding alone", "empty")
    start, end = int(attended[0]), int(attended[-1]) + 1
    if end - start != len(attended):
        raise RowError(f"{column} has a 0 between ones; only padding at the ends can be left out")
    return slice(start, end)


def _zeros_and_ones(column: str, values: Mapping[str, Any], ids: _Integers) -> _Integers:
    given = _as_long_as(column, values, ids)
    wrong = np.flatnonzero((given != 0) & (given != 1))
    if len(wrong):
        raise RowError(f"{column}[{wrong[0]}] is {given[wrong[0]]}; it must be 0 or 1")
    return given


def _as_long_as(column: str, values: Mapping[str, Any], ids: _Integers) -> _Integers:
    given = _integers(column, values.get(column))
    if len(given) != len(ids):
        raise RowError(f"{column} has {len(given)} entries for {len(ids)} input_ids")
    return given


def _integers(column: str, raw: Any, kinds: tuple[type, ...] = (int, bool)) -> _Integers:
    """A list of whole numbers as int64; numbers as text, fractions and nested lists are refused."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind in ("iub" if bool in kinds else "iu"):
        if raw.dtype == np.uint64 and len(raw) and raw.max() > np.iinfo(np.int64).max:
            raise RowError(f"{column} holds a number beyond 64 bits")
        return raw.astype(np.int64)
    if not isinstance(raw, list):
        raise RowError(f"{column} is {kind_of(raw)}, not a list of whole numbers")
    wrong = next((place for place, item in enumerate(raw) if type(item) not in kinds), None)
    if wrong is not None:
        raise RowError(f"{column}[{wrong}] is {kind_of(raw[wrong])}, not a whole number")
    try:
        return np.array(raw, dtype=np.int64)
    except OverflowError:
        raise RowError(f"{column} holds a number beyond 64 bits") from None
