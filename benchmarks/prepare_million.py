"""`prepare` up to a million conversations: minutes on many cores, some 5 GB of disk."""

from __future__ import annotations

from typing import Any

from benchmarks.prepare import describe, measure

__all__ = ["describe", "run"]


def run(*, quick: bool) -> dict[str, Any]:
    """Measure 10,000, 100,000 and, unless quick, 1,000,000 conversations."""
    return measure((10_000, 100_000) if quick else (10_000, 100_000, 1_000_000), quick=quick)
