"""Memory of a forward pass is kept for the next one: the kernel clears no page twice."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

#: Makes and frees a dozen arrays of some MB, a few times; says how many pages the kernel had to clear after the first.
_PROGRAM = """
import resource, sys
import numpy as np
from gpu_worker.host_heap import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def once():
    for array in [np.empty(3_000_000, np.uint8) for _ in range(12)]:
        array[::1024] = 1
once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _pages(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is for glibc")
def test_what_is_freed_is_kept() -> None:
    assert _pages("keep") < 500
    # The test would see it: by default tens of thousands are cleared anew.
    assert _pages("leave") > 5000
