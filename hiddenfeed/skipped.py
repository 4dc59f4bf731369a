"""Why input rows were not planned: skipped.parquet counted by reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hiddenfeed.errors import DataError, MissingObjectError
from hiddenfeed.layout import skipped_key
from hiddenfeed.plan_file import SKIPPED_SCHEMA, parse_table
from hiddenfeed.store.base import Store

_REASON_CHARACTERS = 200


@dataclass(frozen=True)
class SkipReason:
    """One cause: how many rows, and the first of them with its own words."""

    rows: int
    reason: str
    file: str
    source_row: int

    def __str__(self) -> str:
        return f"{self.rows:,} × {self.reason} (first: row {self.source_row} of {self.file})"


def general_reason(reason: str) -> str:
    """A reason without the numbers and quotations of its row, so that equal causes count together."""
    return re.sub(r"\d+", "#", re.sub(r"'[^']*'", "'…'", reason))[:_REASON_CHARACTERS]


def count_reasons(store: Store, run_id: str) -> list[SkipReason]:
    """Why rows of a run were skipped, the most frequent reason first.

    Raises DataError if skipped.parquet is missing or cannot be read.
    """
    key = skipped_key(run_id)
    try:
        data = store.read(key)
    except MissingObjectError:
        raise DataError(f"{key} is missing") from None
    found: dict[str, SkipReason] = {}
    table = parse_table(data, key, SKIPPED_SCHEMA)
    rows = zip(
        *(table[name].to_pylist() for name in ("reason", "source_file", "source_row")),
        strict=True,
    )
    for reason, file, source_row in rows:
        kind = general_reason(reason)
        known = found.get(kind)
        found[kind] = SkipReason(
            rows=known.rows + 1 if known else 1,
            reason=known.reason if known else reason,
            file=known.file if known else file,
            source_row=known.source_row if known else source_row,
        )
    return sorted(found.values(), key=lambda reason: (-reason.rows, reason.source_row))
