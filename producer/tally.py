"""What became of the input rows: counts, and why rows were skipped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hiddenfeed.skipped import SkipReason, general_reason
from producer.rows import Cause, SkippedRow
from producer.samples import Sample

#: Reasons told apart; a dataset wrong in ever new ways must not fill the memory.
_MAX_REASONS = 1000


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
    #: Samples that had BOS at the start or EOS at the end more than once.
    undoubled: int = 0
    #: What the chat template leaves out of samples, by kind.
    left_out: dict[str, SkipReason] = field(default_factory=dict)
    #: Skipped rows by the filter that they failed; their sum is `skipped`.
    causes: Counter[Cause] = field(default_factory=Counter)
    _reasons: dict[str, SkipReason] = field(default_factory=dict)

    def add(self, sample: Sample, file: str = "") -> list[SkipReason]:
        """Count a sample of a row of `file`; returns what the template leaves out of it and of none before it."""
        self.rows += 1
        self.samples += 1
        self.tokens += len(sample.ids)
        self.loss_tokens += int(sample.mask.sum())
        self.truncated += sample.truncated
        self.undoubled += sample.undoubled
        new = []
        for missing in sample.left_out:
            first = self.left_out.get(missing.kind)
            if first is None:
                first = SkipReason(0, f"{missing.kind} ({missing.which})", file, sample.source_row)
                new.append(first)
            self.left_out[missing.kind] = replace(first, rows=first.rows + 1)
        return new

    def skip(self, row: SkippedRow) -> None:
        """Count a skipped row under its reason."""
        self.rows += 1
        self.skipped += 1
        self.causes[row.cause] += 1
        kind = general_reason(row.reason)
        if kind not in self._reasons and len(self._reasons) >= _MAX_REASONS:
            kind = row.cause
        first = self._reasons.get(kind) or SkipReason(0, row.reason, row.file, row.source_row)
        self._reasons[kind] = replace(first, rows=first.rows + 1)

    def reasons(self) -> list[SkipReason]:
        """Why rows were skipped, the most frequent reason first."""
        return sorted(self._reasons.values(), key=lambda reason: (-reason.rows, reason.source_row))
