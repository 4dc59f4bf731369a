"""Processors that may be used: what the affinity and the container allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from common import processors
from common.processors import allowed_processors, quota_of


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"), [(16, None, 16), (4, 8.0, 4), (16, 2.5, 3), (16, 0.5, 1), (1, None, 1)]
)
def test_processors_are_those_that_may_be_used(
    affinity: int, quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "affinity", lambda: affinity)
    monkeypatch.setattr(processors, "quota_of", lambda root: quota)
    assert allowed_processors() == expected


def test_quota_of_a_container(tmp_path: Path) -> None:
    assert quota_of(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert quota_of(tmp_path) is None
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert quota_of(tmp_path) == 2.5
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert quota_of(tmp_path) is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    assert quota_of(tmp_path) == 1.5
