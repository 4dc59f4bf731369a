"""Between host and device: token ids there, states back, and what time it was on the device.

On CPU there is nothing to move: the model writes into the host's buffers. On CUDA buffers are pinned,
copies run on a stream of their own behind an event, and nothing here waits for the device except
`Landing.wait`, which the writer's thread calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from gpu_worker.host_ring import ChunkTensors, RowShape
from gpu_worker.taps import StateRows

_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


class Landing(Protocol):
    """States on their way to the host."""

    def wait(self) -> None:
        """Return once they are there."""
        ...


class Transfer(Protocol):
    """What the device loop needs of a device."""

    pinned: bool

    def enter(self) -> None:
        """To be called by every thread before it has to do with the device."""
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

    def free_bytes(self) -> int | None:
        """Device memory that can be had now; None where memory is not what limits a forward pass."""
        ...

    def peak_bytes(self, call: Callable[[], Landing | None]) -> int | None:
        """Device memory that `call` took at its peak, beyond what was taken before; None if it ran out."""
        ...


class _Landed:
    def wait(self) -> None:
        """Nothing was on its way."""


class HostTransfer:
    """The CPU: the model works in the host's buffers."""

    pinned = False

    def enter(self) -> None:
        """A thread may compute anywhere."""

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

    def free_bytes(self) -> int | None:
        """A CPU's caches end before its memory does."""
        return None

    def peak_bytes(self, call: Callable[[], Landing | None]) -> int | None:
        """Nobody asks, as nothing is known to be free."""
        return None


class _CopyEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        """Block this thread, not the device, until the copy is done."""
        self._event.synchronize()


class CudaTransfer:
    """One CUDA device: copies on a side stream, so that the next forward pass starts at once."""

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def enter(self) -> None:
        """A new thread's current device is the first one, whatever the process uses: kernels compiled at run time go by
        it, and a call that only waits for an event would open a context there, of half a gigabyte.
        """
        torch.cuda.set_device(self._device)

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
                # The allocator must not hand this memory out before the copy has read it. Nobody else keeps it: with a
                # slow disk the chunks that wait for the writer would else fill the device.
                source.record_stream(self._side)
            event.record(self._side)
        return _CopyEvent(event)

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

    def free_bytes(self) -> int | None:
        """What the driver has, and what the allocator holds without using it."""
        free, _ = torch.cuda.mem_get_info(self._device)
        held = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(free) + int(held)

    def peak_bytes(self, call: Callable[[], Landing | None]) -> int | None:
        """Waits for the device before and after."""
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        landing = call()
        torch.cuda.synchronize(self._device)
        return None if landing is None else int(torch.cuda.max_memory_allocated(self._device)) - before


def transfer_for(device: torch.device) -> Transfer:
    """The way to and from `device`."""
    return CudaTransfer(device) if device.type == "cuda" else HostTransfer()


def check_tensors(rows: StateRows, ids: torch.Tensor) -> ChunkTensors:
    """What is checked about the rows, computed where they are. Non-finite values show in the norms."""
    count = rows.hidden_states.shape[1]
    states = [rows.hidden_states[:, place] for place in range(count)]
    if rows.final is not None:
        states.append(rows.final)
    # Summed in float32, without a copy in it.
    norms = torch.stack(
        [torch.linalg.vector_norm(state, dim=-1, dtype=torch.float32) for state in states], dim=1
    )
    # Counted as integers, which is several times faster than as floating point numbers.
    bits = _BITS[rows.hidden_states.dtype]
    nonzero = torch.stack([torch.count_nonzero(state.view(bits)) for state in states])
    flat = ids.flatten()
    seen = flat if rows.real is None else flat.index_select(0, rows.real)
    return ChunkTensors(rows.hidden_states, rows.final, norms, nonzero, seen)
