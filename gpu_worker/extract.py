"""The job of the GPU worker: one batch of a run, as a verified file in the spool, announced to the uploaders.

Jobs run in threads, a few at a time: while one computes, the next has its tokens read and its file
open, and the one before is being written and made durable.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec

from common.logs import get_logger
from common.messages import BatchReport, ExtractBatch, UploadFile, parse_message
from common.part_file import PartFile
from common.queues import extract_queue_name, upload_request
from common.spool import Spool
from common.worker import GiveBack, JobContext
from gpu_worker.device_kind import device_kind
from gpu_worker.device_loop import LoopReport, Stopped, is_device_lost
from gpu_worker.guards import BatchGuard
from gpu_worker.input_check import check_input
from gpu_worker.job_record import JobRecord
from gpu_worker.salvage import CheckError, SampleError, find_bad
from gpu_worker.service import RunService, ServedRun
from gpu_worker.tokens import TokenBatch
from gpu_worker.writer import BatchFile, FinishedFile
from hiddenfeed.batch_file import BatchFacts, BatchLayout, SetAside
from hiddenfeed.checksum import checksum_of
from hiddenfeed.errors import DataError, PermanentError
from hiddenfeed.layout import batch_key, quarantine_note_key, tokens_key
from hiddenfeed.proof import QuarantineNote

log = get_logger("extract")

#: How long a job waits for room in the spool before it goes back to the queue, and how often it looks.
SPOOL_WAIT_SECONDS, SPOOL_LOOK_SECONDS = 30.0, 0.5


class Extractor:
    """Handler of `gpu_worker.extract.extract_batch`; safe to call from several threads at a time."""

    def __init__(
        self,
        runs: RunService,
        spool: Spool,
        *,
        device_lost: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`device_lost` is called when the device will compute nothing more: the process should end."""
        self._runs, self._spool, self._device_lost, self._clock = runs, spool, device_lost, clock

    def extract_batch(self, payload: Any, context: JobContext) -> BatchReport:
        """Compute the batch of an `ExtractBatch` message and announce its file; returns how it went.

        Samples that cannot be extracted, or whose states fail a guard, are found and left out of the file,
        which names them with their reasons; a batch without any other is announced as a quarantine note.
        Raises GiveBack if the run is not in service, the spool stays full or the
        process is to stop; PermanentError for a message that is not ours; TransientError if the disk
        refuses.
        """
        message = parse_message(ExtractBatch, payload)
        if context.queue != extract_queue_name(message.run_id) or message.tokens != tokens_key(
            message.run_id
        ):
            raise PermanentError(
                f"the message is of run {message.run_id!r} with tokens {message.tokens!r}, "
                f"and came on queue {context.queue}"
            )
        record = JobRecord(self._clock())
        with self._runs.use(message.run_id) as run:
            upload = self._extract_or_quarantine(run, message, context, record)
        context.on_lost(partial(self._discard, upload.path))
        context.follow_up(upload_request(upload))
        self._say(upload)
        return upload.report

    def _say(self, upload: UploadFile) -> None:
        """The one line of a batch."""
        batch, report = upload.batch, upload.report
        log.info(
            "batch extracted",
            run=batch.run_id,
            batch=batch.batch_id,
            tokens=batch.tokens_total,
            size_bytes=upload.size_bytes,
            read_s=round(report.read_seconds, 3),
            forward_s=round(report.forward_seconds, 3),
            stall_s=round(report.stall_seconds, 3),
            write_s=round(report.write_seconds, 3),
            total_s=round(report.total_seconds, 3),
        )

    def _extract_or_quarantine(
        self, run: ServedRun, message: ExtractBatch, context: JobContext, record: JobRecord
    ) -> UploadFile:
        bad: dict[int, SampleError] = {}
        try:
            try:
                return self._extract(run, message, context, record, {})
            except SampleError as error:
                log.warning("batch failed", run=message.run_id, batch=message.batch_id, why=str(error))
                return self._salvage(run, message, context, record, bad)
        except DataError as error:
            reason, check = str(error), error.check if isinstance(error, CheckError) else "other"
        except RuntimeError as error:
            if is_device_lost(error):
                # Every further batch would fail at once, and use up the attempts of the whole queue.
                log.critical("the device is lost", why=str(error).splitlines()[0])
                self._device_lost()
            raise
        log.error("batch quarantined", run=message.run_id, batch=message.batch_id, why=reason)
        each = [bad[place] for place in sorted(bad)] if len(bad) == message.samples else []
        record.quarantined(
            dict(Counter(error.check for error in each)) if each else {check: message.samples}, reason
        )
        return self._quarantine(run, message, context, record, reason, tuple(map(str, each)))

    def _salvage(
        self,
        run: ServedRun,
        message: ExtractBatch,
        context: JobContext,
        record: JobRecord,
        bad: dict[int, SampleError],
    ) -> UploadFile:
        """The file of a batch without its bad samples, which are put into `bad`; raises DataError if there is none."""
        batch = run.tokens.read(message)
        bad |= _unfit(run, batch)
        try:
            # What failed by chance does not fail again.
            return self._extract(run, message, context, record, bad)
        except SampleError as error:
            reason, check = str(error), error.check
        places = [place for place in range(batch.samples) if place not in bad]
        found = find_bad(places, lambda some: self._attempt(run, message, context, batch.take(some)))
        if found is None:
            bad.clear()
            raise CheckError(f"{reason}; too many samples fail alone to set aside just these", check)
        bad |= found
        return self._extract(run, message, context, record, bad)

    def _attempt(
        self, run: ServedRun, message: ExtractBatch, context: JobContext, batch: TokenBatch
    ) -> SampleError | None:
        """Why these samples cannot be extracted; their file is thrown away."""
        try:
            with self._computed(run, message, context, batch, ()) as (file, _):
                file.guard.finish()
        except SampleError as error:
            # Without the frames that it came through, which hold states.
            return error.with_traceback(None)
        return None

    def _discard(self, path: str) -> None:
        """Another worker has the job: this file has no message, and nobody would upload it."""
        self._spool.remove(path)

    def _extract(
        self,
        run: ServedRun,
        message: ExtractBatch,
        context: JobContext,
        record: JobRecord,
        bad: Mapping[int, SampleError],
    ) -> UploadFile:
        """The batch file in the spool, without the samples at the places in `bad`; raises DataError if there cannot be one."""
        batch = run.tokens.read(message)
        set_aside = tuple(SetAside(int(batch.source_rows[place]), str(bad[place])) for place in sorted(bad))
        if len(bad) == batch.samples:
            first = bad[min(bad)]
            raise CheckError(str(first), first.check)
        if bad:
            batch = batch.take([place for place in range(batch.samples) if place not in bad])
        record.read = self._clock() - record.began
        with self._computed(run, message, context, batch, set_aside) as (file, loop):
            finished = file.finish()
            record.computed(batch, loop, file.seconds, finished.guards)
        if bad:
            record.set_aside(bad.values(), set_aside[0].reason)
            log.error("samples set aside", run=message.run_id, batch=message.batch_id, samples=len(bad))
        key = batch_key(message.run_id, message.batch_id)
        return self._announcement(run, message, context, record, finished, key)

    @contextmanager
    def _computed(
        self,
        run: ServedRun,
        message: ExtractBatch,
        context: JobContext,
        batch: TokenBatch,
        set_aside: tuple[SetAside, ...],
    ) -> Iterator[tuple[BatchFile, LoopReport]]:
        """A file with all rows of `batch`, thrown away unless it is finished; raises DataError if there cannot be one."""
        check_input(run.engine.model, batch)
        facts = BatchFacts.of_run(
            run.document, message.batch_id, tokens=batch.tokens, samples=batch.samples, set_aside=set_aside
        )
        layout = BatchLayout(facts)
        with self._reserve(message, layout.file_size, context) as part:
            file = BatchFile(part, layout, batch, self._guard(run, batch), run.engine.computed)
            try:
                loop = run.engine.loop.extract(file, context.stopping.is_set)
            except Stopped:
                raise GiveBack("the process is to stop") from None
            yield file, loop

    def _quarantine(
        self,
        run: ServedRun,
        message: ExtractBatch,
        context: JobContext,
        record: JobRecord,
        reason: str,
        reasons: tuple[str, ...],
    ) -> UploadFile:
        """A note in place of the batch file."""
        note = msgspec.json.encode(
            QuarantineNote(
                run_id=message.run_id,
                batch_id=message.batch_id,
                reason=reason,
                source_rows=run.tokens.source_rows(message.row_group),
                reasons=reasons,
            )
        )
        with self._reserve(message, len(note), context, ".json") as part:
            part.write_at(note, 0)
            finished = FinishedFile(part.publish(), len(note), checksum_of(note))
        key = quarantine_note_key(message.run_id, message.batch_id)
        return self._announcement(run, message, context, record, finished, key)

    def _guard(self, run: ServedRun, batch: TokenBatch) -> BatchGuard:
        identity = run.document.identity
        return BatchGuard(
            batch,
            identity.taps,
            identity.final_state,
            run.document.hidden_size,
            run.engine.baseline,
            run.engine.agreement,
        )

    def _reserve(
        self, message: ExtractBatch, size_bytes: int, context: JobContext, suffix: str = ".safetensors"
    ) -> PartFile:
        """A file of the spool, waited for; raises GiveBack if there is no room for too long."""
        deadline = self._clock() + SPOOL_WAIT_SECONDS
        while True:
            part = self._spool.reserve(message.run_id, message.batch_id, uuid4().hex, size_bytes, suffix)
            if part is not None:
                return part
            if self._clock() >= deadline or context.stopping.wait(SPOOL_LOOK_SECONDS):
                raise GiveBack(f"the spool has no room for {size_bytes} bytes")

    def _announcement(
        self,
        run: ServedRun,
        message: ExtractBatch,
        context: JobContext,
        record: JobRecord,
        finished: FinishedFile,
        key: str,
    ) -> UploadFile:
        device = run.engine.model.device
        report = record.report(context.worker_name, str(device), device_kind(device), self._clock())
        return UploadFile(
            batch=message,
            spool=self._spool.name,
            path=finished.path,
            key=key,
            size_bytes=finished.size_bytes,
            checksum=finished.checksum,
            report=report,
        )


def _unfit(run: ServedRun, batch: TokenBatch) -> dict[int, SampleError]:
    """Samples that the model cannot take, by their tokens alone: place -> reason."""
    unfit = {}
    for place in range(batch.samples):
        try:
            check_input(run.engine.model, batch.take([place]))
        except SampleError as error:
            unfit[place] = error.with_traceback(None)
    return unfit
