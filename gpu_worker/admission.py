"""Whether this worker may take another batch now; asked before every pop.

Each of the two levels that hold a worker back has a high mark, at which it stops, and a low one, at
which it goes on: near a limit a fleet would else start and stop with every file that leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import redis

from common.logs import get_logger
from common.queues import queue_counts, upload_queue_name
from common.settings.catalogue import ExtractSettings
from common.spool import Spool, low_mark
from gpu_worker.service import RunService
from hiddenfeed.batch_file import bytes_per_token
from hiddenfeed.run import RunDocument
from hiddenfeed.words import size_text

log = get_logger("admission")


def batch_bytes(document: RunDocument) -> int:
    """Bytes of a batch file of the run, about; batches are planned to be equally large."""
    identity, plan = document.identity, document.plan
    per_token = bytes_per_token(
        taps=len(identity.taps),
        hidden_size=document.hidden_size,
        dtype=identity.dtype,
        final=identity.final_state != "none",
    )
    return per_token * -(-plan.tokens // max(1, plan.batches))


@dataclass(frozen=True)
class Pressure:
    """The levels at one instant, in bytes and files, and their marks."""

    #: Whether the next batch's file would be let into the spool.
    room: bool
    spool: int
    spool_low: int
    backlog: int
    backlog_max: int
    backlog_low: int
    #: Whether it is the disk that leaves no room, with the spool under its cap.
    disk_short: bool = False


@dataclass(frozen=True)
class Held:
    """What holds a worker back."""

    spool: bool = False
    backlog: bool = False
    #: Whether the spool holds it back for want of free disk alone.
    disk: bool = False

    @property
    def why(self) -> str | None:
        """For the monitor; None if nothing does."""
        if self.spool:
            return "disk short of --spool-free-bytes" if self.disk else "spool full"
        return "upload backlog" if self.backlog else None


def held_back(pressure: Pressure, before: Held) -> Held:
    """What holds a worker back now that was held back by `before`."""
    return Held(
        spool=not pressure.room or (before.spool and pressure.spool > pressure.spool_low),
        backlog=pressure.backlog >= pressure.backlog_max
        or (before.backlog and pressure.backlog > pressure.backlog_low),
        disk=pressure.disk_short,
    )


class Admission:
    """Says why no batch may be taken: the words are shown by the monitor."""

    def __init__(
        self, client: redis.Redis, spool: Spool, runs: RunService, settings: Callable[[], ExtractSettings]
    ) -> None:
        """`settings` is asked every time: some may change while we run."""
        self._client, self._spool, self._runs, self._settings = client, spool, runs, settings
        self._held, self._too_small = Held(), False

    def why_not(self) -> str | None:
        """What holds this worker back, such as `spool full`, or None; raises TransientError when Redis is away."""
        run = self._runs.served
        if run is not None and (problem := self._spool.problem_with(run.document.run_id)) is not None:
            return f"spool: {problem}"
        # Without a run in service nothing is known of the size of a batch.
        size = batch_bytes(run.document) if run is not None else 0
        usage, settings = self._spool.usage(), self._settings()
        if size > usage.cap_bytes:
            if not self._too_small:
                self._too_small = True
                log.warning(
                    "the run's batch files never fit the spool; raise --spool-cap-bytes",
                    batch_file=size_text(size),
                    spool_cap=size_text(usage.cap_bytes),
                )
            return f"spool cap below a batch file of {size_text(size)}"
        self._too_small = False
        waiting = queue_counts(self._client, upload_queue_name(self._spool.name)).unfinished
        room, held = self._spool.has_room(size), usage.bytes + usage.part_bytes
        pressure = Pressure(
            room=room,
            spool=held,
            spool_low=usage.low_bytes,
            backlog=waiting,
            backlog_max=settings.upload_backlog_max,
            backlog_low=low_mark(settings.upload_backlog_max, settings.upload_backlog_low_percent),
            disk_short=not room and held + size <= usage.cap_bytes,
        )
        before, self._held = self._held, held_back(pressure, self._held)
        if self._held.why != before.why:
            log.info("may take batches again" if self._held.why is None else "held back", why=self._held.why)
        return self._held.why
