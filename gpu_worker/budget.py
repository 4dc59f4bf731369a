"""How many padded tokens one forward pass may have on this device: decisions from what was measured.

Runs are planned for a device with room to spare. One with less runs the planned micro-batches in
pieces from the start, in place of running out of memory on the first.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Of the free memory: the rest is for what other lengths and a fragmented heap take.
_USED_SHARE = 0.8
#: Chunks of states besides the pass's own: passes are asked for ahead, as far as there are host buffers, and the memory of
#: a chunk comes back only when its copy is over.
_CHUNKS_ON_THE_WAY = 3
#: On a CPU longer passes only leave its caches. Per thread, and within these bounds; measured with 2 threads.
CPU_TOKENS_PER_THREAD, CPU_MIN_TOKENS, CPU_MAX_TOKENS = 2048, 2048, 16384


@dataclass(frozen=True)
class MemoryProbe:
    """What one forward pass took, and what there is."""

    #: Padded tokens of the pass.
    tokens: int
    #: Bytes at its peak beyond what was allocated before; None if they were not to be had.
    peak_bytes: int | None
    #: Bytes that an allocation can have now.
    free_bytes: int
    #: Bytes of the states of one token, as stored.
    row_bytes: int


def tokens_that_fit(probe: MemoryProbe) -> int:
    """Padded tokens that fit into the free memory, as a power of two, 1 at least.

    A power of two, because free memory differs by a little from start to start, and pieces of another
    size round differently: the same batch would get other bytes.
    """
    if probe.peak_bytes is None:
        return _power_of_two(probe.tokens // 2)
    per_token = probe.peak_bytes / probe.tokens + _CHUNKS_ON_THE_WAY * probe.row_bytes
    return _power_of_two(int(_USED_SHARE * probe.free_bytes / max(per_token, 1.0)))


def tokens_for_threads(threads: int) -> int:
    """Padded tokens of one forward pass on a CPU with this many threads."""
    return min(CPU_MAX_TOKENS, max(CPU_MIN_TOKENS, CPU_TOKENS_PER_THREAD * threads))


def _power_of_two(tokens: int) -> int:
    """The largest that is not above."""
    return 1 << (max(1, tokens).bit_length() - 1)
