"""What is told of one extraction: gathered while its job runs, then put into the report that travels with the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import UNSET

from common.messages import BatchReport
from gpu_worker.device_loop import LoopReport
from gpu_worker.salvage import CheckError
from gpu_worker.tokens import TokenBatch


@dataclass
class JobRecord:
    """One job; seconds by a monotonic clock."""

    began: float
    read: float = 0.0
    write: float = 0.0
    #: Of the samples whose states are in the file, and none of a batch without a file.
    loop: LoopReport = field(default_factory=LoopReport)
    computed_tokens: int = 0
    computed_squares: int = 0
    #: What the guards saw, as in the file; of a quarantined batch the `reason`.
    guards: dict[str, str] = field(default_factory=dict)
    #: Samples that could not be extracted, by what they failed, and why the first could not.
    failed: dict[str, int] = field(default_factory=dict)
    set_aside_reason: str = ""

    def computed(
        self, batch: TokenBatch, loop: LoopReport, write_seconds: float, guards: dict[str, str]
    ) -> None:
        """The file holds all of `batch`."""
        self.loop, self.write, self.guards = loop, write_seconds, guards
        self.computed_tokens, self.computed_squares = batch.tokens, int((batch.lengths**2).sum())

    def set_aside(self, errors: Iterable[CheckError], reason: str) -> None:
        """These samples are not in the file; `reason` is the first one's."""
        self.failed = dict(Counter(error.check for error in errors))
        self.set_aside_reason = reason

    def quarantined(self, failed: dict[str, int], reason: str) -> None:
        """There is a note in place of the file: what was computed for it is of no batch."""
        self.loop, self.write = LoopReport(), 0.0
        self.computed_tokens = self.computed_squares = 0
        self.guards, self.failed, self.set_aside_reason = {"reason": reason}, failed, reason

    def report(self, worker: str, device: str, kind: str, now: float) -> BatchReport:
        """As it travels; `kind` is what the device is, `now` by the clock of `began`."""
        loop, set_aside = self.loop, sum(self.failed.values())
        return BatchReport(
            worker=worker,
            device=device,
            kind=kind or UNSET,
            read_seconds=self.read,
            forward_seconds=loop.forward_seconds,
            stall_seconds=loop.stall_seconds,
            write_seconds=self.write,
            total_seconds=now - self.began,
            padded_tokens=loop.padded_tokens,
            halvings=loop.halvings or UNSET,
            guards=self.guards or UNSET,
            set_aside=set_aside or UNSET,
            set_aside_reason=self.set_aside_reason or UNSET,
            failed_checks=self.failed or UNSET,
            computed_tokens=self.computed_tokens if set_aside else UNSET,
            computed_squares=self.computed_squares if set_aside else UNSET,
        )
