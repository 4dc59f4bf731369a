"""Numbers as people read them."""

from __future__ import annotations

import pytest

from hiddenfeed.words import count_text, duration_text, size_rate_text, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1.5 * 2**30, "1.5 GiB"), (2**50, "1024.0 TiB")],
)
def test_sizes_are_binary(size: float, text: str) -> None:
    assert size_text(size) == text
    assert size_rate_text(size) == f"{text}/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-1, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def test_one_and_many() -> None:
    assert [count_text(number, "file") for number in (0, 1, 2000)] == ["0 files", "1 file", "2,000 files"]
    assert count_text(2, "batch", "batches") == "2 batches"
    assert size_rate_text(None) == "-"
