"""What became of the input rows: counts, and why rows were skipped."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from producer.samples import Sample
from producer.sources import SkippedRow


@dataclass
class Reason:
    """One cause of skipped rows: how many, and the first of them."""

    first: SkippedRow
    rows: int = 0

    def __str__(self) -> str:
        return (
            f"{self.rows:,} × {self.first.reason} (first: row {self.first.source_row} of {self.first.file})"
        )


@dataclass
class Tally:
    """Counts over all rows so far. rows = samples + skipped."""

    rows: int = 0
    samples: int = 0
    skipped: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    #: Samples that were longer than the limit and lost their end.
    truncated: int = 0
    _reasons: dict[str, Reason] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Count a sample."""
        self.rows += 1
        self.samples += 1
        self.tokens += len(sample.ids)
        self.loss_tokens += int(sample.mask.sum())
        self.truncated += sample.truncated

    def skip(self, row: SkippedRow) -> None:
        """Count a skipped row under its reason."""
        self.rows += 1
        self.skipped += 1
        self._reasons.setdefault(general_reason(row.reason), Reason(row)).rows += 1

    def reasons(self) -> list[Reason]:
        """Why rows were skipped, the most frequent reason first."""
        return sorted(self._reasons.values(), key=lambda reason: (-reason.rows, reason.first.source_row))


def general_reason(reason: str) -> str:
    """A reason without the numbers and quotations of its row, so that equal causes count together."""
    return re.sub(r"\d+", "#", re.sub(r"'[^']*'", "'…'", reason))[:200]
