"""How many processors this process may use: its affinity and its container's share, not the machine's number."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def allowed_processors(root: Path = _CGROUP) -> int:
    """Processors for this process, at least 1: more threads than a container's share wait for each other."""
    quota = quota_of(root)
    return affinity() if quota is None else max(1, min(affinity(), math.ceil(quota)))


def affinity() -> int:
    """Processors that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_of(root: Path) -> float | None:
    """Processors that the container may use (cgroup v2, else v1); None without a limit."""
    texts = [
        _words(root / "cpu.max"),
        _words(root / "cpu" / "cpu.cfs_quota_us") + _words(root / "cpu" / "cpu.cfs_period_us"),
    ]
    for words in texts:
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
            return int(words[0]) / int(words[1])
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
