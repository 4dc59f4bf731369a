"""What is counted of a run: by worker, by uploader, and altogether. Imported through `common.run_state`."""

from __future__ import annotations

import msgspec

from common.batch_cost import CostSums
from common.checks import Checks


def average_rate(amount: float, arrivals: int, first_at: float, last_at: float) -> float | None:
    """Amount per second between the first arrival and the last one; None before there are two.

    The share of the first arrival is left out: how long that took is not known.
    """
    if arrivals < 2 or last_at <= first_at:
        return None
    return amount * (arrivals - 1) / arrivals / (last_at - first_at)


class WorkerProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU worker did for a run, counted when the store had it; samples set aside are not in it."""

    worker: str
    device: str = ""
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
    #: From the first batch's arrival to the last one's, without long pauses.
    active_seconds: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens stored per second of the clock, waiting included; None before two batches."""
        return average_rate(self.tokens, self.batches, self.first_at, self.last_at)

    @property
    def samples_per_second(self) -> float | None:
        """The same of samples."""
        return average_rate(self.samples, self.batches, self.first_at, self.last_at)

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
    workers: tuple[WorkerProgress, ...] = ()
    uploaders: tuple[UploaderProgress, ...] = ()
    #: What batches cost, by kind of device.
    costs: tuple[CostSums, ...] = ()
    checks: Checks = Checks()

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens stored per second of the clock over all workers; None before two batches."""
        return average_rate(self.tokens, self.batches, self.first_at, self.last_at)

    @property
    def samples_per_second(self) -> float | None:
        """The same of samples."""
        return average_rate(self.samples, self.batches, self.first_at, self.last_at)

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
