"""How many processors this process may use: its affinity and its container's share, not the machine's number."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")


def processors() -> int:
    """Threads that this process may compute with, at least 1.

    torch goes by the machine, and more threads than a container's share of it wait for each other.
    """
    return share(torch.get_num_threads(), _allowed(), _quota(_CGROUP))


def share(threads: int, allowed: int, quota: float | None) -> int:
    """The decision from torch's own choice, the processors of the affinity, and a container's `quota` of them."""
    limits = [threads, allowed] if quota is None else [threads, allowed, math.ceil(quota)]
    return max(1, min(limits))


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(root: Path) -> float | None:
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
