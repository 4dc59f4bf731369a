"""Keys: built and taken apart in one place, and never leaving the root."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenfeed import layout
from hiddenfeed.errors import DataError


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,30}", fullmatch=True), st.integers(0, 10**8))
def test_batch_keys_round_trip(run_id: str, batch_id: int) -> None:
    key = layout.batch_key(run_id, batch_id)
    assert layout.parse_batch_key(key) == (run_id, batch_id)
    assert layout.check_key(key) == key
    note = layout.quarantine_note_key(run_id, batch_id)
    assert layout.parse_quarantine_note_key(note) == (run_id, batch_id)
    assert layout.parse_batch_key(note) is None


@pytest.mark.parametrize(
    "key", ["", "/a", "a//b", "../a", "a/../b", "a/.", ".a", "a b", "a\n", "a\\b", "a/\x00", "ü"]
)
def test_keys_that_leave_the_root_are_refused(key: str) -> None:
    with pytest.raises(DataError, match="not allowed"):
        layout.check_key(key)


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "-a", "a" * 101, "a.b", "a\n"])
def test_bad_run_ids_are_refused(run_id: str) -> None:
    with pytest.raises(DataError, match="not allowed"):
        layout.run_document_key(run_id)


def test_names_sort_in_batch_order() -> None:
    names = [layout.batch_name(i) for i in (0, 1, 9, 10, 999_999)]
    assert names == sorted(names)
    with pytest.raises(DataError, match="negative"):
        layout.batch_name(-1)
