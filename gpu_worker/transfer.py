"""Between host and device: token ids there, states back, and what time it was on the device.

On CPU there is nothing to move: the model writes into the host's buffers. On CUDA buffers are pinned,
copies run on a stream of their own behind an event, and nothing here waits for the device except
`Landing.wait`, which the writer's thread calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gpu_worker.taps import StateRows

_ALIGNMENT = 64
_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


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
            self._memory = torch.empty(total, dtype=torch.uint8, pin_memory=self._pinned)
        states, final, norms, nonzero, seen = (
            self._memory[start : start + _bytes(dtype, size)].view(dtype).view(size)
            for start, (dtype, size) in zip(starts, wanted, strict=True)
        )
        return ChunkTensors(states, final if shape.final else None, norms, nonzero, seen)


class Ring:
    """A fixed number of host buffers, so that host memory does not grow with the file."""

    def __init__(self, slots: int, *, pinned: bool) -> None:
        self._free = [Slot(pinned) for _ in range(slots)]
        self._returned = threading.Condition()

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


class Landing(Protocol):
    """States on their way to the host."""

    def wait(self) -> None:
        """Return once they are there."""
        ...


class Transfer(Protocol):
    """What the device loop needs of a device."""

    pinned: bool

    def scope(self) -> AbstractContextManager[None]:
        """To be entered by the thread that computes."""
        ...

    def upload(self, array: torch.Tensor) -> torch.Tensor:
        """The host tensor on the device."""
        ...

    def targets(self, host: ChunkTensors, shape: RowShape) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Where the model shall write [n, K, H] and [n, H]."""
        ...

    def land(self, made: ChunkTensors, host: ChunkTensors) -> Landing:
        """Begin to bring `made` into `host`."""
        ...

    def mark(self) -> Any:
        """A moment in the device's work, as of what was asked of it so far."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Device time between two marks that have passed."""
        ...

    def reclaim(self) -> None:
        """Free cached memory after an allocation failed."""
        ...


class _Landed:
    def wait(self) -> None:
        """Nothing was on its way."""


class HostTransfer:
    """The CPU: the model works in the host's buffers."""

    pinned = False

    def scope(self) -> AbstractContextManager[None]:
        """Nothing to enter."""
        return nullcontext()

    def upload(self, array: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return array

    def targets(self, host: ChunkTensors, shape: RowShape) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The host's own buffers."""
        return host.hidden_states, host.final

    def land(self, made: ChunkTensors, host: ChunkTensors) -> Landing:
        """Only the small tensors are not there yet."""
        host.norms.copy_(made.norms)
        host.nonzero.copy_(made.nonzero)
        host.seen_ids.copy_(made.seen_ids)
        return _Landed()

    def mark(self) -> float:
        """Seconds of the monotonic clock."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Their difference."""
        return end - begin

    def reclaim(self) -> None:
        """The allocator of the CPU keeps nothing back."""


class _CopyEvent:
    def __init__(self, event: torch.cuda.Event, kept: ChunkTensors) -> None:
        self._event, self._kept = event, kept

    def wait(self) -> None:
        """Block this thread, not the device, until the copy is done."""
        self._event.synchronize()


class CudaTransfer:
    """One CUDA device: copies on a side stream, so that the next forward pass starts at once."""

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Kernels compiled at run time go by the thread's current device, not by their tensors'."""
        with torch.cuda.device(self._device):
            yield

    def upload(self, array: torch.Tensor) -> torch.Tensor:
        """A copy that the compute stream orders before its use."""
        return array.pin_memory().to(self._device, non_blocking=True)

    def targets(self, host: ChunkTensors, shape: RowShape) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Fresh device memory; the caching allocator makes it cheap."""
        states = torch.empty(host.hidden_states.shape, dtype=shape.dtype, device=self._device)
        final = (
            None
            if host.final is None
            else torch.empty(host.final.shape, dtype=shape.dtype, device=self._device)
        )
        return states, final

    def land(self, made: ChunkTensors, host: ChunkTensors) -> Landing:
        """Copy behind what was asked of the compute stream so far."""
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._side):
            for source, target in zip(made.all(), host.all(), strict=True):
                target.copy_(source, non_blocking=True)
                # The allocator must not hand this memory out before the copy has read it.
                source.record_stream(self._side)
            event.record(self._side)
        return _CopyEvent(event, made)

    def mark(self) -> torch.cuda.Event:
        """An event on the compute stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Waits for `end` if it has not passed."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000.0

    def reclaim(self) -> None:
        """Give cached blocks back, so that smaller tensors find room."""
        torch.cuda.empty_cache()


def transfer_for(device: torch.device) -> Transfer:
    """The way to and from `device`."""
    return CudaTransfer(device) if device.type == "cuda" else HostTransfer()


def check_tensors(rows: StateRows, ids: torch.Tensor) -> ChunkTensors:
    """What is checked about the rows, computed where they are. Non-finite values show in the norms."""
    count = rows.hidden_states.shape[1]
    states = [rows.hidden_states[:, place] for place in range(count)]
    if rows.final is not None:
        states.append(rows.final)
    # One state at a time: the float32 copy of all of them would be twice what is stored.
    norms = torch.stack([torch.linalg.vector_norm(state.float(), dim=-1) for state in states], dim=1)
    # Counted as integers, which is several times faster than as floating point numbers.
    bits = _BITS[rows.hidden_states.dtype]
    nonzero = torch.stack([torch.count_nonzero(state.view(bits)) for state in states])
    flat = ids.flatten()
    seen = flat if rows.real is None else flat.index_select(0, rows.real)
    return ChunkTensors(rows.hidden_states, rows.final, norms, nonzero, seen)


def _bytes(dtype: torch.dtype, size: tuple[int, ...]) -> int:
    return int(torch.Size(size).numel()) * dtype.itemsize
