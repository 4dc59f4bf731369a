"""GPUs of any speeds on a queue of batches or on static shards, event by event. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Gpu:
    """A device; `dies_at` is when its process is lost with what it has in hand."""

    speed: float
    dies_at: float = np.inf

    @property
    def lasts(self) -> bool:
        """True if it is not lost."""
        return self.dies_at == np.inf


class QueueSimulation:
    """GPUs that pull batches in order, a few ahead of the one they compute.

    What a lost GPU had in hand is taken over once its lease, renewed as it died, has run out.
    """

    def __init__(self, batches: Seconds, gpus: Sequence[Gpu], *, ahead: int, lease: float) -> None:
        """`batches` are seconds of a device of speed 1; `ahead` is how many a GPU holds, the computed one among them."""
        self._gpus, self._ahead, self._lease = gpus, ahead, lease
        self._queue = deque(batches.tolist())
        self._held: list[deque[float]] = [deque() for _ in gpus]
        self._events: list[tuple[float, int, int]] = []
        self._lost: dict[float, list[float]] = {}
        self._idle: set[int] = set()
        self._ends = [0.0] * len(gpus)
        self._left = len(self._queue)

    def run(self) -> list[float]:
        """When each GPU that lasts ended its last batch; raises ValueError if work is left and no GPU."""
        for _ in range(self._ahead):
            for number in range(len(self._gpus)):
                self._claim(0.0, number)
        for number in range(len(self._gpus)):
            self._begin(0.0, number)
        while self._events:
            now, _, number = heapq.heappop(self._events)
            if number < 0:
                self._come_back(now)
            elif now >= self._gpus[number].dies_at:
                self._die(now, number)
            else:
                self._end(now, number)
        if self._left:
            raise ValueError("no GPU is left")
        return [end for end, gpu in zip(self._ends, self._gpus, strict=True) if gpu.lasts]

    def _claim(self, now: float, number: int) -> None:
        if self._queue and now < self._gpus[number].dies_at:
            self._held[number].append(self._queue.popleft())

    def _begin(self, now: float, number: int) -> None:
        if not self._held[number]:
            self._idle.add(number)
            return
        self._idle.discard(number)
        gpu = self._gpus[number]
        end = min(now + self._held[number][0] / gpu.speed, gpu.dies_at)
        heapq.heappush(self._events, (end, len(self._events), number))

    def _end(self, now: float, number: int) -> None:
        self._held[number].popleft()
        self._left -= 1
        self._ends[number] = now
        self._claim(now, number)
        self._begin(now, number)

    def _die(self, now: float, number: int) -> None:
        back_at = now + self._lease
        self._lost.setdefault(back_at, []).extend(self._held[number])
        self._held[number].clear()
        heapq.heappush(self._events, (back_at, 0, -1))

    def _come_back(self, now: float) -> None:
        self._queue.extendleft(reversed(self._lost.pop(now, [])))
        for number in sorted(self._idle):
            for _ in range(self._ahead):
                self._claim(now, number)
            self._begin(now, number)


def static_ends(samples: Seconds, gpus: Sequence[Gpu]) -> list[float]:
    """When each GPU ends with a contiguous part of the sorted samples, as many samples for each."""
    parts = np.array_split(samples, len(gpus))
    return [float(part.sum()) / gpu.speed for part, gpu in zip(parts, gpus, strict=True)]


def ideal_end(batches: Seconds, gpus: Sequence[Gpu]) -> float:
    """When the work ends if it can be divided without a rest; a lost GPU works until it dies."""
    work = float(batches.sum())
    lasting = sum(gpu.speed for gpu in gpus if gpu.lasts)
    end = work / sum(gpu.speed for gpu in gpus)
    for gpu in gpus:
        if gpu.dies_at < end:
            end = (work - gpu.speed * gpu.dies_at) / lasting
    return end
