"""Memory of forward passes on a CPU: kept by the process from one to the next.

The C library gives large blocks back to the kernel as soon as they are free, and the kernel clears them page by page when
the next tensor is made: with a thousand tokens a pass that was 15 to 25% of its processor time, and more or less of it
from thread to thread (an 8-layer, 512-wide model in bfloat16).
"""

from __future__ import annotations

import ctypes

#: Parameters of glibc's mallopt(3), and their values in bytes: blocks up to 1 GiB come from the heap, what is free at its
#: end stays there, and it grows by this much at least.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_VALUES = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 64 << 20}


def keep_freed_memory() -> bool:
    """For this process, from now on; False where the C library is another and nothing was changed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(mallopt(name, value) for name, value in _VALUES.items())
