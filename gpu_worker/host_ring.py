"""The host's buffers for states that come from the device: a fixed number, handed round."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from hiddenfeed.errors import TransientError

_ALIGNMENT = 64


@dataclass(frozen=True)
class RowShape:
    """What one token gives."""

    taps: int
    hidden_size: int
    dtype: torch.dtype
    final: bool

    @property
    def states(self) -> int:
        """States per token, the final one included."""
        return self.taps + int(self.final)


@dataclass(frozen=True)
class ChunkTensors:
    """States of n tokens and what is checked about them, all on one device."""

    #: [n, K, H] in the stored dtype.
    hidden_states: torch.Tensor
    #: [n, H] in the stored dtype, or None.
    final: torch.Tensor | None
    #: float32 [n, K'], K' = K plus one for the final state.
    norms: torch.Tensor
    #: int64 [K'], values that are not zero.
    nonzero: torch.Tensor
    #: int64 [n], the ids that the model was given for these rows.
    seen_ids: torch.Tensor

    def all(self) -> list[torch.Tensor]:
        """All tensors, in a fixed order."""
        final = [] if self.final is None else [self.final]
        return [self.hidden_states, *final, self.norms, self.nonzero, self.seen_ids]


class Slot:
    """One host buffer of the ring, as large as the largest chunk it has held."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8)

    @property
    def size_bytes(self) -> int:
        """Of the buffer."""
        return self._memory.numel()

    def tensors(self, shape: RowShape, rows: int) -> ChunkTensors:
        """The buffer as tensors of `rows` tokens; what they held before is lost."""
        wanted: list[tuple[torch.dtype, tuple[int, ...]]] = [
            (shape.dtype, (rows, shape.taps, shape.hidden_size)),
            (shape.dtype, (rows if shape.final else 0, shape.hidden_size)),
            (torch.float32, (rows, shape.states)),
            (torch.int64, (shape.states,)),
            (torch.int64, (rows,)),
        ]
        starts, total = [], 0
        for dtype, size in wanted:
            starts.append(total)
            total += -(-_bytes(dtype, size) // _ALIGNMENT) * _ALIGNMENT
        if self._memory.numel() < total:
            # Freed before the new one is made: two of them may not fit.
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._memory = _host_memory(total, self._pinned)
        states, final, norms, nonzero, seen = (
            self._memory[start : start + _bytes(dtype, size)].view(dtype).view(size)
            for start, (dtype, size) in zip(starts, wanted, strict=True)
        )
        return ChunkTensors(states, final if shape.final else None, norms, nonzero, seen)


class Ring:
    """A fixed number of host buffers, so that host memory does not grow with the file."""

    def __init__(self, slots: int, *, pinned: bool) -> None:
        self._all = [Slot(pinned) for _ in range(slots)]
        self._free = list(self._all)
        self._returned = threading.Condition()

    @property
    def size_bytes(self) -> int:
        """Of all buffers together, those in use too."""
        return sum(slot.size_bytes for slot in self._all)

    def acquire(self) -> Slot:
        """A free buffer; waits for the writer to give one back."""
        with self._returned:
            self._returned.wait_for(lambda: self._free)
            return self._free.pop()

    def release(self, slot: Slot) -> None:
        """Give a buffer back."""
        with self._returned:
            self._free.append(slot)
            self._returned.notify()


def _host_memory(size_bytes: int, pinned: bool) -> torch.Tensor:
    """uint8; raises TransientError where the host has no more of it, as another process may give some back."""
    try:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pinned)
    except RuntimeError as error:
        kind = "page-locked memory" if pinned else "memory"
        raise TransientError(
            f"a buffer of {size_bytes} bytes of {kind} for states cannot be had: {str(error).splitlines()[0]}"
        ) from error


def _bytes(dtype: torch.dtype, size: tuple[int, ...]) -> int:
    return int(torch.Size(size).numel()) * dtype.itemsize
