"""What is counted of a run: by worker, by uploader, and altogether. Imported through `common.run_state`."""

from __future__ import annotations

import math
from contextlib import suppress

import msgspec

from common.batch_cost import CostSums, device_class
from common.checks import Checks

#: What a batch weighs in `RecentWork` when one more has come: the last sixty or so count.
RECENT_WEIGHT = 1 - 1 / 60


def average_rate(amount: float, arrivals: int, first_at: float, last_at: float) -> float | None:
    """Amount per second between the first arrival and the last one; None before there are two.

    The share of the first arrival is left out: how long that took is not known.
    """
    if arrivals < 2 or last_at <= first_at:
        return None
    return amount * (arrivals - 1) / arrivals / (last_at - first_at)


def _computing(counted: WorkerProgress | Progress) -> tuple[float, float]:
    """When the first and the last of its batches were computed; when they were stored, where nobody said that.

    Batches that another version counted before may have been earlier than what it noted of computing.
    """
    if not counted.last_computed_at:
        return counted.first_at, counted.last_at
    return min(counted.first_at or math.inf, counted.first_computed_at), counted.last_computed_at


class RecentWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU worker did of late: sums in which a batch weighs less with every batch that follows.

    Its first batch, which pays for what is done once, is left out: when it began is not known either.
    """

    batches: float = 0.0
    #: Of the clock, from arrival in the store to arrival, without long pauses.
    seconds: float = 0.0
    tokens: float = 0.0
    squares: float = 0.0
    #: Of forward passes, and of the device's waiting between them.
    device_seconds: float = 0.0

    @property
    def clock_seconds(self) -> float:
        """What the work took at least: files that waited for their upload arrive faster than they were computed."""
        return max(self.seconds, self.device_seconds)

    def after(self, seconds: float, tokens: int, squares: int, device_seconds: float) -> RecentWork:
        """With one batch more that arrived `seconds` after the one before."""
        return RecentWork(
            batches=self.batches * RECENT_WEIGHT + 1,
            seconds=self.seconds * RECENT_WEIGHT + seconds,
            tokens=self.tokens * RECENT_WEIGHT + tokens,
            squares=self.squares * RECENT_WEIGHT + squares,
            device_seconds=self.device_seconds * RECENT_WEIGHT + device_seconds,
        )


class WorkerProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU worker did for a run, counted when the store had it; samples set aside are not in it."""

    worker: str
    device: str = ""
    #: `NVIDIA H200`; empty if its programs did not say.
    kind: str = ""
    batches: int = 0
    samples: int = 0
    tokens: int = 0
    #: Sum of squared lengths.
    squares: int = 0
    padded_tokens: int = 0
    #: Forward passes that were halved because memory ran out.
    halvings: int = 0
    #: Batches of which a note with the reason is stored in place of states.
    quarantined: int = 0
    bytes: int = 0
    read_seconds: float = 0.0
    forward_seconds: float = 0.0
    stall_seconds: float = 0.0
    write_seconds: float = 0.0
    total_seconds: float = 0.0
    #: From when its first batch was computed to when the last one was, without long pauses.
    active_seconds: float = 0.0
    #: When the store had its first batch and its last one.
    first_at: float = 0.0
    last_at: float = 0.0
    #: When the earliest and the latest of them were computed; 0 where programs did not say.
    first_computed_at: float = 0.0
    last_computed_at: float = 0.0
    #: The fields of `RecentWork` in their order; empty before two batches.
    recent: str = ""

    @property
    def recent_work(self) -> RecentWork:
        """What it did of late; of a worker that was counted by another version, all that it did."""
        numbers = self.recent.split()
        if len(numbers) == len(RecentWork.__struct_fields__):
            with suppress(ValueError):
                return RecentWork(**dict(zip(RecentWork.__struct_fields__, map(float, numbers), strict=True)))
        if self.batches < 2 or self.active_seconds <= 0:
            return RecentWork()
        part = (self.batches - 1) / self.batches
        return RecentWork(
            batches=self.batches - 1,
            seconds=self.active_seconds,
            tokens=self.tokens * part,
            squares=self.squares * part,
            device_seconds=(self.forward_seconds + self.stall_seconds) * part,
        )

    @property
    def device_class(self) -> str:
        """What it shares with devices that are equally fast: the `device` of its `CostSums`."""
        return device_class(self.device, self.kind)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens computed per second of the clock, waiting included; None before two batches."""
        return average_rate(self.tokens, self.batches, *_computing(self))

    @property
    def samples_per_second(self) -> float | None:
        """The same of samples."""
        return average_rate(self.samples, self.batches, *_computing(self))

    @property
    def padding(self) -> float:
        """Share of what the device saw that was padding, or computed a second time as a check."""
        return max(0.0, 1 - self.tokens / self.padded_tokens) if self.padded_tokens else 0.0

    @property
    def busy(self) -> float | None:
        """Share of the active time in forward passes, 0 to 1; None before two batches.

        The share of the first batch is left out, as in the rates: its time is not in the active time.
        """
        if self.batches < 2 or self.active_seconds <= 0:
            return None
        return min(1.0, self.forward_seconds * (self.batches - 1) / self.batches / self.active_seconds)

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds by stage: read, forward, stall, write."""
        return {
            "read": self.read_seconds,
            "forward": self.forward_seconds,
            "stall": self.stall_seconds,
            "write": self.write_seconds,
        }


class UploaderProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What one uploader did for a run; `duplicates` are files that the store had already."""

    uploader: str
    files: int = 0
    duplicates: int = 0
    bytes: int = 0
    upload_seconds: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes stored per second of the clock, waiting included; None before two files."""
        return average_rate(self.bytes, self.files, self.first_at, self.last_at)

    @property
    def transfer_bytes_per_second(self) -> float | None:
        """How fast one file went, on average: bytes over the seconds of all uploads; None before the first."""
        return self.bytes / self.upload_seconds if self.upload_seconds > 0 and self.bytes else None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What the store holds of a run, as far as Redis was told. Times are seconds since the epoch, 0 for never."""

    run_id: str
    batches: int = 0
    samples: int = 0
    tokens: int = 0
    squares: int = 0
    bytes: int = 0
    #: Samples that could not be extracted, and why the last of them could not.
    set_aside: int = 0
    set_aside_reason: str = ""
    first_at: float = 0.0
    last_at: float = 0.0
    #: When the earliest and the latest batch were computed; 0 where programs did not say.
    first_computed_at: float = 0.0
    last_computed_at: float = 0.0
    workers: tuple[WorkerProgress, ...] = ()
    uploaders: tuple[UploaderProgress, ...] = ()
    #: What batches cost, by kind of device, without the first one of each worker; and what those cost.
    costs: tuple[CostSums, ...] = ()
    first_costs: tuple[CostSums, ...] = ()
    checks: Checks = Checks()

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens computed per second of the clock over all workers; None before two batches."""
        batches, tokens, _ = self._computed
        return average_rate(tokens, batches, *_computing(self))

    @property
    def samples_per_second(self) -> float | None:
        """The same of samples."""
        batches, _, samples = self._computed
        return average_rate(samples, batches, *_computing(self))

    @property
    def stored_tokens_per_second(self) -> float | None:
        """Tokens that arrived in the store per second of the clock; None before two batches."""
        batches, tokens, _ = self._computed
        return average_rate(tokens, batches, self.first_at, self.last_at)

    @property
    def _computed(self) -> tuple[int, int, int]:
        """(batches, tokens, samples) of the workers; batches that were found in the store took none of that time."""
        if not self.workers:
            return self.batches, self.tokens, self.samples
        rows = [(worker.batches, worker.tokens, worker.samples) for worker in self.workers]
        batches, tokens, samples = map(sum, zip(*rows, strict=True))
        return batches, tokens, samples

    @property
    def halvings(self) -> int:
        """Forward passes of all workers that were halved because memory ran out."""
        return sum(worker.halvings for worker in self.workers)


class FoundBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that the store held before this Redis heard of it."""

    batch_id: int
    samples: int
    tokens: int
    bytes: int
    squares: int = 0
