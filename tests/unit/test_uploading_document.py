"""docs/uploading.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_DOCUMENT = (_ROOT / "docs" / "uploading.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", _DOCUMENT))
    sources = [path.read_text() for path in (_ROOT / "tests").rglob("test_*.py")]
    defined = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    assert len(named) > 30
    assert named - defined == set()
