"""Where benchmarks put files that are not about this machine's disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - what is made in it has a name of its own


@contextmanager
def scratch(need_bytes: float) -> Iterator[Path]:
    """A folder in memory if there is that much room, else where temporary files go; removed at the end.

    A container's /dev/shm often holds next to nothing.
    """
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * need_bytes
    with tempfile.TemporaryDirectory(prefix="hfbench-", dir=_MEMORY if roomy else None) as name:
        yield Path(name)
