"""A device that takes as long as a GPU and needs no processor: forward passes end when their time is over.

Passes run one behind the other, as on a stream. A thread that asks for one waits until the one
before has ended, as it would with a full queue of kernels; so the device is idle exactly when it is
asked too late. States are there once the pass has ended and its copy is over: the host's buffers are
filled beforehand with rows that are all alike, as a GPU would copy them without the processor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
import torch

from gpu_worker.agreement import tolerance_for
from gpu_worker.device_loop import DeviceLoop
from gpu_worker.host_ring import ChunkTensors, RowShape
from gpu_worker.micro_batch import MicroBatch
from gpu_worker.taps import Selection, StateRows, TapModel
from gpu_worker.transfer import Landing, check_tensors

#: A pass of however few tokens reads all weights: 54 GB at 4.8 TB/s.
SHORTEST_SECONDS = 0.011
#: From the device to pinned memory.
COPY_BYTES_PER_SECOND = 25e9


@dataclass
class EmulatedDevice:
    """Time of a device that computes `tokens_per_second`."""

    tokens_per_second: float
    #: When all that was asked for will be done, on the performance counter.
    free_at: float = 0.0
    #: (begin, end) of every pass.
    passes: list[tuple[float, float]] = field(default_factory=list)

    def compute(self, padded_tokens: int) -> float:
        """Ask for a pass; returns when it ends, once it has begun."""
        begin = max(time.perf_counter(), self.free_at)
        self.free_at = begin + max(SHORTEST_SECONDS, padded_tokens / self.tokens_per_second)
        self.passes.append((begin, self.free_at))
        wait_until(begin)
        return self.free_at

    def busy_fraction(self) -> float:
        """Share of the time between the first pass and the last that the device computed."""
        return sum(end - begin for begin, end in self.passes) / (self.passes[-1][1] - self.passes[0][0])

    def longest_gap(self) -> float:
        """Seconds of the longest idle time between two passes."""
        ends = [end for _, end in self.passes[:-1]]
        return max(begin - end for end, (begin, _) in zip(ends, self.passes[1:], strict=True))


class EmulatedModel(TapModel):
    """What the worker asks of a model besides forward passes."""

    def __init__(self, selection: Selection, hidden_size: int, vocabulary: int) -> None:
        self.selection, self.hidden_size, self.vocabulary = selection, hidden_size, vocabulary
        self.device, self.compute_dtype = torch.device("cpu"), torch.bfloat16
        self.max_positions, self.is_mixture = None, False

    def release(self) -> None:
        """There are no hooks."""


class _DeviceTime:
    """The transfer of the emulated device: marks on its stream, and nothing to move."""

    pinned = False

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device

    def enter(self) -> None:
        pass

    def upload(self, array: torch.Tensor) -> torch.Tensor:
        return array

    def targets(self, host: ChunkTensors, shape: RowShape) -> tuple[torch.Tensor, torch.Tensor | None]:
        return host.hidden_states, host.final

    def land(self, made: ChunkTensors, host: ChunkTensors) -> Landing:
        raise NotImplementedError("the loop of the emulated device lands states itself")

    def mark(self) -> float:
        return max(time.perf_counter(), self._device.free_at)

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def reclaim(self) -> None:
        pass

    def free_bytes(self) -> int | None:
        return None

    def peak_bytes(self, call: Callable[[], Landing | None]) -> int | None:
        return None


@dataclass(frozen=True)
class _AtTime:
    """States that are there at a moment."""

    moment: float

    def wait(self) -> None:
        wait_until(self.moment)


class EmulatedLoop(DeviceLoop):
    """The worker's own loop; only the device behind it is another."""

    def __init__(
        self, model: EmulatedModel, device: EmulatedDevice, rows: int, writer: Executor | None = None
    ) -> None:
        """`rows` are the most that a pass has; `writer` stands in for the writer's thread."""
        tolerance = tolerance_for(["bfloat16"], median=False)
        super().__init__(model, torch.bfloat16, tolerance, transfer=_DeviceTime(device), writer=writer)
        self._device = device
        taps = len(model.selection.taps)
        row = torch.randn(1, taps, model.hidden_size, generator=torch.Generator().manual_seed(0))
        self._row = row.to(torch.bfloat16)
        one = StateRows(self._row, None, None)
        self._checked = check_tensors(one, torch.zeros(1, 1, dtype=torch.int64))
        #: Address of a host buffer, which stays where it is -> rows in it that hold states.
        self._filled: dict[int, int] = {}
        for slot in self._ring._free:
            self._fill(slot.tensors(self._shape, rows).hidden_states)

    @property
    def baseline(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Norms [K] of the states, as a self-test would have seen them."""
        return self._checked.norms[0].double().numpy()

    @property
    def ring_bytes(self) -> int:
        """Of all host buffers together."""
        return self._ring.size_bytes

    def _ask(self, micro_batch: MicroBatch, host: ChunkTensors) -> Landing | None:
        self._fill(host.hidden_states)
        host.norms.copy_(self._checked.norms.expand_as(host.norms))
        host.nonzero.copy_(self._checked.nonzero * micro_batch.tokens)
        flat = micro_batch.ids.flatten()
        host.seen_ids.copy_(flat if micro_batch.real is None else flat.index_select(0, micro_batch.real))
        end = self._device.compute(micro_batch.ids.numel())
        copied = host.hidden_states.numel() * host.hidden_states.itemsize / COPY_BYTES_PER_SECOND
        return _AtTime(end + copied)

    def _fill(self, states: torch.Tensor) -> None:
        """Rows that hold something else: of a new buffer all, later those where a smaller chunk had its norms."""
        rows, address = len(states), states.data_ptr()
        filled = self._filled.get(address, 0)
        if rows > filled:
            states[filled:].copy_(self._row.expand(rows - filled, -1, -1))
        self._filled[address] = rows


_NEVER = threading.Event()


def wait_until(moment: float) -> None:
    """Let time pass; a wait of the kernel, no work of a processor."""
    left = moment - time.perf_counter()
    if left > 0:
        _NEVER.wait(left)
